"""Forecasts are arithmetic over artifacts: counts as simulated, times as measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cook.formats.quant_types import Flavour
from cook.job.decide import Dealing
from cook.job.forecast import Forecaster
from cook.job.times import UNPRICED, TimedPlan
from cook.record.record import CandidateKey
from cook.scoring.compare import figures
from cook.scoring.ngram import NgramServer
from cook.scoring.price import Forecast
from cook.steps.replay import ngram_request
from tests.job.fabricated import Fabrication, FakeEngine, World, prompt_set
from tests.job.laid_out import layout, score

ALL = [p.id for p in prompt_set().prompts]
PICK = [p.id for p in prompt_set().prompts if p.half == "pick"]


def forecaster(
    folder: Path,
    world: World | None = None,
    *,
    run: bool = True,
    engine: FakeEngine | None = None,
    **changes: Any,
) -> tuple[Forecaster, Fabrication]:
    """Everything replayed and timed, for a score with ``changes``."""
    plan, fabrication = layout(score(**changes), engine=engine).forecast, Fabrication(folder, world)
    assert plan is not None
    if run:
        fabrication.run(plan.steps())
    return Forecaster(plan, fabrication.outcomes), fabrication


def test_no_draft_first_then_every_draft_with_every_setting(tmp_path: Path) -> None:
    found, _ = forecaster(tmp_path)
    forecasts = found.forecasts(PICK)
    assert [f.name for f in forecasts] == [
        "no draft",
        *(f"{draft} n_max={n}" for draft in ("small", "large") for n in (2, 4, 8)),
    ]
    bare = forecasts[0]
    assert (bare.key, bare.by_depth) == (CandidateKey("bundled"), ())
    for forecast in forecasts:
        assert [run.id for run in forecast.runs] == PICK
        drafted, counted = sum(d.drafted for d in forecast.by_depth), figures(forecast.runs)
        assert drafted == (counted.drafted or 0)
        assert sum(d.accepted for d in forecast.by_depth) == (counted.accepted or 0)
        assert all((run.draft_n is None) == (forecast.key.draft is None) for run in forecast.runs)


def test_rivals_are_simulated_in_the_order_of_the_trace(tmp_path: Path) -> None:
    """Priced as no draft is; whichever prompts are asked for, the server answered all before."""
    wanted = ["ngram-cache", {"type": "ngram-map-k", "size_n": 2, "size_m": 4}]
    found, fabrication = forecaster(tmp_path, World(reply_tokens=40), rivals=wanted, max_tokens=40)
    forecasts = found.forecasts(PICK)
    bare, *rivals = [f for f in forecasts if not f.key.is_file]
    assert [f.name for f in rivals] == ["ngram-cache", "ngram-map-k size_n=2 size_m=4"]
    assert [forecasts[0], *forecasts[-2:]] == [bare, *rivals], "drafts are between"
    trace = fabrication.trace_of(found.plan.trace)
    for forecast in rivals:
        assert forecast.key.ngram is not None
        server = NgramServer(forecast.key.ngram, Flavour.LLAMA_CPP)
        counted = {
            reply.head.id: server.answer(ngram_request(trace, reply, n_predict=40, context=2048))
            for reply in trace
        }
        assert [run.id for run in forecast.runs] == PICK
        assert [run.draft_n for run in forecast.runs] == [counted[i].draft_n for i in PICK]
        assert forecast.spent.draft_s == forecast.spent.mirror_s == 0
    assert bare.spent.verify_s > 0
    assert sum(run.draft_n or 0 for run in rivals[1].runs) > 0
    (again,) = (f for f in found.forecasts(PICK[:3]) if f.key == rivals[1].key)
    assert again.runs == rivals[1].runs[:3], "the server answered what came before all the same"


def test_targets_are_timed_with_their_servers_rows() -> None:
    def plan(**changes: Any) -> Any:
        return layout(score(draft={"n_max": [2, 8]}, **changes)).forecast

    target = {"source": "/models/target.gguf", "args": {}}
    shared, apart = plan(), plan(target=target, baseline={"args": {"threads": 3}})
    curves = (shared.verify, apart.verify, apart.plain)
    assert [c.rows for c in curves] == [(1, 3, 9), (3, 9), (1,)]
    assert [c.reserved for c in curves] == [(3, 9), (3, 9), ()]
    assert {draft.curve.rows for draft in shared.drafts} == {()}


def test_prompts_are_forecast_by_the_rows_that_a_server_reserves(tmp_path: Path) -> None:
    found, _ = forecaster(tmp_path, World())
    plan: Any = found.plan
    verify, outcome = replace(plan.verify, rows=(1, 3, 9)), found.curve(plan.verify)
    assert outcome is not None
    outcomes: Any = SimpleNamespace(result=lambda _: replace(outcome, read_shares=(1.0, 0.7)))
    timed = TimedPlan(replace(plan, verify=verify, plain=verify), outcomes)
    timings, drafted = timed.baseline_timings(), timed.timings(plan.drafts[0])
    assert timings is not None
    assert drafted is not None
    usual, less = (timings.prompt_s(16, rows) for rows in (3, 4))
    assert less == pytest.approx(0.7 * usual)
    assert timings.prompt_s(16) == usual
    assert drafted.reads_by_rows == timings.reads_by_rows
    assert found.reads_by_rows(replace(plan.verify, rows=(1, 3))) == ()


def test_only_who_asks_for_rivals_has_other_timings() -> None:
    plain, asked = (layout(score(**c)).forecast for c in ({}, {"rivals": "ngram-mod"}))
    assert plain.verify.key != asked.verify.key
    assert asked.verify.widths[-1] == 65, "as wide as its longest draft, and the token before"
    assert [d.replay.key for d in plain.drafts] == [d.replay.key for d in asked.drafts]


def speeds(forecasts: list[Forecast]) -> list[float]:
    return [f.figures.decode_speed or 0.0 for f in forecasts]


def test_a_draft_that_was_not_replayed_or_timed_is_left_out(tmp_path: Path) -> None:
    for part in ("replay small", "draft times small"):
        found, _ = forecaster(tmp_path / part, World(failing=(part,)))
        assert {f.key.draft for f in found.forecasts(PICK)} == {None, "large"}
    found, _ = forecaster(tmp_path / "target", World(failing=("verification curve",)))
    assert found.forecasts(PICK) == []
    found, _ = forecaster(tmp_path / "nothing", run=False)
    assert found.forecasts(PICK) == []


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


def test_steps_cost_what_was_timed_and_the_same_without_times(tmp_path: Path) -> None:
    """A slow timing costs all of them."""
    found, _ = forecaster(tmp_path / "usual")
    slow, _ = forecaster(tmp_path / "slow", World(timed=1.5))
    assert speeds(found.forecasts(ALL)) == pytest.approx(
        [1.5 * speed for speed in speeds(slow.forecasts(ALL))], rel=0.001
    )
    untimed = TimedPlan(replace(found.plan, verify=None), found.outcomes)
    assert not untimed.priced
    assert untimed.timings(found.plan.drafts[0]) == UNPRICED
    assert untimed.baseline_timings() == UNPRICED.without_draft()


def test_what_the_draft_reads_counts_as_reading_on_every_engine(tmp_path: Path) -> None:
    """A draft of 100 ms a token reads a prompt in 145 ms, which ik's server calls decoding."""
    engine = FakeEngine("ik", Flavour.IK_LLAMA_CPP)
    world = World(draft_ms={"small": 100.0, "large": 100.0}, overhead_ms=0.0)
    found, fabrication = forecaster(tmp_path, world, engine=engine)
    laid_out, dealing = layout(engine=engine), Dealing(fabrication, True, 600.0, {})
    assert laid_out.baseline is not None
    small = next(c for c in laid_out.grid if c.key.draft == "small")
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
