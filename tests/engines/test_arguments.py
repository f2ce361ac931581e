"""What can be set for a target can be set for a draft, in each engine's own words."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cook.engines.arguments import Arguments
from cook.engines.base import DraftSettings, ModelArgs, ServerJob
from cook.engines.process.supervisor import Supervisor
from cook.engines.server import Server
from cook.errors import InputError, PrerequisiteError, StepError
from cook.formats.heads import HeadKind
from cook.paths import demo_dir

Make = Callable[..., Any]
Words = Callable[..., Any]
BOTH = ["llama.cpp", "ik_llama.cpp"]
NONE = ModelArgs()
GPU = ("-ngl", "--gpu-layers")


@pytest.fixture
def words(standin_engine: Make, tmp_path: Path) -> Words:
    """``words(flavour, draft_args, target_args, flags=..., **job)``: the server's command."""

    def make(
        flavour: str,
        own: ModelArgs = NONE,
        target: ModelArgs = NONE,
        /,
        *,
        flags: Callable[[str], bool] = bool,
        more: tuple[str, ...] = (),
        **given: Any,
    ) -> list[str]:
        engine = standin_engine("silent", "server", flavour=flavour, name=str(len(made)))
        made.append(engine)
        offered = (*filter(flags, engine.facts.flags["server"]), *more)
        facts = replace(engine.facts, flags={**engine.facts.flags, "server": offered})
        job = ServerJob(tmp_path / "t", target, 512, tmp_path / "d", own, DraftSettings(4))
        return list(type(engine)("x", facts).server_command(replace(job, **given), 1, None))

    made: list[Any] = []
    return make


@pytest.fixture
def command(words: Words) -> Words:
    """The same: what follows the target's own arguments."""
    return lambda *args, **given: " ".join(words(*args, **given)).partition("--spec-type ")[2]


OF_FOUR = "n_max=4,n_min=0,p_min=0"


@pytest.mark.parametrize(
    ("flavour", "kind", "file", "expected"),
    [
        ("llama.cpp", HeadKind.MTP, "t", "draft-mtp"),
        ("llama.cpp", HeadKind.MTP, "d", "draft-mtp"),
        ("llama.cpp", HeadKind.DFLASH, "d", "draft-dflash"),
        ("llama.cpp", HeadKind.DSPARK, "d", "draft-dspark"),
        ("llama.cpp", HeadKind.ASSISTANT, "d", "draft-mtp"),
        ("llama.cpp", HeadKind.EAGLE3, "d", "draft-eagle3"),
        ("ik_llama.cpp", HeadKind.MTP, "t", f"mtp:{OF_FOUR}"),
        ("ik_llama.cpp", HeadKind.MTP, "d", f"mtp:{OF_FOUR}"),
        ("ik_llama.cpp", HeadKind.DFLASH, "d", f"dflash:{OF_FOUR}"),
        ("ik_llama.cpp", HeadKind.DSPARK, "d", f"dspark:{OF_FOUR}"),
        ("ik_llama.cpp", HeadKind.ASSISTANT, "d", f"mtp:{OF_FOUR}"),
    ],
)
def test_a_head_is_said_by_its_kind(
    words: Words, tmp_path: Path, flavour: str, kind: HeadKind, file: str, expected: str
) -> None:
    """The head inside of the target's file is no second model."""
    two = ModelArgs(threads=2)
    command = words(flavour, two, two, draft=tmp_path / file, head=kind)
    assert command[command.index("--spec-type") + 1] == expected
    assert (str(tmp_path / "d") in command) is (file == "d")
    assert "--draft-params" not in command


Args = dict[str, Any]
EXPS, OWN_EXPS = {"override_tensor": ("exps=CPU",)}, {"override_tensor": (r"\.ffn_.*_exps\.=CPU",)}
TWO = {"override_tensor": ("exps=CPU", "a|b=CPU")}
Q8 = {"cache_type_k": "q8_0", "cache_type_v": "q8_0"}
NO_FLASH = {"flash_attention": False}


