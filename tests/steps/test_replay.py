"""Replay as a step: the whole trace, a share of it, and drafts that do not fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cook.engines.base import Engine, ModelArgs
from cook.formats.gguf_writer import SplitLimit
from cook.graph.execute import Executor
from cook.graph.step import source
from cook.paths import demo_dir
from cook.scoring.simulate import Positions
from cook.steps.quantize import QuantizeStep
from cook.steps.replay import ReplayStep, replies
from cook.steps.trace import TRACE_FILE, TraceStep, given_trace
from tests.workbench import trace_step

ARGS = ModelArgs(threads=1)
DRAFT = source([demo_dir() / "draft-f16.gguf"])


@pytest.fixture
def trace(bundled: Engine) -> TraceStep:
    return trace_step(bundled)


def texts(executor: Executor, step: ReplayStep) -> dict[str, Positions]:
    executor.run([step])
    assert not executor.outcomes.failures
    artifacts = (executor.outcomes.artifact(node) for node in (step.trace, step))
    found = replies(step, *artifacts, n_predict=24, context=512)
    return {head.id: positions for head, positions in found}


def matches(texts: dict[str, Positions]) -> dict[str, list[bool]]:
    return {name: text.match.tolist() for name, text in texts.items()}


@pytest.mark.engine
def test_a_share_says_the_same_as_the_whole(executor: Executor, trace: TraceStep) -> None:
    whole = ReplayStep(trace.engine, "draft", DRAFT, trace, ARGS)
    every = texts(executor, whole)
    assert list(every) == ["p0", "p1", "p2"]
    share = texts(executor, replace(whole, prompts=("p1",)))
    assert matches(share) == {"p1": every["p1"].match.tolist()}
    outcome = executor.outcomes.result(whole)
    assert outcome.positions == sum(text.reply - 1 for text in every.values())
    assert outcome.matches == sum(int(t.match[1 : t.reply].sum()) for t in every.values())


@pytest.mark.engine
def test_a_split_draft_says_the_same_as_the_whole(executor: Executor, trace: TraceStep) -> None:
    whole = QuantizeStep(trace.engine, "whole", DRAFT, None, "Q8_0", (), (), None)
    split = replace(whole, quant="split", split=SplitLimit(max_tensors=9))
    found = [texts(executor, ReplayStep(trace.engine, "d", d, trace, ARGS)) for d in (whole, split)]
    assert len(executor.outcomes.artifact(whole).files) == 1
    assert len(executor.outcomes.artifact(split).files) > 2
    assert matches(found[0]) == matches(found[1])


@pytest.mark.engine
def test_a_given_trace_is_as_good(executor: Executor, trace: TraceStep, tmp_path: Path) -> None:
    recorded = texts(executor, ReplayStep(trace.engine, "draft", DRAFT, trace, ARGS))
    file = tmp_path / "mine.trace"
    file.write_bytes(executor.outcomes.artifact(trace).file(TRACE_FILE).read_bytes())
    given = given_trace(file)
    again = texts(executor, ReplayStep(trace.engine, "draft", DRAFT, given, ARGS))
    assert matches(again) == matches(recorded)
    assert executor.outcomes.result(given) == executor.outcomes.result(trace)


@pytest.mark.engine
def test_a_draft_of_other_tokens_fails(
    executor: Executor, trace: TraceStep, tiny_model: Path
) -> None:
    step = ReplayStep(trace.engine, "tiny", source([tiny_model]), trace, ARGS)
    executor.run([step])
    (failure,) = executor.outcomes.failures.values()
    assert "cannot draft for target-q8_0.gguf" in failure.error.message
