"""Traps of drafting, each reported at its place with its mend, on the engine that has it."""

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
LLAMA, IK = Flavour.LLAMA_CPP, Flavour.IK_LLAMA_CPP


def recipe_text(
    extra: str = "",
    context: int = 8192,
    p_min: str = "0.0",
    devices: str = "",
    draft: str = "small.gguf",
    target: str = "big.gguf",
    more: str = "",
) -> str:
    """Line 4 names the draft, 7 the target, 8 its raw flags, 9 the context; 13 is ``more``."""
    return f"""\
version: 1
name: traps
drafts:
  - {{name: small, source: {draft}}}
score:
  target:
    source: {target}
    args: {{extra: [{extra}]}}
  context: {context}
  draft:
    p_min: [{p_min}]
    args: {{devices: [{devices}]}}
{more}
"""


def file(architecture: str = "qwen3", *names: str, gib: float = 1.0, **more: Any) -> GgufFile:
    """A header: one tensor of ``gib``, and others of one element each."""
    sizes = {"token_embd.weight": int(gib * 2**29), **dict.fromkeys(names, 1)}
    tensors = tuple(TensorInfo(n, (e,), by_name("f16").id, 0) for n, e in sizes.items())
    known = {"block_count": 32, "embedding_length": 4096, "attention.head_count": 32}
    known |= {"attention.head_count_kv": 8, **more}
    metadata: dict[str, Any] = {f"{architecture}.{k}": v for k, v in known.items()}
    metadata["general.architecture"] = architecture
    path = Path(f"{architecture}.gguf")
    return GgufFile(path, 3, metadata, tensors, 32, (0,), 0, (), "", {})


def traps(
    flavour: Flavour, headers: dict[Keys, GgufFile] | None = None, **keys: Any
) -> list[Problem]:
    loaded = parse_recipe(recipe_text(**keys), Path("/recipes/traps.yaml"))
    return list(trap_problems(loaded.recipe, loaded.locations, flavour, headers or {}))


def only(problems: list[Problem], line: int, severity: str, message: str, hint: str = "") -> None:
    (found,) = problems
    assert (found.line, found.severity) == (line, severity)
    assert message in found.message
    assert hint in (found.hint or "")


@pytest.mark.parametrize("flavour", Flavour)
def test_an_ordinary_pair_has_none(flavour: Flavour) -> None:
    assert traps(flavour, {TARGET: file(gib=40), DRAFT: file(gib=4)}) == []
    assert traps(flavour, {TARGET: file()}, more="  batch_width: 2") == []


@pytest.mark.parametrize(
    "target",
    [file("qwen3next"), file("mamba2"), file("newhybrid", "blk.3.ssm_conv1d.weight")],
    ids=lambda f: f.architecture,
)
def test_a_target_with_state(target: GgufFile) -> None:
    """A plain draft costs it much on mainline, and it is recorded a token at a time."""
    assert has_state(target)
    found = traps(LLAMA, {TARGET: target})
    only(found, 7, "warning", "whole state every round", "score.method: live")
    assert traps(IK, {TARGET: target}) == []
    only(traps(IK, {TARGET: target}, more="  batch_width: 2"), 13, "error", "a token at a time")


def test_a_draft_that_mainline_takes_for_a_head() -> None:
    names = ("blk.0.attn_q.weight", "blk.31.nextn.eh_proj.weight")
    found = traps(LLAMA, {DRAFT: file("qwen35moe", *names, gib=4), TARGET: file(gib=40)})
    only(found, 4, "warning", "blk.31.nextn.eh_proj.weight", "--spec-type draft-simple")
    # In another layer it is none, and the target's own head is its own.
    inner = file("qwen3", names[0], "blk.7.nextn.eh_proj.weight", gib=4)
    assert traps(LLAMA, {DRAFT: inner, TARGET: file("qwen3")}) == []


@pytest.mark.parametrize("flavour", Flavour)
@pytest.mark.parametrize("architecture", ["dflash", "eagle3"])
def test_a_head_drafts_for_its_own_target(flavour: Flavour, architecture: str) -> None:
    head = file(architecture, target_hidden_size=512)
    assert traps(flavour, {DRAFT: head}, context=1_000_000) == [], "no target is known"
    found = traps(flavour, {DRAFT: head, TARGET: file()}, context=1_000_000)
    only(found, 4, "error", "cannot draft for")
    (as_target,) = traps(flavour, {TARGET: head}, context=1_000_000)
    assert "head, no model" in as_target.message


def test_mainline_serves_no_more_context_than_the_target_was_trained_on() -> None:
    header = file(context_length=4096)
    found = traps(LLAMA, {TARGET: header}, context=4352)
    only(found, 9, "warning", "beyond what the target was trained on, 4096:")
    assert traps(LLAMA, {TARGET: header}, context=4096) == []
    assert traps(LLAMA, {TARGET: file()}, context=4352) == [], "its header says nothing"
    assert traps(IK, {TARGET: header}, context=4352) == []