@pytest.mark.parametrize(
    ("own", "target", "end"),
    [
        ({"n_gpu_layers": 9}, {}, "--spec-draft-ngl 9"),
        (TWO, {}, "".join(f" --spec-draft-override-tensor {o}" for o in TWO["override_tensor"])),
        ({"cpu_moe": True}, {}, "--spec-draft-cpu-moe"),
        ({"n_cpu_moe": 3}, {}, "--spec-draft-n-cpu-moe 3"),
        ({"devices": ("A", "B")}, {}, "--spec-draft-device A,B"),
        ({"cache_type_k": "q8_0"}, {}, "--spec-draft-type-k q8_0"),
        ({"cache_type_v": "bf16"}, {}, "--spec-draft-type-v bf16"),
        ({"threads": 2}, {}, "--spec-draft-threads 2"),
        ({"threads_batch": 2}, {}, "--spec-draft-threads-batch 2"),
        ({"extra": ("--spec-draft-poll", "0")}, {}, "--spec-draft-poll 0"),
        # llama-server has one setting for both models.
        ({"batch": 64}, {"batch": 64}, "--spec-draft-p-min 0"),
        ({"ubatch": 64}, {"ubatch": 64}, "--spec-draft-p-min 0"),
        (NO_FLASH, NO_FLASH, "--spec-draft-p-min 0"),
    ],
)
def test_mainline_s_words(own: Args, target: Args, end: str, command: Words) -> None:
    assert command("llama.cpp", ModelArgs(**own), ModelArgs(**target)).endswith(end)


@pytest.mark.parametrize(
    ("own", "target", "end"),
    [
        ({"n_gpu_layers": 9}, {}, "--n-gpu-layers-draft 9"),
        (TWO, {}, "--draft-params -ot exps=CPU -ot a|b=CPU"),
        ({"cpu_moe": True}, {}, "--draft-params -cmoe"),
        ({"n_cpu_moe": 3}, {}, "--draft-params -ncmoe 3"),
        ({"devices": ("A", "B")}, {}, "--device-draft A,B"),
        ({"cache_type_k": "q8_0"}, {}, "--cache-type-k-draft q8_0"),
        ({"cache_type_k": "q6_0"}, {}, "--cache-type-k-draft q6_0"),
        ({"cache_type_v": "bf16"}, {}, "--cache-type-v-draft bf16"),
        ({"threads": 2}, {}, "--draft-params -t 2"),
        ({"threads_batch": 2}, {}, "--draft-params -tb 2"),
        ({"batch": 64}, {}, "--draft-params -b 64"),
        ({"ubatch": 32}, {}, "--draft-params -ub 32"),
        (NO_FLASH, {}, "--draft-params -fa off"),
        ({"extra": ("--spec-draft-poll", "0")}, {}, "--draft-params --spec-draft-poll 0"),
        ({"extra": ("--no-mmap",)}, {}, "--draft-params --no-mmap"),
        # A pattern's own characters are no shell's: the engine reads them as they are.
        ({"override_tensor": ("a b=CPU",)}, {}, '--draft-params -ot "a b=CPU"'),
        ({"override_tensor": (r"k\.(1|2)\..*s=CPU",)}, {}, r"--draft-params -ot k\.(1|2)\..*s=CPU"),
        # What the draft would inherit is taken back.
        ({"cache_type_v": "q4_0"}, Q8, "--cache-type-k-draft f16 --cache-type-v-draft q4_0"),
        ({}, {"cpu_moe": True}, "--draft-params -ncmoe 0"),
        ({}, {"n_cpu_moe": 9}, "--draft-params -ncmoe 0"),
        ({"n_cpu_moe": 2}, {"n_cpu_moe": 9}, "--draft-params -ncmoe 2"),
        ({}, EXPS, "--draft-params -ncmoe 0"),
        ({"n_cpu_moe": 1}, OWN_EXPS, "--draft-params -ncmoe 1"),
        ({"override_tensor": ("x=CPU",)}, EXPS, "--draft-params -ot x=CPU -ncmoe 0"),
        ({"threads": 2}, {"threads": 8, "threads_batch": 16}, "--draft-params -t 2 -tb 2"),
    ],
)
def test_ik_s_words(own: Args, target: Args, end: str, command: Words) -> None:
    assert command("ik_llama.cpp", ModelArgs(**own), ModelArgs(**target)).endswith(end)


