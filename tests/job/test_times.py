"""What steps cost: as they were timed, without a draft as no draft's server runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cook.formats.quant_types import Flavour
from cook.job.decide import Dealing
from cook.job.forecast import Forecaster
from cook.job.times import UNPRICED, TimedPlan
from cook.scoring.compare import figures
from tests.job.fabricated import Fabrication, FakeEngine, World
from tests.job.laid_out import layout
from tests.job.test_forecast import ALL, forecaster, speeds


def test_no_draft_is_forecast_with_its_own_arguments(tmp_path: Path) -> None:
    """Half of the time a step, where it may use the memory that the draft would take."""
    given: dict[str, Any] = {"baseline": {"args": {"n_gpu_layers": 99}}}
    shared, _ = forecaster(tmp_path / "shared")
    found, _ = forecaster(tmp_path / "own", World(plain_ms=10.0), **given)
    assert shared.plan.plain == shared.plan.verify, "the same steps where the arguments are"
    plain = found.plan.plain
    assert (plain.args.n_gpu_layers, plain.widths) == (99, (1,))
    assert plain.key in {step.key for step in found.plan.steps()}
    before, after = (f.forecasts(ALL) for f in (shared, found))
    first, second = speeds(after), speeds(before)
    assert first[0] == pytest.approx(2 * second[0], rel=0.02)
    assert first[1:] == second[1:]
    assert after[0].runs[0].prompt_ms < 0.6 * before[0].runs[0].prompt_ms
    failed, _ = forecaster(tmp_path / "failed", World(failing=("without a draft",)), **given)
    assert failed.forecasts(ALL) == [], "nothing to compare a draft with"


def test_steps_cost_what_was_timed_and_a_slow_timing_costs_all_of_them(tmp_path: Path) -> None:
    found, _ = forecaster(tmp_path / "usual")
    slow, _ = forecaster(tmp_path / "slow", World(timed=1.5))
    assert speeds(found.forecasts(ALL)) == pytest.approx(
        [1.5 * speed for speed in speeds(slow.forecasts(ALL))], rel=0.001
    )


def test_what_the_draft_reads_counts_as_reading_on_every_engine(tmp_path: Path) -> None:
    """A draft of 100 ms a token reads a prompt in 145 ms, which ik's server calls decoding."""
    engine = FakeEngine("ik", Flavour.IK_LLAMA_CPP)
    laid_out = layout(engine=engine)
    assert laid_out.forecast is not None
    assert laid_out.baseline is not None
    world = World(draft_ms={"small": 100.0, "large": 100.0}, overhead_ms=0.0)
    fabrication = Fabrication(tmp_path, world)
    fabrication.run(laid_out.forecast.steps())
    found = Forecaster(laid_out.forecast, fabrication.outcomes)
    small = next(c for c in laid_out.grid if c.draft is not None and c.draft.name == "small")
    dealing = Dealing(fabrication, True, 600.0, {})
    assert dealing.deal([laid_out.baseline, small], small.live.prompts)
    counted = found.with_prompt_time_separated(small.key, dealing.runs[small.key])
    live = figures(counted)
    guess = figures(next(f.runs for f in found.forecasts(ALL) if f.key == small.key))
    assert guess.decode_speed == pytest.approx(live.decode_speed, rel=0.05)
    assert live.draft_prompt_ms == pytest.approx(
        sum(100 * (1 + 0.05 * (run.prompt_n - 1)) for run in counted), rel=0.02
    )
    assert guess.draft_prompt_ms is None, "a forecast has nothing to correct"
    bare = dealing.runs[laid_out.baseline.key]
    assert found.with_prompt_time_separated(laid_out.baseline.key, bare) == tuple(bare)


def test_without_times_every_step_costs_the_same(tmp_path: Path) -> None:
    found, _ = forecaster(tmp_path)
    untimed = TimedPlan(replace(found.plan, verify=None), found.outcomes)
    assert not untimed.priced
    assert untimed.timings(found.plan.drafts[0]) == UNPRICED
    assert untimed.baseline_timings() == UNPRICED.without_draft()
