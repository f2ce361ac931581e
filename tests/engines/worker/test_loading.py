"""A deployed model in the worker's words: what its server is given, and nothing that is dropped."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cook.engines.base import Engine, ModelArgs
from cook.engines.environment import default_threads
from cook.engines.options import OPTIONS, Option
from cook.engines.worker.compile import locate, parameter_names
from cook.engines.worker.loading import (
    few_rows,
    follow,
    head_load,
    in_replay,
    model_load,
    of_the_server,
    without_rows,
)
from cook.engines.worker.messages import ModelLoad
from cook.errors import PrerequisiteError
from cook.formats.gguf_writer import encode, tensor_of, write_gguf_file
from cook.formats.quant_types import Flavour, by_name

MODEL = Path("/m/a.gguf")
LLAMA, IK = Flavour.LLAMA_CPP, Flavour.IK_LLAMA_CPP


def engine(flavour: Flavour, **environment: str) -> Any:
    return SimpleNamespace(flavour=str(flavour), environment=lambda: environment)


def load(flavour: Flavour, args: ModelArgs, context: int = 512) -> ModelLoad:
    return model_load(engine(flavour), MODEL, args, context)


def numbers(found: ModelLoad) -> dict[str, float | str]:
    return {p.name: p.value for p in found.parameters}


def test_threads_are_the_recipe_s_and_else_the_server_s() -> None:
    assert load(LLAMA, ModelArgs()).threads == default_threads()
    assert load(LLAMA, ModelArgs(threads=2)).threads == 2


def test_repacking_is_the_engine_s_and_a_flag_of_the_recipe_wins() -> None:
    name = "model.use_extra_bufts"
    faulty = engine(LLAMA, LLAMA_ARG_REPACK="0")
    assert name not in numbers(load(LLAMA, ModelArgs()))
    assert numbers(model_load(faulty, MODEL, ModelArgs(), 512))[name] == 0
    flagged = ModelArgs(extra=("--repack",))
    assert numbers(model_load(faulty, MODEL, flagged, 512))[name] == 1


def test_what_the_servers_set_and_the_library_does_not_is_set() -> None:
    assert numbers(load(LLAMA, ModelArgs())) == {"context.swa_full": 0, "context.no_perf": 0}
    assert numbers(load(IK, ModelArgs(ubatch=1024, batch=4096), 800)) == {
        "context.only_active_experts": 1,
        "model.mla": 3,
        "model.max_ctx_size": 800,
        "model.n_ubatch": 800,
    }
    some = model_load(engine(LLAMA), MODEL, ModelArgs(), 512, outputs=9)
    assert numbers(some)["context.n_outputs_max"] == 9
    assert numbers(some)["context.n_outputs_max_per_seq"] == 9


def test_arguments_of_the_recipe_are_the_library_s_parameters() -> None:
    args = ModelArgs(n_gpu_layers=7, cache_type_k="q8_0", cache_type_v="q4_0", flash_attention=True)
    types: dict[str, Any] = {"type_k": "q8_0", "type_v": "q4_0"}
    wanted: dict[str, Any] = {f"context.{name}": value for name, value in types.items()}
    wanted |= {"model.n_gpu_layers": 7, "context.flash_attn_type": 1}
    assert wanted.items() <= numbers(load(LLAMA, args)).items()
    found = numbers(load(IK, args)).items()
    for of in ("model", "context"):
        assert {f"{of}.{k}": v for k, v in (types | {"flash_attn": 1}).items()}.items() <= found


def test_a_head_of_ik_has_the_weights_of_the_target_that_gives_rows() -> None:
    """So that one worker reads the file once for rows, prices and replay."""
    args = ModelArgs(threads=1)
    rows = model_load(engine(IK), MODEL, args, 512, gives_rows=True)
    head = head_load(engine(IK), MODEL, args, 512, branches=32, depth=4)
    assert rows.weights == head.weights != load(IK, args).weights
    assert numbers(rows)["context.mtp"] == numbers(head)["context.mtp"] == 1
    assert "context.mtp_op_type" not in numbers(rows)
    assert numbers(head)["context.mtp_op_type"] == 1
    assert (head.context, numbers(head)["context.n_seq_max"]) == (512 + 32 * 4, 33)
    apart = head_load(engine(LLAMA), MODEL, args, 512, branches=32, depth=4)
    assert numbers(apart)["model.load_mtp"] == numbers(apart)["context.kv_unified"] == 1
    assert (rows.gives_rows, head.gives_rows, apart.gives_rows) == (True, False, False)

    for deployed in (rows, model_load(engine(LLAMA), MODEL, args, 512, gives_rows=True)):
        bare = without_rows(deployed)
        assert not bare.gives_rows
        assert bare.weights == deployed.weights
        assert numbers(bare).get("context.mtp") == (0 if deployed is rows else None)


def test_experts_stay_on_the_cpu_as_each_server_keeps_them() -> None:
    (one,) = load(LLAMA, ModelArgs(n_cpu_moe=11)).overrides
    pattern, _, where = one.rpartition("=")
    assert where == "CPU"
    for name in ("blk.0.ffn_up_exps.weight", "blk.10.ffn_gate_up_exps.weight"):
        assert re.search(pattern, name)
    for name in ("blk.11.ffn_up_exps.weight", "blk.0.ffn_up_shexp.weight", "blk.100.ffn_up_exps"):
        assert not re.search(pattern, name)
    many = tuple(rf"blk\.{i}\.ffn=CPU" for i in range(100))
    args = ModelArgs(override_tensor=("ffn_up=CPU,attn=CUDA0", *many), cpu_moe=True)
    first, second, *others, experts = load(LLAMA, args).overrides
    assert (first, second, *others) == ("ffn_up=CPU", "attn=CUDA0", *many)
    assert re.search(experts.removesuffix("=CPU"), "blk.70.ffn_down_exps.weight")
    assert numbers(load(IK, ModelArgs(cpu_moe=True)))["model.ncmoe"] == 999
    assert numbers(load(IK, ModelArgs(n_cpu_moe=3)))["model.ncmoe"] == 3


def test_rpc_servers_are_scored_live() -> None:
    with pytest.raises(PrerequisiteError, match="RPC") as caught:
        load(LLAMA, ModelArgs(rpc=("127.0.0.1:50052",)))
    assert "method: live" in str(caught.value.hint)
    assert "cook predict --link-ms" in str(caught.value.hint)


def test_a_batch_of_ik_stays_below_where_its_weights_are_quantized_again(tmp_path: Path) -> None:
    def rows(*types: str) -> int | None:
        kinds = [(by_name(name), (256, 8)) for name in types]
        tensors = [
            tensor_of(f"blk.{i}.weight", shape, kind.id, bytes(kind.tensor_bytes(shape)))
            for i, (kind, shape) in enumerate(kinds)
        ]
        write_gguf_file(tmp_path / "m.gguf", {"general.architecture": encode("llama")}, tensors)
        assert few_rows(tmp_path / "m.gguf", LLAMA) is None
        return few_rows(tmp_path / "m.gguf", IK)

    assert rows("q6_K", "f32") == 31
    assert rows("q8_0", "iq4_kt") == 23
    assert rows("iq2_kt", "iq4_kt", "q4_K") == 15
    assert few_rows(tmp_path / "absent.gguf", IK) is None


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


FIRST_KEYS: dict[str, Any] = {f"{of}.type_k_first": "q8_0" for of in ("model", "context")}
FIRST_KEYS |= {f"{of}.n_k_first": 4 for of in ("model", "context")}


@pytest.mark.parametrize(
    ("flavour", "words", "expected"),
    [
        (LLAMA, "-sm row", {"model.split_mode": 2}),
        (LLAMA, "-mg 1", {"model.main_gpu": 1}),
        (LLAMA, "-nkvo", {"context.offload_kqv": 0}),
        (LLAMA, "--kv-offload", {"context.offload_kqv": 1}),
        (LLAMA, "-lm mlock", {"model.load_mode": 2}),
        (LLAMA, "-lm auto", {"model.load_mode": -1}),
        (LLAMA, "--swa-full", {"context.swa_full": 1}),
        (LLAMA, "--no-perf", {"context.no_perf": 1}),
        (LLAMA, "--no-repack", {"model.use_extra_bufts": 0}),
        (LLAMA, "--rope-scale 4", {"context.rope_freq_scale": 0.25}),
        (LLAMA, "--rope-scaling yarn", {"context.rope_scaling_type": 2}),
        (IK, "-sm graph", {"model.split_mode": 3}),
        (IK, "--no-mmap", {"model.use_mmap": 0}),
        (IK, "-rtr", {"model.repack_tensors": 1, "model.use_mmap": 0}),
        (IK, "-mla 1", {"model.mla": 1, "context.mla_attn": 1}),
        (IK, "-amb 512", {"model.amb": 512, "context.attn_max_batch": 512}),
        (IK, "-amb 64", {"model.amb": 128, "context.attn_max_batch": 128}),
        (IK, "-no-fmoe", {"context.fused_moe_up_gate": 0}),
        (IK, "-ser 6,0.4", {"context.min_experts": 6, "context.thresh_experts": 0.4}),
        (IK, "-smf32", {"context.type_reduce": "f32"}),
        (IK, "-ctk-first q8_0,4", FIRST_KEYS),
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


def test_the_library_has_what_the_table_sets(engine: Engine) -> None:
    """As of the versions that were reviewed; an older one refuses what it does not have."""
    have = parameter_names(locate(engine))
    count = 0
    for option in {o.spellings: o for o in OPTIONS[engine.flavour].values() if o.harmless}.values():
        if in_replay(option) == "yes":
            found = followed(engine.flavour, *an_example(option)).parameters
            assert {p.name for p in found} <= have, option.name
            count += len(found)
    assert count > 15