MTP = {"head": HeadKind.MTP}


@pytest.mark.parametrize(
    ("flavour", "own", "target", "job", "message"),
    [
        ("llama.cpp", {"batch": 64}, {}, {}, "draft args: batch"),
        ("llama.cpp", {"ubatch": 32}, {}, {}, "draft args: ubatch"),
        ("llama.cpp", {"flash_attention": False}, {}, {}, "draft args: flash_attention"),
        ("llama.cpp", {"extra": ("--no-mmap",)}, {}, {}, "draft args: extra"),
        ("llama.cpp", {"extra": ("--zzz", "-1")}, {}, {}, "--zzz would be the target's"),
        ("llama.cpp", {"rpc": ("localhost:50052",)}, {}, {}, "draft args: rpc"),
        # -cd would be read, and the target's context be taken all the same.
        ("llama.cpp", {}, {}, {"draft_context": 256}, "draft args: context cannot be set"),
        ("llama.cpp", {"cache_type_k": "q6_0"}, {}, {}, "no KV cache of type q6_0"),
        ("llama.cpp", {}, {"cache_type_k": "q6_0"}, {}, "no KV cache of type q6_0"),
        ("ik_llama.cpp", {"rpc": ("localhost:50052",)}, {}, {}, "built without RPC"),
        ("ik_llama.cpp", {"override_tensor": ('a"b=CPU',)}, {}, {}, "cannot quote"),
        ("ik_llama.cpp", {"threads": 1}, {"threads": 2}, MTP, "threads cannot be set: a head runs"),
    ],
)
def test_what_an_engine_cannot_say_is_refused(
    flavour: str, own: Args, target: Args, job: Args, message: str, command: Words
) -> None:
    kind = PrerequisiteError if "KV cache" in message or "RPC" in message else InputError
    with pytest.raises(kind, match=message):
        command(flavour, ModelArgs(**own), ModelArgs(**target), **job)


def test_a_draft_s_own_flags_are_known_by_any_spelling_and_their_values_are_none(
    words: Words,
) -> None:
    own = ("-Cd", "ff", "--spec-draft-prio", "-1")
    assert tuple(words("llama.cpp", ModelArgs(extra=own))[-4:]) == own


def test_a_context_of_the_draft_s_own_is_ik_s(words: Words) -> None:
    command = " ".join(words("ik_llama.cpp", context=2048, draft_context=512))
    assert "--ctx-size 2048" in command
    assert command.endswith("--draft-params -c 512")


@pytest.mark.parametrize(
    ("target", "draft", "context", "inside"),
    [
        ({}, {}, 2048, ""),
        ({}, {}, 16384, "-b 16384"),
        ({"batch": 4096}, {}, 16384, "-b 16384"),
        ({"batch": 32768}, {}, 16384, ""),
        ({}, {"batch": 512}, 16384, "-b 512"),
    ],
)
def test_ik_s_draft_has_a_batch_for_any_prompt(
    target: dict[str, Any],
    draft: dict[str, Any],
    context: int,
    inside: str,
    standin_engine: Make,
    tmp_path: Path,
) -> None:
    engine = standin_engine("silent", "server", flavour="ik_llama.cpp")
    one, other = ModelArgs(**target), ModelArgs(**draft)
    job = ServerJob(tmp_path / "t", one, context, tmp_path / "d", other, DraftSettings(4))
    assert " ".join(engine.server_command(job, 1, None)).partition("--draft-params ")[2] == inside
    really = engine.as_draft(other, one, context)
    assert (really.batch or 2048) == int(inside.partition(" ")[2] or target.get("batch", 2048))
    engine.check_prompts(job, 500)
    if draft:
        with pytest.raises(InputError, match="draft args: batch 512") as caught:
            engine.check_prompts(job, 600)
        assert f"`batch: {context}`" in str(caught.value.hint)
    else:
        engine.check_prompts(job, context)
    mainline = standin_engine("silent", "server", name="mainline")
    mainline.check_prompts(replace(job, draft_args=NONE), context)
    assert mainline.as_draft(NONE, one, context).batch == one.batch


