"""Raw flags in the library's words: each is followed, the server's alone, or refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from cook.engines.base import Engine, ModelArgs
from cook.engines.options import OPTIONS, Option
from cook.engines.worker.compile import locate, parameter_names
from cook.engines.worker.loading import follow, in_replay, of_the_server
from cook.engines.worker.messages import ModelLoad
from cook.errors import PrerequisiteError
from cook.formats.quant_types import Flavour

LLAMA, IK = Flavour.LLAMA_CPP, Flavour.IK_LLAMA_CPP


def followed(flavour: Flavour, *words: str) -> ModelLoad:
    return follow(flavour, words, ModelLoad(Path("a.gguf")), "a.gguf")


@pytest.mark.parametrize("flavour", Flavour)
def test_every_harmless_option_is_decided(flavour: Flavour) -> None:
    for option in OPTIONS[flavour].values():
        assert (option.replay != "-") == option.harmless, option.name
        if not option.harmless or option.replay in ("server", "-"):
            continue
        if in_replay(option) == "yes":
            load = followed(flavour, *an_example(option))
            assert load != ModelLoad(Path("a.gguf")), option.name
        else:
            assert len(in_replay(option)) > len("no: "), option.name


@pytest.mark.parametrize(
    ("flavour", "words", "expected"),
    [
        (LLAMA, "-sm row", {"model.split_mode": 2}),
        (IK, "-sm graph", {"model.split_mode": 3}),
        (LLAMA, "-mg 1", {"model.main_gpu": 1}),
        (LLAMA, "-nkvo", {"context.offload_kqv": 0}),
        (LLAMA, "--kv-offload", {"context.offload_kqv": 1}),
        (LLAMA, "--no-op-offload", {"context.op_offload": 0}),
        (LLAMA, "-lm mlock", {"model.load_mode": 2}),
        (LLAMA, "-lm auto", {"model.load_mode": -1}),
        (LLAMA, "--swa-full", {"context.swa_full": 1}),
        (LLAMA, "-kvu", {"context.kv_unified": 1}),
        (LLAMA, "--no-perf", {"context.no_perf": 1}),
        (LLAMA, "--no-repack", {"model.use_extra_bufts": 0}),
        (LLAMA, "--rope-scale 4", {"context.rope_freq_scale": 0.25}),
        (LLAMA, "--rope-scaling yarn", {"context.rope_scaling_type": 2}),
        (IK, "--yarn-orig-ctx 32768", {"context.yarn_orig_ctx": 32768}),
        (IK, "-rtr", {"model.repack_tensors": 1, "model.use_mmap": 0}),
        (IK, "--no-mmap", {"model.use_mmap": 0}),
        (IK, "--mlock", {"model.use_mlock": 1}),
        (IK, "-mla 1", {"model.mla": 1, "context.mla_attn": 1}),
        (IK, "-amb 512", {"model.amb": 512, "context.attn_max_batch": 512}),
        (IK, "-amb 64", {"model.amb": 128, "context.attn_max_batch": 128}),
        (IK, "-no-fmoe", {"context.fused_moe_up_gate": 0}),
        (IK, "-ser 6,0.4", {"context.min_experts": 6, "context.thresh_experts": 0.4}),
        (IK, "-no-ooae", {"context.only_active_experts": 0}),
        (IK, "-smf32", {"context.type_reduce": "f32"}),
        (
            IK,
            "-ctk-first q8_0,4",
            {
                "model.type_k_first": "q8_0",
                "model.n_k_first": 4,
                "context.type_k_first": "q8_0",
                "context.n_k_first": 4,
            },
        ),
    ],
)
def test_a_flag_sets_what_the_server_sets(
    flavour: Flavour, words: str, expected: dict[str, float | str]
) -> None:
    found = followed(flavour, *words.split()).parameters
    assert {p.name: p.value for p in found} == expected
    assert {p.flag for p in found} == {words.split()[0]}


def test_flags_of_placement_are_followed() -> None:
    assert followed(LLAMA, "-ts", "3/1").tensor_split == "3,1"
    assert followed(IK, "--numa", "isolate").numa == 2
    assert followed(LLAMA, "-ncffn", "2").overrides == (r"blk\.(0|1)\.ffn_(up|down|gate)\.=CPU",)


@pytest.mark.parametrize(
    ("flavour", "words"),
    [
        (LLAMA, ("--poll", "0")),
        (LLAMA, ("-C", "ff")),
        (IK, ("-op", "26,0")),
        (LLAMA, ("--lora", "adapter.gguf")),  # let through by --allow-unsafe-args
        (IK, ("--override-kv", "a=int:1")),
        (LLAMA, ("-rtr",)),  # another engine's
    ],
)
def test_what_cannot_be_followed_is_refused_by_name(
    flavour: Flavour, words: tuple[str, ...]
) -> None:
    with pytest.raises(PrerequisiteError, match=f"cannot follow `{words[0]}`") as caught:
        followed(flavour, *words)
    assert "method: live" in str(caught.value.hint)


def test_what_is_the_server_s_alone_is_named() -> None:
    words = ("--no-warmup", "--swa-full", "--ctx-checkpoints", "4")
    assert of_the_server(LLAMA, words) == ("--no-warmup", "--ctx-checkpoints")
    assert [p.name for p in followed(LLAMA, *words).parameters] == ["context.swa_full"]


def test_a_draft_runs_with_its_target_s_flags_but_for_where_tensors_go() -> None:
    target = ModelArgs(extra=("--swa-full", "-ncffn", "4", "-lm", "none"))
    assert ModelArgs().as_draft_of(target).extra == ("--swa-full", "-lm", "none")
    ik = ModelArgs(extra=("-rtr", "-mla", "3"))
    own = ModelArgs(extra=("-mla", "1"))
    assert own.as_draft_of(ik).extra == ("-rtr", "-mla", "1")


def an_example(option: Option) -> tuple[str, ...]:
    """The flag with a value of its form."""
    if option.value is None:
        return (option.spellings[0],)
    tried = ("1", "1,2", "f16,1", "1,0.5", "1-2", "a=1", *option.value.says.split(" or "))
    return option.spellings[0], next(text for text in tried if option.value.fits(text))


@pytest.mark.engine
@pytest.mark.parametrize("name", ["bundled", pytest.param("ik_engine", marks=pytest.mark.ik)])
def test_the_library_has_what_the_table_sets(name: str, request: pytest.FixtureRequest) -> None:
    """As of the versions that were reviewed; an older one refuses what it lacks."""
    engine: Engine = request.getfixturevalue(name)
    have = parameter_names(locate(engine))
    flavour = Flavour(engine.flavour)
    options = {o.spellings: o for o in OPTIONS[flavour].values() if o.harmless}
    followed_ones = 0
    for option in options.values():
        if in_replay(option) != "yes":
            continue
        found = followed(flavour, *an_example(option)).parameters
        assert {p.name for p in found} <= have, option.name
        followed_ones += len(found)
    assert followed_ones > 15
