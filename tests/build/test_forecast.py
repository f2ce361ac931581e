"""Forecasts are arithmetic over artifacts: counts as simulated, times as measured and fitted."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cook.build.forecast import Forecaster
from cook.build.layout import ForecastPlan
from cook.engines.base import DraftSettings
from cook.formats.quant_types import Flavour
from cook.record.measured import Overheads
from cook.record.prompt_runs import PromptRun
from cook.record.record import CandidateKey
from cook.scoring.figures import figures
from cook.scoring.ngram import NgramServer
from cook.scoring.simulate import Positions, Profile, simulate
from cook.steps.replay import ngram_request
from tests.build.fabricated import Fabrication, FakeEngine, World, prompt_set
from tests.build.laid_out import layout, score

ALL = [p.id for p in prompt_set().prompts]
PICK = [p.id for p in prompt_set().prompts if p.half == "pick"]
REPORT = [p.id for p in prompt_set().prompts if p.half == "report"]


def forecaster(
    folder: Path, world: World | None = None, *, run: bool = True, **changes: Any
) -> tuple[Forecaster, Fabrication]:
    """Everything replayed and timed, for a score with ``changes``."""
    laid_out = layout(score(**changes))
    fabrication = Fabrication(folder, world)
    assert laid_out.forecast is not None
    if run:
        fabrication.run(laid_out.forecast.steps())
    return Forecaster(laid_out.forecast, fabrication.outcomes), fabrication


def test_no_draft_first_then_every_draft_with_every_setting(tmp_path: Path) -> None:
    found, _ = forecaster(tmp_path)
    forecasts = found.forecasts(Overheads(), PICK)
    assert [f.name for f in forecasts] == [
        "no draft",
        *(f"{draft} n_max={n}" for draft in ("small", "large") for n in (2, 4, 8)),
    ]
    bare = forecasts[0]
    assert (bare.key, bare.by_depth) == (CandidateKey("bundled"), ())
    for forecast in forecasts:
        assert [run.id for run in forecast.runs] == PICK
        assert all((run.draft_n is None) == (forecast.key.draft is None) for run in forecast.runs)


def test_counts_are_the_simulators(tmp_path: Path) -> None:
    found, fabrication = forecaster(tmp_path)
    forecast = next(f for f in found.forecasts(Overheads(), ALL) if f.name == "large n_max=4")
    replies = {r.head.id: r for r in fabrication.trace_of(found.plan.trace)}
    for run in forecast.runs:
        head = replies[run.id].head
        positions = Positions(
            head.prompt_tokens,
            head.emitted,
            fabrication.matches("large", replies[run.id]),
            eog=np.isin(replies[run.id].tokens, [2]),
            n_predict=24,
            context=2048,
        )
        counted = simulate(positions, DraftSettings(4), Profile.MAINLINE_2026_10)
        assert (run.draft_n, run.draft_n_accepted) == (counted.draft_n, counted.draft_n_accepted)
        assert (run.prompt_n, run.predicted_n) == (head.prompt_tokens, head.emitted)
    assert sum(d for d, _ in forecast.by_depth) == figures(forecast.runs).drafted
    assert sum(a for _, a in forecast.by_depth) == figures(forecast.runs).accepted


def test_rivals_are_simulated_in_the_order_of_the_trace(tmp_path: Path) -> None:
    """Priced as no draft is; whichever prompts are asked for, the server answered all before."""
    wanted = ["ngram-cache", {"type": "ngram-map-k", "size_n": 2, "size_m": 4}]
    found, fabrication = forecaster(tmp_path, World(reply_tokens=40), rivals=wanted, max_tokens=40)
    forecasts = found.forecasts(Overheads(), PICK)
    bare, *rivals = [f for f in forecasts if not f.key.is_file]
    assert [f.name for f in rivals] == ["ngram-cache", "ngram-map-k size_n=2 size_m=4"]
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
        assert forecast.priced.breakdown.draft_s == forecast.priced.breakdown.mirror_s == 0
    assert bare.priced.breakdown.verify_s > 0
    assert sum(run.draft_n or 0 for run in rivals[1].runs) > 0
    again = found.forecast_of(rivals[1].key, Overheads(), PICK[:3])
    assert again is not None
    assert again.runs == rivals[1].runs[:3]


def test_targets_without_flash_attention_are_timed_with_their_servers_rows() -> None:
    def plan(**changes: Any) -> ForecastPlan:
        found = layout(score(draft={"n_max": [2, 8]}, **changes)).forecast
        assert found is not None
        return found

    without = {"flash_attention": False}
    target = {"source": "/models/target.gguf", "args": without}
    usual, shared = plan(), plan(target=target)
    apart = plan(target=target, baseline={"args": {**without, "threads": 3}})
    assert {step.rows for step in usual.verify} == {()}
    assert {step.rows for step in shared.verify} == {(1, 3, 9)}
    assert {step.rows for step in apart.verify} == {(3, 9)}
    assert {step.rows for step in apart.plain} == {(1,)}
    assert {step.rows for draft in shared.drafts for step in draft.curves} == {()}


def test_only_who_asks_for_rivals_has_other_timings() -> None:
    plain = layout(score()).forecast
    asked = layout(score(rivals="ngram-mod")).forecast
    assert plain is not None
    assert asked is not None
    assert [s.key for s in plain.verify] != [s.key for s in asked.verify]
    assert asked.verify[0].widths[-1] == 65, "as wide as its longest draft, and the token before"
    assert [d.replays[0].key for d in plain.drafts] == [d.replays[0].key for d in asked.drafts]


def test_times_are_medians_over_passes_or_those_of_one(tmp_path: Path) -> None:
    found, _ = forecaster(tmp_path, World(drift=(1.0, 1.5, 1.1)))
    speed = {
        turn: found.forecasts(Overheads(), ALL, turn)[0].decode_speed for turn in (None, 0, 1, 2)
    }
    assert speed[1] is not None
    assert speed[0] == pytest.approx(1.5 * speed[1], rel=0.02)
    assert speed[None] == pytest.approx(speed[2], rel=0.001)


def test_overheads_add_to_every_step(tmp_path: Path) -> None:
    found, _ = forecaster(tmp_path)
    bare, with_overheads = (
        found.forecasts(overheads, ALL)
        for overheads in (Overheads(), Overheads(0.001, 0.002, 0.003, 0.5, 0.7))
    )
    for before, after in zip(bare, with_overheads, strict=True):
        for one, other in zip(before.runs, after.runs, strict=True):
            steps = one.predicted_n - 1 - (one.draft_n_accepted or 0)
            if before.key.draft is None:
                assert steps == one.predicted_n - 1
                assert other.predicted_ms - one.predicted_ms == pytest.approx(steps * 1.0)
                assert other.prompt_ms - one.prompt_ms == pytest.approx(500)
            else:
                assert other.prompt_ms - one.prompt_ms == pytest.approx(700)
                # A reply that ends inside a draft takes a step more than its tokens tell.
                rest = other.predicted_ms - one.predicted_ms - 3.0 * (one.draft_n or 0)
                assert steps * 2.0 - 1e-6 <= rest <= (steps + 1) * 2.0 + 1e-6


def test_a_draft_that_was_not_replayed_or_timed_is_left_out(tmp_path: Path) -> None:
    for part in ("replay small", "draft times small"):
        found, _ = forecaster(tmp_path / part, World(failing=(part,)))
        drafts = {f.key.draft for f in found.forecasts(Overheads(), PICK)}
        assert drafts == {None, "large"}
    found, _ = forecaster(tmp_path / "target", World(failing=("verification curve",)))
    assert found.forecasts(Overheads(), PICK) == []
    found, _ = forecaster(tmp_path / "nothing", run=False)
    assert found.forecasts(Overheads(), PICK) == []


def test_a_pass_that_failed_is_made_do_without(tmp_path: Path) -> None:
    found, _ = forecaster(tmp_path, World(failing=("pass 2",)))
    assert len(found.forecasts(Overheads(), PICK)) == 7
    assert found.forecasts(Overheads(), PICK, turn=1) == []
    noise = found.timing_noise(Overheads(), PICK)
    assert noise is not None
    assert noise.passes == 2


def test_timing_noise_is_what_passes_do_not_share(tmp_path: Path) -> None:
    drifting, _ = forecaster(tmp_path, World(drift=(1.0, 1.3, 0.8)))
    noise = drifting.timing_noise(Overheads(), PICK)
    assert noise is not None
    assert (noise.passes, noise.freedom) == (3, 4), "no draft and two drafts, three passes"
    assert 0 < noise.sd < 0.01, "a machine that is slower for a whole pass is no noise"


def test_no_noise_without_two_passes(tmp_path: Path) -> None:
    found, _ = forecaster(tmp_path, World(failing=("pass 2", "pass 3")))
    assert found.timing_noise(Overheads(), PICK) is None
    one = replace(found, plan=replace(found.plan, verify=found.plan.verify[:1]))
    assert one.timing_noise(Overheads(), PICK) is None


def test_the_floor_is_one_draft_in_two_batch_shapes(tmp_path: Path) -> None:
    found, _ = forecaster(tmp_path)
    floor = found.acceptance_floor(ALL)
    assert floor is not None
    assert floor > 0
    assert found.plan.floor is not None
    draft, _ = found.plan.floor
    same = replace(found, plan=replace(found.plan, floor=(draft, draft.replays[0])))
    assert same.acceptance_floor(ALL) == 0
    failed, _ = forecaster(tmp_path / "failed", World(failing=("in batches of",)))
    assert failed.acceptance_floor(ALL) is None
    none = replace(found, plan=replace(found.plan, floor=None))
    assert none.acceptance_floor(ALL) is None


def test_rejection_sampling_of_a_sampled_trace_only(tmp_path: Path) -> None:
    greedy, _ = forecaster(tmp_path / "greedy")
    assert not greedy.rejection(Overheads(), ALL)
    sampled, _ = forecaster(
        tmp_path / "sampled",
        World(temperature=0.8, failing=("draft times large",)),
        sampling={"temperature": 0.8},
        draft={"n_max": [2, 4], "n_min": [0, 1], "p_min": [0.0, 0.5]},
    )
    found = sampled.rejection(Overheads(), ALL)
    assert len(found) == 2, "of what was timed, the settings without n_min and p_min"
    for one in found.values():
        assert one.decode_tokens_per_s is not None
        assert 0 < one.draft_n_accepted < one.draft_n


def test_every_chain_has_its_own_text_and_the_same_times(tmp_path: Path) -> None:
    found, made = forecaster(tmp_path, sampling={"temperature": [0.0, 0.8], "top_p": [1.0, 0.9]})
    chains = found.plan.chains
    assert [c.sampling.chain for c in chains] == [
        "temperature 0.8, top_p 1",
        "temperature 0.8, top_p 0.9",
    ], "greedy is one chain whatever its top_p"
    assert len({found.plan.trace.key, *(c.trace.key for c in chains)}) == 3
    assert len([label for label in made.asked if label.startswith("trace")]) == 3
    for chain in chains:
        forecast = found.under(chain, Overheads(), PICK, REPORT)
        assert (forecast.sampling, forecast.reason) == (chain.sampling, None)
        bare, *drafts = forecast.forecasts
        assert bare.key.draft is None
        assert [one.key.draft for one in drafts] == ["small", "large"], "each at its best"
        assert set(forecast.rejection) >= {one.key for one in drafts}
        assert [run.id for run in bare.runs] == REPORT
    plan = found.plan.on(chains[0].trace)
    assert [d.curves for d in plan.drafts] == [d.curves for d in found.plan.drafts]
    assert not plan.chains


def test_drafts_that_left_the_race_are_not_replayed_elsewhere(tmp_path: Path) -> None:
    world = World(failing=("replay small",))
    found, _ = forecaster(tmp_path, world, sampling={"temperature": [0.0, 0.8]})
    (chain,) = found.plan.chains
    replays = list(found.staying().elsewhere())
    assert [step.label for step in replays] == ["replay large (bundled)"]
    forecast = found.under(chain, Overheads(), PICK, REPORT)
    assert [one.key.draft for one in forecast.forecasts] == [None, "large"]


def test_one_chain_asks_for_nothing_more() -> None:
    plan = layout(score()).forecast
    assert plan is not None
    assert plan.chains == ()
    assert list(plan.elsewhere()) == []


def test_overheads_are_fitted_from_live_runs(tmp_path: Path) -> None:
    """The made-up server takes half a millisecond a step more than was timed."""
    from cook.build.fitting import live_runs

    found, fabrication = forecaster(tmp_path, World(drift=(1.0, 1.0, 1.0)))
    laid_out = layout()
    baseline = laid_out.baseline
    assert baseline is not None
    by_length = {
        c.settings.n_max: c
        for c in laid_out.grid
        if c.draft is not None and c.settings is not None and c.draft.name == "small"
    }
    fabrication.run([*baseline.rounds, *by_length[2].rounds, *by_length[8].rounds])
    plain = live_runs(baseline, fabrication)
    drafted = [(DraftSettings(n), live_runs(by_length[n], fabrication)) for n in (2, 8)]
    draft = found.plan.drafts[0]
    fitted = found.fitted(plain, drafted, draft)
    told = {f.name: f.runs for f in found.forecasts(fitted, ALL)}
    for name, runs in (("no draft", plain), *((f"small n_max={s.n_max}", r) for s, r in drafted)):
        assert speed(told[name], runs) == pytest.approx(speed(tuple(runs.values()), runs), rel=0.02)
    assert fitted.slower * 0.02 + fitted.plain_s == pytest.approx(0.0005, abs=0.0002)
    nothing = found.fitted({}, [], draft)
    assert nothing == Overheads()


def test_replies_that_went_another_way_are_fitted_by_their_own_steps(tmp_path: Path) -> None:
    """A fifth of what the trace's text accepts was accepted less, and so many steps more taken."""
    from cook.build.fitting import live_runs

    found, fabrication = forecaster(tmp_path, World(drift=(1.0, 1.0, 1.0)))
    chosen = [c for c in layout().grid if c.draft is not None and c.draft.name == "small"]
    ends = [c for c in chosen if c.settings is not None and c.settings.n_max in (2, 8)]
    fabrication.run([step for c in ends for step in c.rounds])

    def elsewhere(run: PromptRun) -> PromptRun:
        assert run.draft_n_accepted is not None
        steps, fewer = run.predicted_n - 1 - run.draft_n_accepted, run.draft_n_accepted // 5
        assert fewer > 0
        return replace(
            run,
            draft_n_accepted=run.draft_n_accepted - fewer,
            predicted_ms=run.predicted_ms * (steps + fewer) / steps,
        )

    there = [(c.settings, live_runs(c, fabrication)) for c in ends if c.settings is not None]
    other = [(s, {name: elsewhere(run) for name, run in runs.items()}) for s, runs in there]
    draft = found.plan.drafts[0]
    as_traced, as_lived = (found.fitted({}, runs, draft) for runs in (there, other))
    speeds = [
        {f.key: f.decode_speed for f in found.forecasts(fitted, PICK) if f.key.draft == "small"}
        for fitted in (as_traced, as_lived)
    ]
    assert speeds[0] == pytest.approx(speeds[1], rel=0.02)


