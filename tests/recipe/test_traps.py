"""Traps of drafting, each told at its place with its mend, on the engine that has it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cook.cli.main import main
from cook.documents.tree import Keys
from cook.errors import Problem
from cook.formats.gguf import GgufFile, TensorInfo
from cook.formats.quant_types import Flavour, by_name
from cook.recipe.check import check_recipe
from cook.recipe.load import parse_recipe
from cook.recipe.traps import MODEL, TARGET, has_state, trap_problems

DRAFT: Keys = ("drafts", 0, "source")
RECIPE = """\
version: 1
name: traps
drafts:
  - {{name: small, source: small.gguf}}
score:
  target:
    source: big.gguf
    args: {{extra: [{extra}]}}
  context: {context}
  draft:
    p_min: [{p_min}]
    args: {{devices: [{devices}]}}
"""


def file(architecture: str = "qwen3", *names: str, gib: float = 1.0, **more: Any) -> GgufFile:
    """A header: one tensor of ``gib``, and others of one element each."""
    sizes = {"token_embd.weight": int(gib * 2**29), **dict.fromkeys(names, 1)}
    tensors = tuple(TensorInfo(n, (e,), by_name("f16").id, 0) for n, e in sizes.items())
    known = {
        "block_count": 32,
        "embedding_length": 4096,
        "attention.head_count": 32,
        "attention.head_count_kv": 8,
        **more,
    }
    metadata = {f"{architecture}.{k}": v for k, v in known.items()}
    return GgufFile(
        Path(f"{architecture}.gguf"),
        3,
        {"general.architecture": architecture, **metadata},
        tensors,
        32,
        (0,),
        0,
        (),
        "",
        {},
    )


def traps(
    flavour: Flavour,
    headers: dict[Keys, GgufFile] | None = None,
    *,
    extra: str = "",
    context: int = 8192,
    p_min: str = "0.0",
    devices: str = "",
    width: int = 1,
) -> list[Problem]:
    text = RECIPE.format(extra=extra, context=context, p_min=p_min, devices=devices)
    text += f"  batch_width: {width}\n"
    loaded = parse_recipe(text, Path("/recipes/traps.yaml"))
    return list(trap_problems(loaded.recipe, loaded.locations, flavour, headers or {}))


@pytest.mark.parametrize("flavour", Flavour)
def test_an_ordinary_pair_has_none(flavour: Flavour) -> None:
    assert traps(flavour, {TARGET: file(gib=40), DRAFT: file(gib=4)}) == []


@pytest.mark.parametrize(
    "target",
    [file("qwen3next"), file("mamba2"), file("newhybrid", "blk.3.ssm_conv1d.weight")],
    ids=lambda f: f.architecture,
)
def test_a_target_with_state_and_a_plain_draft_on_mainline(target: GgufFile) -> None:
    assert has_state(target)
    (found,) = traps(Flavour.LLAMA_CPP, {TARGET: target})
    assert (found.line, found.column, found.severity) == (7, 13, "warning")
    assert "whole state every round" in found.message
    assert "score.method: live" in (found.hint or "")
    assert traps(Flavour.IK_LLAMA_CPP, {TARGET: target}) == []


def test_a_target_with_state_is_recorded_a_token_at_a_time() -> None:
    (found,) = traps(Flavour.IK_LLAMA_CPP, {TARGET: file("qwen3next")}, width=2)
    assert (found.line, found.severity) == (13, "error")
    assert "a token at a time" in found.message
    assert traps(Flavour.IK_LLAMA_CPP, {TARGET: file()}, width=2) == []


def test_a_draft_that_mainline_takes_for_a_head() -> None:
    names = ("blk.0.attn_q.weight", "blk.31.nextn.eh_proj.weight")
    whole = file("qwen35moe", *names, gib=4)
    (found,) = traps(Flavour.LLAMA_CPP, {DRAFT: whole, TARGET: file(gib=40)})
    assert (found.line, found.severity) == (4, "warning")
    assert "blk.31.nextn.eh_proj.weight" in found.message
    assert "--spec-type draft-simple" in (found.hint or "")
    # In another layer it is none, and the target's own head is its own.
    inner = file("qwen3", names[0], "blk.7.nextn.eh_proj.weight", gib=4)
    assert traps(Flavour.LLAMA_CPP, {DRAFT: inner, TARGET: file("qwen3")}) == []


@pytest.mark.parametrize("flavour", Flavour)
@pytest.mark.parametrize("architecture", ["dflash", "eagle3"])
def test_a_head_drafts_for_its_own_target(flavour: Flavour, architecture: str) -> None:
    head = file(architecture, target_hidden_size=512)
    assert traps(flavour, {DRAFT: head}, context=1_000_000) == [], "no target is known"
    (found,) = traps(flavour, {DRAFT: head, TARGET: file()}, context=1_000_000)
    assert (found.line, found.severity) == (4, "error")
    assert "cannot draft for" in found.message
    (as_target,) = traps(flavour, {TARGET: head}, context=1_000_000)
    assert "head, no model" in as_target.message


def test_mainline_serves_no_more_context_than_the_target_was_trained_on() -> None:
    header = file(context_length=4096)
    (found,) = traps(Flavour.LLAMA_CPP, {TARGET: header}, context=4352)
    assert (found.line, found.severity) == (9, "warning")
    assert "beyond what the target was trained on, 4096:" in found.message
    assert traps(Flavour.LLAMA_CPP, {TARGET: header}, context=4096) == []
    assert traps(Flavour.LLAMA_CPP, {TARGET: file()}, context=4352) == [], "its header says nothing"
    assert traps(Flavour.IK_LLAMA_CPP, {TARGET: header}, context=4352) == []


def test_the_draft_s_context_is_the_target_s_on_mainline() -> None:
    header = file(gib=0.6)
    (found,) = traps(Flavour.LLAMA_CPP, {DRAFT: header}, context=131_072)
    assert (found.line, found.severity) == (9, "warning")
    assert "131072 tokens: a KV cache of 16" in found.message
    assert "q8_0" in (found.hint or "")
    assert traps(Flavour.LLAMA_CPP, {DRAFT: header}, context=4096) == []
    assert traps(Flavour.LLAMA_CPP, {DRAFT: file(gib=80)}, context=131_072) == []
    assert traps(Flavour.IK_LLAMA_CPP, {DRAFT: header}, context=131_072) == []
    # Its cache is not known, and so nothing is said of it.
    assert traps(Flavour.LLAMA_CPP, {DRAFT: file("chameleon", gib=0.6)}, context=131_072) == []


def test_a_pinned_draft_leaves_the_split_by_tensors() -> None:
    split = "-sm, tensor"
    (found,) = traps(Flavour.LLAMA_CPP, extra=split, devices="CUDA1")
    assert (found.line, found.severity) == (12, "warning")
    assert "pinned to CUDA1" in found.message
    assert "score.baseline" in (found.hint or "")
    assert traps(Flavour.LLAMA_CPP, extra=split, devices="CUDA0, CUDA1") == []
    assert traps(Flavour.LLAMA_CPP, extra="-sm, layer", devices="CUDA1") == []
    assert traps(Flavour.LLAMA_CPP, extra=split) == []


def test_flags_of_ik_that_are_read_and_do_nothing() -> None:
    (p_min,) = traps(Flavour.IK_LLAMA_CPP, p_min="0.5, 0.0")
    assert (p_min.line, p_min.severity) == (11, "warning")
    assert "0.5, 0 are one setting" in p_min.message
    (alone,) = traps(Flavour.IK_LLAMA_CPP, p_min="0.5")
    assert "it changes nothing" in alone.message
    (experts,) = traps(Flavour.IK_LLAMA_CPP, extra='-ser, "5,1"')
    assert (experts.line, experts.column) == (8, 20)
    assert "does nothing" in experts.message
    assert traps(Flavour.LLAMA_CPP, p_min="0.5") == []


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "traps.yaml"
    path.write_text(text)
    return path


def test_several_slots_are_told_where_the_flag_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (slots,) = traps_unchecked("-np")
    assert "one slot only" in slots.message
    text = RECIPE.format(extra="--parallel, '4'", context=8192, p_min="0.0", devices="")
    assert main(["recipes", "check", str(written(tmp_path, text))]) == 2
    assert "8:20" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "flavour", "told"),
    [
        ("  slots: [1, 4]\n", Flavour.IK_LLAMA_CPP, "one slot only"),
        ("    context: 2048\n", Flavour.LLAMA_CPP, "changes nothing here"),
    ],
)
def test_what_one_engine_makes_nothing_of_is_told_there(
    line: str, flavour: Flavour, told: str
) -> None:
    text = RECIPE.format(extra="", context=8192, p_min="0.0", devices="")
    loaded = parse_recipe(text + line, Path("/r/t.yaml"))
    (found,) = trap_problems(loaded.recipe, loaded.locations, flavour, {})
    assert found.line == len(text.splitlines()) + 1
    assert told in found.message
    assert found.severity == "warning"
    (other,) = set(Flavour) - {flavour}
    assert not list(trap_problems(loaded.recipe, loaded.locations, other, {}))


def test_slots_are_refused_with_a_head_on_ik() -> None:
    """There a server takes the head out, and serves on."""
    text = RECIPE.format(extra="", context=8192, p_min="0.5", devices="")
    own = text.replace("small.gguf", "target") + "  slots: [1, 4]\n"
    loaded = parse_recipe(own, Path("/r/t.yaml"))
    headers = {TARGET: file("glm4moe", "blk.0.attn_norm.weight", "blk.31.nextn.eh_proj.weight")}
    (found,) = trap_problems(loaded.recipe, loaded.locations, Flavour.IK_LLAMA_CPP, headers)
    assert found.line == len(text.splitlines()) + 1
    assert "runs a head with one slot only" in found.message
    assert found.severity == "error"


def traps_unchecked(word: str) -> list[Problem]:
    """As where the raw flag was let through: what reads it is no longer the language."""
    loaded = parse_recipe(
        RECIPE.format(extra="-ser, '5,1'", context=8192, p_min="0.0", devices=""), Path("/r/t.yaml")
    )
    score = loaded.recipe.score
    args = score.target.args.model_copy(update={"extra": (word, "4")})
    target = score.target.model_copy(update={"args": args})
    recipe = loaded.recipe.model_copy(update={"score": score.model_copy(update={"target": target})})
    return list(trap_problems(recipe, loaded.locations, Flavour.IK_LLAMA_CPP, {}))


def test_p_split_is_refused_as_what_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = RECIPE.format(extra="--spec-draft-p-split, '0.2'", context=8192, p_min="0.0", devices="")
    assert main(["recipes", "check", str(written(tmp_path, text))]) == 2
    assert "reads it and does nothing with it" in capsys.readouterr().err


def test_recipes_check_reads_the_headers_of_files_that_are_there(
    tmp_path: Path, tiny_model: Path, tiny_draft: Path
) -> None:
    text = RECIPE.format(extra="", context=4_194_304, p_min="0.0", devices="")
    text = text.replace("small.gguf", str(tiny_draft)).replace("big.gguf", str(tiny_model))
    loaded = parse_recipe(text, written(tmp_path, text))
    target, drafts = check_recipe(loaded).problems
    assert "4194304 tokens" in drafts.message
    assert "the target was trained on" in target.message
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF")
    loaded = parse_recipe(text.replace(str(tiny_draft), str(broken)), tmp_path / "r.yaml")
    found, _ = check_recipe(loaded).problems
    assert (found.line, found.message.rpartition(": ")[0]) == (4, f"{broken}: version at byte 4")


def test_the_source_of_quants_is_a_draft_too() -> None:
    text = "version: 1\nname: t\nmodel: {source: s.gguf}\nquants: [{name: A, type: Q4_0}]\n"
    loaded = parse_recipe(text, Path("/recipes/t.yaml"))
    header = file("qwen3", "blk.31.nextn.eh_proj.weight")
    (found,) = trap_problems(loaded.recipe, loaded.locations, Flavour.LLAMA_CPP, {MODEL: header})
    assert found.line == 3


def test_the_source_of_heads(tmp_path: Path) -> None:
    """A head alone is a source of heads, not of models, and of the target that it fits."""
    top = ("blk.0.attn_q.weight", "blk.31.nextn.eh_proj.weight")
    whole, alone = file("glm4moe", *top), file("glm4moe", *top[1:])
    other = file("glm4moe", *top, embedding_length=64)

    def found(source: GgufFile, target: GgufFile, flavour: Flavour, *quants: str) -> list[str]:
        text = f"version: 1\nname: h\nmodel: {{source: m.gguf}}\nquants: [{', '.join(quants)}]\n"
        loaded = parse_recipe(text + "score: {target: {source: t.gguf}}\n", Path("/r/h.yaml"))
        headers = {MODEL: source, TARGET: target}
        problems = trap_problems(loaded.recipe, loaded.locations, flavour, headers, loaded.quants)
        return [str(problem) for problem in problems]

    head, model = "{name: H, part: head, type: Q8_0}", "{name: M, type: Q8_0}"
    assert found(whole, whole, Flavour.LLAMA_CPP, head) == []
    assert found(alone, whole, Flavour.LLAMA_CPP, head) == []
    (both,) = found(alone, whole, Flavour.LLAMA_CPP, head, model)
    assert "alone: block 31, without those before, no model" in both
    assert "write `part: head` in every quant of it" in both
    (misfit,) = found(whole, other, Flavour.LLAMA_CPP, head)
    assert misfit.startswith("/r/h.yaml:3:17: error: a multi-token-prediction head alone: block 31")
    assert "it takes hidden states of 4096 numbers, and the target's have 64" in misfit
