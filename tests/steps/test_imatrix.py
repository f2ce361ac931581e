"""An imatrix that misses experts is extended, reported or refused, as the recipe says; and one of
the target's own text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cook.engines import tool_runs
from cook.engines.base import Engine
from cook.engines.process.supervisor import Supervisor
from cook.engines.tool_runs import ImatrixResult, TextJob
from cook.errors import StepError
from cook.formats.gguf import read_gguf
from cook.formats.imatrix_file import Imatrix, ImatrixEntry, read_imatrix, write_gguf
from cook.formats.quant_types import Flavour
from cook.graph.step import Source, Workbench, source
from cook.job.drafting import left_to_score, target_corpus
from cook.job.locate import SourceReader
from cook.paths import demo_dir
from cook.prompts.prompt_set import load_prompts
from cook.recipe.load import parse_recipe
from cook.steps.imatrix import CORPUS_FILE, ImatrixStep, Otherwise, TraceCorpusStep, corpus_args
from cook.steps.trace import TraceStep
from tests.workbench import run, trace_step

DRAFT = demo_dir() / "draft-f16.gguf"
ENOUGH = 8
"""Chunks after which every expert was seen."""


def imatrix(
    _engine: object, job: TextJob, output: Path, _: Supervisor, *, process_output: bool
) -> ImatrixResult:
    """Half of each tensor's experts are seen before ``ENOUGH`` chunks."""
    assert job.chunks is not None
    entries = {}
    for tensor in read_gguf(job.model).tensors:
        if tensor.name.startswith("blk.") and len(tensor.shape) > 1:
            experts = tensor.shape[2] if len(tensor.shape) > 2 else 1
            seen = np.full(experts, 9, np.float32)
            if job.chunks < ENOUGH:
                seen[: experts // 2] = 0
            sums = np.ones((experts, tensor.shape[0]), np.float32) * (seen[:, None] > 0)
            entries[tensor.name] = ImatrixEntry(sums, seen)
    write_gguf(Imatrix(entries, ("c.txt",), job.chunks, job.context, "gguf"), output)
    return ImatrixResult(job.chunks, 9.0, 0.1, 1.0, 1, ("llama-imatrix",))


def step(otherwise: Otherwise, minimum: float = 1.0) -> ImatrixStep:
    engine: Any = SimpleNamespace(name="e", flavour=Flavour.LLAMA_CPP)
    model, corpus = Source(DRAFT, "sha256:aa", 1), Source(Path("/c.txt"), "sha256:bb", 1)
    return ImatrixStep(engine, model, corpus, 512, 2, False, minimum, otherwise)


@pytest.fixture
def bench(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> Workbench:
    monkeypatch.setattr(tool_runs, "imatrix", imatrix)
    return bench


def test_it_is_extended_until_every_expert_was_seen(bench: Workbench) -> None:
    found = step("extend").run(bench)
    assert found.chunks == ENOUGH
    assert found.experts_covered == found.experts_total > 0
    extended = [w.rpartition("; ")[2] for w in found.warnings]
    assert extended == ["extended to 4 chunks", "extended to 8 chunks"]


def test_experts_without_data_are_a_warning_or_an_error_as_asked(bench: Workbench) -> None:
    found = step("warn").run(bench)
    assert found.chunks == 2
    assert 0 < (found.expert_coverage or 0) < 1
    (warning,) = found.warnings
    assert f"{found.experts_covered} of {found.experts_total} experts have data" in warning
    with pytest.raises(StepError, match="experts have data"):
        step("fail").run(bench)


def test_what_was_asked_for_is_enough(bench: Workbench) -> None:
    assert step("fail", minimum=0.0).run(bench).warnings == ()


@pytest.mark.parametrize(
    ("flavour", "parts"),
    [(Flavour.LLAMA_CPP, ("gate", "down")), (Flavour.IK_LLAMA_CPP, ("down",))],
)
def test_what_the_engine_left_out_is_named(
    flavour: Flavour, parts: tuple[str, ...], bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ik takes the statistics of `up` for `gate`, which reads the same activations."""

    def partly(_: object, job: TextJob, output: Path, *logs: Any, **how: Any) -> ImatrixResult:
        result = imatrix(_, replace(job, chunks=ENOUGH), output, *logs, **how)
        found, out = read_imatrix(output), ("blk.0.ffn_gate.", "blk.0.ffn_down.")
        kept = {n: e for n, e in found.entries.items() if not n.startswith(out)}
        write_gguf(replace(found, entries=kept), output)
        return result

    monkeypatch.setattr(tool_runs, "imatrix", partly)
    asked = step("warn")
    asked.engine.flavour = flavour
    found = asked.run(bench)
    assert found.skipped == tuple(f"blk.0.ffn_{part}.weight" for part in parts)
    assert "no data at all" in found.warnings[0]


@pytest.mark.engine
@pytest.mark.parametrize(
    "name", ["blk.0.ssm_conv1d.weight", "blk.0.ssm_a", "blk.1.nextn.eh_proj.weight"]
)
def test_what_is_never_quantized_or_is_a_head_s_lacks_no_data(
    name: str, bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """llama-imatrix sees neither, and no text would change that."""
    found = read_gguf(DRAFT)
    more = replace(found.tensors[1], name=name, shape=(64, 64))
    whole = replace(found, tensors=(*found.tensors, more))

    def all_but_that(_: object, job: TextJob, output: Path, *logs: Any, **how: Any) -> Any:
        monkeypatch.setattr("cook.steps.imatrix.read_gguf", lambda _: whole)
        return imatrix(_, replace(job, chunks=ENOUGH), output, *logs, **how)

    monkeypatch.setattr(tool_runs, "imatrix", all_but_that)
    made = step("fail").run(bench)
    assert (made.skipped, made.warnings) == ((), ())


def test_prompts_and_replies_become_the_corpus(bundled: Engine, tmp_path: Path) -> None:
    model = source([demo_dir() / "draft-f16.gguf"])
    trace = trace_step(bundled, max_tokens=60)
    corpus = TraceCorpusStep(bundled, model, trace)
    args = corpus_args(bundled)
    imatrix = ImatrixStep(bundled, model, corpus, 32, None, False, 0.0, "warn", args)
    outcomes = run(tmp_path, imatrix, threads=1)
    assert not outcomes.failures
    text = outcomes.artifact(corpus).file(CORPUS_FILE).read_text()
    found = outcomes.result(corpus)
    assert found.replies == 3
    for prompt in trace.prompts:
        assert prompt.text in text
    assert "<|" not in text  # no token of the template's, and no end of text
    collected = outcomes.result(imatrix)
    assert collected.chunks >= found.tokens // 32 - 1
    assert outcomes.ran[:2] == [trace.label, corpus.label]


RECIPE = """\
version: 1
name: own-text
model: {source: "demo://draft-f16.gguf"}
imatrix: {corpus: trace}
quants: [{name: Q4_K_M, type: Q4_K_M}]
score:
  target: {source: "demo://target-q8_0.gguf"}
  prompts: PROMPTS
  max_tokens: 32
  sampling: {temperature: 0.7, seed: 4}
"""


@pytest.mark.parametrize("prompts", ["demo", "default"])
def test_scored_prompts_do_not_calibrate(standin_engine: Any, tmp_path: Path, prompts: str) -> None:
    engine = standin_engine()
    recipe = parse_recipe(RECIPE.replace("PROMPTS", prompts), tmp_path / "r.yaml").recipe
    assert recipe.score is not None
    reader = SourceReader(plan_only=True)
    target, model = (
        reader.model(demo_dir() / name) for name in ("target-q8_0.gguf", "draft-f16.gguf")
    )
    corpus = target_corpus(engine, model.source, target, recipe.score)
    assert isinstance(corpus.trace, TraceStep)
    assert corpus.trace.sampling.temperature == 0.7
    calibrated = {p.text for p in corpus.trace.prompts}
    scored = {p.text for p in left_to_score(recipe, load_prompts(prompts)).prompts}
    assert min(len(calibrated), len(scored)) > 0
    assert not calibrated & scored
    plain = recipe.model_copy(update={"imatrix": None})
    assert left_to_score(plain, load_prompts(prompts)) == load_prompts(prompts)