def test_no_draft_is_forecast_with_its_own_arguments(tmp_path: Path) -> None:
    """Half of the time a step, where it may use the memory that the draft would take."""
    given: dict[str, Any] = {"baseline": {"args": {"n_gpu_layers": 99}}}
    shared, _ = forecaster(tmp_path / "shared")
    found, _ = forecaster(tmp_path / "own", World(plain_ms=10.0), **given)
    assert shared.plan.plain == shared.plan.verify, "the same steps where the arguments are"
    assert [step.args.n_gpu_layers for step in found.plan.plain] == [99] * 3
    assert {step.widths for step in found.plan.plain} == {(1,)}
    assert {step.key for step in found.plan.plain} < {step.key for step in found.plan.steps()}
    before, after = (f.forecasts(Overheads(), ALL) for f in (shared, found))
    assert after[0].decode_speed == pytest.approx(2 * before[0].decode_speed, rel=0.02)
    assert [f.decode_speed for f in after[1:]] == [f.decode_speed for f in before[1:]]
    assert after[0].runs[0].prompt_ms < 0.6 * before[0].runs[0].prompt_ms
    failed, _ = forecaster(tmp_path / "failed", World(failing=("without a draft",)), **given)
    assert failed.forecasts(Overheads(), ALL) == [], "nothing to compare a draft with"


