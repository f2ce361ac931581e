"""The target's own text as calibration text, and the imatrix from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cook.engines.base import Engine, ModelArgs
from cook.formats.sampling import Sampling
from cook.graph.step import source
from cook.job.drafting import left_to_score, target_corpus
from cook.job.locate import SourceReader
from cook.paths import demo_dir
from cook.prompts.prompt_set import Prompt, load_prompts
from cook.recipe.load import parse_recipe
from cook.steps.corpus import TraceCorpusStep, corpus_args
from cook.steps.imatrix import CORPUS_FILE, ImatrixStep
from cook.steps.trace import TraceStep
from tests.workbench import run

PROMPTS = tuple(
    Prompt(f"p{i}", "code", f"def area_{i}(width, height):\n    return", "pick") for i in range(3)
)


@pytest.mark.engine
def test_prompts_and_replies_become_the_corpus(bundled: Engine, tmp_path: Path) -> None:
    demo = demo_dir()
    model = source([demo / "draft-f16.gguf"])
    target = source([demo / "target-q8_0.gguf"])
    args = ModelArgs(threads=1)
    trace = TraceStep(bundled, target, args, 512, PROMPTS, 60, Sampling(), chat=False)
    corpus = TraceCorpusStep(bundled, model, trace)
    imatrix = ImatrixStep(
        bundled, model, corpus, 32, None, False, 0.0, "warn", corpus_args(bundled)
    )
    outcomes = run(tmp_path, imatrix, threads=1)
    assert not outcomes.failures
    text = outcomes.artifact(corpus).file(CORPUS_FILE).read_text()
    found = outcomes.result(corpus)
    assert found is not None
    assert found.replies == 3
    assert found.text_bytes == len(text.encode())
    for prompt in PROMPTS:
        assert prompt.text in text
    assert "<|" not in text  # no token of the template's, and no end of text
    collected = outcomes.result(imatrix)
    assert collected is not None
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
def test_scored_prompts_are_never_calibrated_on(
    standin_engine: Any, tmp_path: Path, prompts: str
) -> None:
    engine = standin_engine()
    loaded = parse_recipe(RECIPE.replace("PROMPTS", prompts), tmp_path / "r.yaml")
    recipe = loaded.recipe
    assert recipe.score is not None
    reader = SourceReader(plan_only=True)
    target = reader.model(demo_dir() / "target-q8_0.gguf")
    model = reader.model(demo_dir() / "draft-f16.gguf").source
    corpus = target_corpus(engine, model, target, recipe.score)
    assert isinstance(corpus.trace, TraceStep)
    assert corpus.trace.sampling.temperature == 0.7
    calibrated = {p.text for p in corpus.trace.prompts}
    scored = {p.text for p in left_to_score(recipe, load_prompts(prompts)).prompts}
    assert calibrated
    assert scored
    assert not calibrated & scored
    plain = recipe.model_copy(update={"imatrix": None})
    assert left_to_score(plain, load_prompts(prompts)) == load_prompts(prompts)