def test_ik_overrides_of_the_target(words: Words) -> None:
    """Of experts they are said so that the draft can differ; of others it cannot."""
    target = ModelArgs(override_tensor=("exps=CPU",))
    command = words("ik_llama.cpp", NONE, target)
    assert "--cpu-moe" in command
    assert "--override-tensor" not in command
    command = words("ik_llama.cpp", target, target)
    assert command.count("--override-tensor") == 1
    assert "--draft-params" not in command  # inherited as it is
    target = ModelArgs(override_tensor=("attn=CPU",))
    # Without a GPU nothing changes, so nothing need be said.
    assert "--draft-params" not in words("ik_llama.cpp", NONE, target)
    with pytest.raises(InputError, match="draft takes over 'attn=CPU'") as caught:
        words("ik_llama.cpp", NONE, target, more=GPU)
    assert "cpu_moe" in str(caught.value.hint)
    # A head is where its target is, and has the same.
    assert words("ik_llama.cpp", NONE, target, more=GPU, head=HeadKind.MTP)


def test_what_older_builds_cannot_say(command: Words) -> None:
    three = ModelArgs(threads=3)
    older: dict[str, Any] = {"flags": lambda flag: flag not in ("--draft-params", "-draft")}
    assert command("ik_llama.cpp", NONE, **older)
    with pytest.raises(PrerequisiteError, match="has no --draft-params"):
        command("ik_llama.cpp", three, **older)
    older = {"flags": lambda flag: not flag.startswith("--spec-draft-t") and flag != "-td"}
    assert command("llama.cpp", three, **older).endswith("--threads-draft 3")
    with pytest.raises(PrerequisiteError, match="has no --spec-draft-threads"):
        command("llama.cpp", three, flags=lambda flag: "threads" not in flag)


def run(engine: Any, tmp_path: Path, target: ModelArgs, draft: ModelArgs) -> tuple[str, Any]:
    """The server's log after one drafted completion on the demo's models, and its answer."""
    models = demo_dir() / "target-q8_0.gguf", demo_dir() / "draft-f16.gguf"
    job = ServerJob(models[0], target, 512, models[1], draft, DraftSettings(4))
    with Server(engine, job, Supervisor(tmp_path / "logs")) as server:
        answer = server.complete("def main():", 24, ignore_eos=True)
        return server.log.read_text(errors="replace"), answer


def test_each_engine_runs_the_draft_as_asked(engine: Any, tmp_path: Path) -> None:
    caches: dict[str, Any] = {"cache_type_k": "q8_0", "cache_type_v": "q8_0"}
    asked = ModelArgs(threads=1, threads_batch=2, override_tensor=("exps=CPU",), **caches)
    loud = ("-lv", "4") if engine.flavour == "llama.cpp" else ()
    if loud:
        asked = replace(asked, n_gpu_layers=0)
    log, answer = run(engine, tmp_path, ModelArgs(threads=2, extra=loud), asked)
    assert answer.draft_n > 0
    kv = [line for line in log.splitlines() if "K (" in line and "V (" in line]
    assert any("K (f16)" in line for line in kv), kv
    assert any("K (q8_0)" in line and "V (q8_0)" in line for line in kv), kv


def test_each_engine_reads_the_draft_s_overrides(engine: Any, tmp_path: Path) -> None:
    nowhere = ModelArgs(override_tensor=("exps=NOWHERE",))
    with pytest.raises(StepError):
        run(engine, tmp_path, ModelArgs(threads=1), nowhere)