def speed(runs: Sequence[PromptRun], beside: Collection[str]) -> float:
    """Of the requests that are ``beside``, too."""
    found = figures([run for run in runs if run.id in beside]).decode_speed
    assert found is not None
    return found


def test_timings_that_are_too_dear_are_corrected(tmp_path: Path) -> None:
    from cook.build.fitting import live_runs

    found, fabrication = forecaster(tmp_path, World(overhead_ms=-4.0, drift=(1.0, 1.0, 1.0)))
    baseline = layout().baseline
    assert baseline is not None
    fabrication.run(baseline.rounds)
    fitted = found.fitted(live_runs(baseline, fabrication), [], found.plan.drafts[0])
    live = live_runs(baseline, fabrication)
    timed, told = (speed(found.forecasts(o, ALL)[0].runs, live) for o in (Overheads(), fitted))
    true = speed(tuple(live.values()), live)
    assert timed < 0.85 * true
    assert told == pytest.approx(true, rel=0.03)


def test_what_the_draft_reads_is_no_overhead_of_ik(tmp_path: Path) -> None:
    """A draft of 100 ms a token reads a prompt in 145 ms, which ik's server calls decoding."""
    from cook.build.fitting import live_runs

    engine = FakeEngine("ik", Flavour.IK_LLAMA_CPP)
    world = World(draft_ms={"small": 100.0, "large": 100.0}, drift=(1.0, 1.0, 1.0))
    laid_out = layout(engine=engine)
    assert laid_out.forecast is not None
    fabrication = Fabrication(tmp_path, world)
    fabrication.run(laid_out.forecast.steps())
    found = Forecaster(laid_out.forecast, fabrication.outcomes)
    chosen = [c for c in laid_out.grid if c.draft is not None and c.draft.name == "small"]
    fabrication.run([step for c in chosen for step in c.rounds])
    drafted = [(c.settings, live_runs(c, fabrication)) for c in chosen if c.settings is not None]
    fitted = found.fitted({}, drafted, found.plan.drafts[0])
    assert fitted.step_s == pytest.approx(0.0005, abs=0.008), "not 145 ms over a dozen steps"
    last = chosen[-1]
    forecast = next(f for f in found.forecasts(fitted, ALL) if f.key == last.key)
    live = figures(found.counted_alike(last.key, tuple(drafted[-1][1].values())))
    guess = figures([run for run in forecast.runs if run.id in drafted[-1][1]])
    assert guess.decode_speed == pytest.approx(live.decode_speed, rel=0.02)
    assert guess.end_to_end_speed == pytest.approx(live.end_to_end_speed, rel=0.02)
    assert live.draft_prompt_ms == pytest.approx(
        sum(100 * (1 + 0.05 * (r.prompt_n - 1)) for r in drafted[-1][1].values()), rel=0.02
    )
    assert guess.draft_prompt_ms is None, "a forecast has nothing to correct"
