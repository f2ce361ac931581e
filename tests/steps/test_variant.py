"""A mix that is replayed without keeping its file says what a file of it says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cook.engines.base import Engine, ModelArgs, TypeRule
from cook.formats.gguf import read_gguf
from cook.formats.trace_file import TraceFile
from cook.graph.execute import Executor
from cook.graph.step import source
from cook.paths import demo_dir
from cook.steps.quantize import QuantizeStep
from cook.steps.replay import ReplayStep, divergences, replayed
from cook.steps.trace import TRACE_FILE
from cook.steps.variant import TOP, VariantStep
from tests.workbench import trace_step

pytestmark = pytest.mark.engine

ARGS = ModelArgs(threads=1)
DRAFT = demo_dir() / "draft-f16.gguf"
Mixes = tuple[VariantStep, VariantStep]


@pytest.fixture
def variants(bundled: Engine) -> Mixes:
    trace = trace_step(bundled)
    draft = source([DRAFT])
    whole = QuantizeStep(bundled, "mix", draft, None, "Q8_0", (), (), None)
    types = {t.name: t.type_name for t in read_gguf(DRAFT).tensors}
    mixes = []
    for output in ("q8_0", "q2_K"):
        wanted = {n: "q8_0" if t == "f16" else t for n, t in types.items()}
        wanted["output.weight"] = output
        rules = (TypeRule(r"^output\.weight$", output),)
        mixes.append(replace(whole, rules=rules, expected=tuple(sorted(wanted.items()))))
    own = ReplayStep(bundled, "source", draft, trace, ARGS, top=TOP)
    large, small = (VariantStep(ReplayStep(bundled, "mix", m, trace, ARGS), own) for m in mixes)
    return large, small


def test_a_mix_says_what_its_file_says(executor: Executor, variants: Mixes, tmp_path: Path) -> None:
    outcomes, small = executor.outcomes, variants[1]
    executor.run([*variants, small.replay])
    assert not outcomes.failures
    trace = TraceFile(outcomes.artifact(small.replay.trace).file(TRACE_FILE))
    pairs = zip(
        replayed(small.replay, trace, outcomes.artifact(small)),
        replayed(small.replay, trace, outcomes.artifact(small.replay)),
        strict=True,
    )
    for (_, one), (_, other) in pairs:
        assert one.argmax.tolist() == other.argmax.tolist()
        np.testing.assert_array_equal(one.logq, other.logq)
    models = sorted(path for path in (tmp_path / "store").rglob("*.gguf"))
    assert len(models) == 1, "of the plain replay's quantize step"
    assert not list((tmp_path / "store" / "tmp").glob("*"))


def test_divergence_from_the_source_grows_with_what_is_taken_off(
    executor: Executor, variants: Mixes
) -> None:
    executor.run(variants)
    outcomes, means = executor.outcomes, []
    for step in variants:
        trace = TraceFile(outcomes.artifact(step.replay.trace).file(TRACE_FILE))
        klds = [kld for _, kld in divergences(step.replay, trace, outcomes.artifact(step))]
        assert all(kld is not None for kld in klds)
        means.append(outcomes.result(step).mean_kld)
    assert None not in means
    assert 0 <= (means[0] or 0) < 0.01 < (means[1] or 0)


def test_one_worker_takes_mix_after_mix(
    executor: Executor, variants: Mixes, tmp_path: Path
) -> None:
    executor.run(variants)
    logs = [p.read_text(errors="replace") for p in tmp_path.glob("logs/workers/*/stderr.log")]
    read = [text.count("loaded meta data with") for text in logs]
    mixes = [n for text, n in zip(logs, read, strict=True) if "draft/model.gguf" in text]
    assert mixes == [2]


def test_what_decides_a_variant_is_in_its_key(variants: Mixes) -> None:
    large, small = variants
    assert large.key != small.key
    assert replace(small, replay=replace(small.replay, prompts=("p1",))).key != small.key
    other = replace(small.own, args=ModelArgs(ubatch=64))
    assert replace(small, own=other).key != small.key
    assert replace(small, replay=replace(small.replay, name="called otherwise")).key == small.key
    on_gpu = replace(small.replay, args=ModelArgs(n_gpu_layers=9))
    assert replace(small, replay=on_gpu).key != small.key, "it reads in other batches"