@pytest.mark.engine
def test_mainline_keeps_the_overrides_apart(bundled: Any, tmp_path: Path) -> None:
    target = ModelArgs(threads=1, override_tensor=("attn=CPU",), extra=("-lv", "5"))
    log, answer = run(bundled, tmp_path, target, ModelArgs(override_tensor=("exps=CPU",)))
    assert answer.draft_n > 0
    parts = log.split("Dumping metadata keys/values")[1:]
    placed = [
        set(re.findall(r"blk\.1\.(\w+?)_\w+\.weight \(.*overridden to CPU", part)) for part in parts
    ]
    assert [p for p in placed if p] == [{"attn"}, {"ffn"}]


@pytest.mark.ik
def test_ik_leaves_the_target_s_to_the_target(ik_engine: Any, tmp_path: Path) -> None:
    target = ModelArgs(threads=2, cache_type_k="q8_0", cache_type_v="q8_0", cpu_moe=True)
    asked = ModelArgs(threads=1, ubatch=64, batch=128, flash_attention=False)
    log, answer = run(ik_engine, tmp_path, target, asked)
    assert answer.draft_n > 0
    before, _, after = log.partition("loading draft model")
    for word, mine, other in (("n_ubatch", 64, 512), ("n_batch", 128, 512), ("flash_attn", 0, 1)):
        assert re.search(rf"{word} +?= {other}\n", before), word
        assert re.search(rf"{word} +?= {mine}\n", after), word
    assert "n_ctx         = 512" in before
    assert "n_ctx         = 512" in after
    assert "K (q8_0)" in before
    assert "K (f16)" in after


@pytest.mark.ik
def test_a_pattern_with_blanks_arrives_as_it_was_written(ik_engine: Any, tmp_path: Path) -> None:
    odd = ModelArgs(threads=1, override_tensor=(r"blk\.(0|1)\.no such [a-z]+=CPU",))
    _, answer = run(ik_engine, tmp_path, ModelArgs(threads=1), odd)
    assert answer.draft_n > 0


def test_a_flag_that_the_tool_has_not_is_refused_by_name(standin_engine: Make) -> None:
    args = Arguments(standin_engine("silent", "server"), "server")
    args.add("--no-such-flag", None)
    args.add("--no-such-flag", "1", if_known=True)
    args.add("--no-such-flag", False)
    assert len(args.argv(())) == 1
    with pytest.raises(PrerequisiteError, match=r"llama-server of engine .* has no --no-such-flag"):
        args.add("--no-such-flag", 1)
    with pytest.raises(PrerequisiteError, match="has no --no-such-flag"):
        args.add_words(("--no-such-flag=1",))

    args.add(("--no-such-flag", "--threads"), 3)
    assert args.argv(("--last",))[1:] == ("--threads", "3", "--last")


@pytest.mark.parametrize("flavour", BOTH)
def test_slots_share_out_the_context_and_ik_drafts_with_one(words: Words, flavour: str) -> None:
    command = words(flavour, slots=4, draft=None)
    assert command[command.index("--parallel") + 1] == "4"
    assert command[command.index("--ctx-size") + 1] == "2048"
    if flavour == "llama.cpp":
        assert "4" in words(flavour, slots=4)
    else:
        with pytest.raises(InputError, match="one slot only"):
            words(flavour, slots=4)


def test_an_engine_that_may_not_use_every_core_gets_its_threads(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, standin_engine: Make
) -> None:
    import cook.engines.arguments
    import cook.engines.base

    engine = standin_engine("silent", "server")
    monkeypatch.setattr(cook.engines.base, "default_threads", lambda: 8)
    monkeypatch.setattr(cook.engines.arguments, "engine_threads", lambda: 8)
    job = ServerJob(tmp_path / "t.gguf", ModelArgs(), 512)
    assert "--threads" not in engine.server_command(job, 1, None)
    monkeypatch.setattr(cook.engines.base, "default_threads", lambda: 3)
    words = engine.server_command(job, 1, None)
    assert words[words.index("--threads") + 1] == "3"