def test_the_draft_s_context_is_the_target_s_on_mainline() -> None:
    header = file(gib=0.6)
    found = traps(LLAMA, {DRAFT: header}, context=131_072)
    only(found, 9, "warning", "131072 tokens: a KV cache of 16", "q8_0")
    assert traps(LLAMA, {DRAFT: header}, context=4096) == []
    assert traps(LLAMA, {DRAFT: file(gib=80)}, context=131_072) == []
    assert traps(IK, {DRAFT: header}, context=131_072) == []
    # Its cache is not known, and so nothing is said of it.
    assert traps(LLAMA, {DRAFT: file("chameleon", gib=0.6)}, context=131_072) == []


def test_a_pinned_draft_leaves_the_split_by_tensors() -> None:
    split = "-sm, tensor"
    found = traps(LLAMA, extra=split, devices="CUDA1")
    only(found, 12, "warning", "pinned to CUDA1", "score.baseline")
    assert traps(LLAMA, extra=split, devices="CUDA0, CUDA1") == []
    assert traps(LLAMA, extra="-sm, layer", devices="CUDA1") == []
    assert traps(LLAMA, extra=split) == []


def test_flags_of_ik_that_are_read_and_do_nothing() -> None:
    only(traps(IK, p_min="0.5, 0.0"), 11, "warning", "0.5, 0 are one setting")
    only(traps(IK, p_min="0.5"), 11, "warning", "it changes nothing")
    (experts,) = traps(IK, extra='-ser, "5,1"')
    only([experts], 8, "warning", "does nothing")
    assert experts.column == 20
    assert traps(LLAMA, p_min="0.5") == []


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ("--parallel, '4'", ":8:20: error: "),
        ("--spec-draft-p-split, '0.2'", "reads it and does nothing with it"),
    ],
)
def test_raw_flags_that_are_refused_as_what_they_are(
    extra: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "traps.yaml").write_text(recipe_text(extra=extra))
    assert main(["recipes", "check", str(tmp_path / "traps.yaml")]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "flavour", "message"),
    [
        ("  slots: [1, 4]", IK, "one slot only"),
        ("    context: 2048", LLAMA, "changes nothing here"),
    ],
)
def test_what_one_engine_makes_nothing_of_is_reported_there(
    line: str, flavour: Flavour, message: str
) -> None:
    only(traps(flavour, more=line), 13, "warning", message)
    (other,) = set(Flavour) - {flavour}
    assert not traps(other, more=line)


def test_slots_are_refused_with_a_head_on_ik() -> None:
    """There a server takes the head out, and serves on."""
    headers = {TARGET: file("glm4moe", "blk.0.attn_norm.weight", "blk.31.nextn.eh_proj.weight")}
    found = traps(IK, headers, p_min="0.5", draft="target", more="  slots: [1, 4]")
    only(found, 13, "error", "runs a head with one slot only")


def test_recipes_check_reads_the_headers_of_files_that_are_there(
    tmp_path: Path, tiny_model: Path, tiny_draft: Path
) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF")

    def problems(draft: Path) -> tuple[Problem, ...]:
        text = recipe_text(context=4_194_304, draft=str(draft), target=str(tiny_model))
        return check_recipe(parse_recipe(text, tmp_path / "r.yaml")).problems

    target, drafts = problems(tiny_draft)
    assert "4194304 tokens" in drafts.message
    assert "the target was trained on" in target.message
    found, _ = problems(broken)
    assert (found.line, found.message.rpartition(": ")[0]) == (4, f"{broken}: version at byte 4")


def of_source(source: GgufFile, target: GgufFile, flavour: Flavour, *quants: str) -> list[str]:
    text = f"version: 1\nname: h\nmodel: {{source: m.gguf}}\nquants: [{', '.join(quants)}]\n"
    loaded = parse_recipe(text + "score: {target: {source: t.gguf}}\n", Path("/r/h.yaml"))
    headers = {MODEL: source, TARGET: target}
    problems = trap_problems(loaded.recipe, loaded.locations, flavour, headers, loaded.quants)
    return [str(problem) for problem in problems]


def test_the_source_of_quants_and_heads() -> None:
    """A source of quants is a draft too. A head alone is a source of heads, not of models, and of
    the target that it fits."""
    top = ("blk.0.attn_q.weight", "blk.31.nextn.eh_proj.weight")
    whole, alone = file("glm4moe", *top), file("glm4moe", *top[1:])
    other = file("glm4moe", *top, embedding_length=64)
    head, model = "{name: H, part: head, type: Q8_0}", "{name: M, type: Q8_0}"
    (as_draft,) = of_source(file("qwen3", *top, gib=4), file(), LLAMA, model)
    assert as_draft.startswith("/r/h.yaml:3:17: warning: the file holds blk.31.nextn.eh_proj")
    assert of_source(whole, whole, LLAMA, head) == []
    assert of_source(alone, whole, LLAMA, head) == []
    (both,) = of_source(alone, whole, LLAMA, head, model)
    assert "alone: block 31, without those before, no model" in both
    assert "write `part: head` in every quant of it" in both
    (misfit,) = of_source(whole, other, LLAMA, head)
    assert misfit.startswith("/r/h.yaml:3:17: error: a multi-token-prediction head alone: block 31")
    assert "it takes hidden states of 4096 numbers, and the target's have 64" in misfit
