"""Predicted against live decode speed: drafts x n_max 2, 4, 8 on the demo pair.

Ten turns, each of: a pass of all timings, a live round of no draft and of one draft at every
length to fit overheads on, and a live round of every configuration to compare with. A machine
that slows down meanwhile (shared ones do, by a quarter from minute to minute) falls on all
alike. Predictions use medians over the turns; the interval is that of the live mean.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import mean, median, stdev

from bench.demo_score import F16_TARGET, Q8_0_TARGET, study_layout
from bench.study import Study, empty_executor
from cook.build.decide import live_runs
from cook.build.forecast import Forecast, Forecaster
from cook.build.layout import Configuration, ForecastPlan, interleaved
from cook.graph.execute import Executor
from cook.record.prompt_runs import PromptRun
from cook.scoring.racing import student_quantile

DRAFTS = ("Q8_0", "Q4_K_M", "Q2_K")
FITTED_ON = "Q4_K_M"
LENGTHS = (2, 4, 8)
TURNS = 10
MOST_ERROR, MOST_LOSS = 0.05, 0.02

Rounds = dict[str, list[dict[str, PromptRun]]]
"""By configuration, a live round a turn: prompt id -> request."""


def prediction(target: str = F16_TARGET) -> Study:
    """The median error over drafts and lengths, and what the predicted best length costs."""
    layout = study_layout(
        "replay", limit=16, tokens=128, n_max=LENGTHS, quants=DRAFTS, target=target
    )
    assert layout.forecast is not None, "asked for"
    assert layout.baseline is not None, "asked for"
    plan = _with_passes(layout.forecast, TURNS)
    every = [layout.baseline, *layout.grid]
    fitted_on = [c for c in every if c.draft is None or c.draft.name == FITTED_ON]
    with empty_executor() as executor:
        executor.run([plan.trace, *(r for d in plan.drafts for r in d.replays)])
        fitting: Rounds = {c.name: [] for c in fitted_on}
        live: Rounds = {c.name: [] for c in every}
        for turn in range(TURNS):
            executor.run([plan.verify[turn], *(d.curves[turn] for d in plan.drafts)])
            _live_round(executor, fitted_on, 1 + turn, fitting)
            _live_round(executor, every, 1 + TURNS + turn, live)
        forecaster = Forecaster(plan, executor.outcomes)
        overheads = forecaster.fitted(
            _typical(fitting[layout.baseline.name]),
            [(c.settings, _typical(fitting[c.name])) for c in fitted_on if c.settings],
            next(d for d in plan.drafts if d.draft.name == FITTED_ON),
        )
        reported = set(live[layout.baseline.name][0])
        predicted = {f.name: f for f in forecaster.forecasts(overheads, reported)}
    told = _told(predicted, {name: [_speed(r) for r in rounds] for name, rounds in live.items()})
    return replace(told, lines=(f"target {target}", *told.lines))


def prediction_in_cache() -> Study:
    """The same with the q8_0 target, which fits in a large cache."""
    return prediction(Q8_0_TARGET)


def _with_passes(plan: ForecastPlan, passes: int) -> ForecastPlan:
    return replace(
        plan,
        verify=tuple(replace(plan.verify[0], turn=turn) for turn in range(passes)),
        drafts=tuple(
            replace(d, curves=tuple(replace(d.curves[0], turn=turn) for turn in range(passes)))
            for d in plan.drafts
        ),
    )


def _live_round(
    executor: Executor, every: Sequence[Configuration], repeat: int, found: Rounds
) -> None:
    """One more live round of each configuration, in turn."""
    turn = [replace(c, rounds=tuple(replace(r, repeat=repeat) for r in c.rounds)) for c in every]
    executor.run(interleaved(turn))
    for configuration in turn:
        found[configuration.name].append(live_runs(configuration, executor))


def _typical(rounds: Sequence[dict[str, PromptRun]]) -> dict[str, PromptRun]:
    """Every request with the median of its times over the turns."""

    def middle(name: str, time: Callable[[PromptRun], float]) -> float:
        return median(time(found[name]) for found in rounds)

    return {
        name: replace(
            run,
            predicted_ms=middle(name, lambda r: r.predicted_ms),
            prompt_ms=middle(name, lambda r: r.prompt_ms),
            wall_ms=middle(name, lambda r: r.wall_ms),
        )
        for name, run in rounds[0].items()
    }


def _speed(runs: dict[str, PromptRun]) -> float:
    """Decoded tokens a second of one round."""
    tokens = sum(run.predicted_n - 1 for run in runs.values())
    return 1000 * tokens / sum(run.predicted_ms for run in runs.values())


def _half_width(values: Sequence[float]) -> float:
    """Of the 95 % interval of the mean over the turns."""
    return float(student_quantile(0.975, len(values) - 1) * stdev(values) / len(values) ** 0.5)


def _told(predicted: dict[str, Forecast], live: dict[str, list[float]]) -> Study:
    lines = [f"predicted / live decode t/s, {TURNS} live repeats in turn:"]
    errors, inside = [], 0
    for name, speeds in live.items():
        guess = predicted[name].decode_speed
        centre = mean(speeds)
        half = _half_width(speeds)
        error = guess / centre - 1
        within = abs(guess - centre) <= half
        inside += within
        if name != "no draft":
            errors.append(abs(error))
        lines.append(
            f"  {name:16} {guess:7.1f} / {centre:7.1f} ± {half:.1f} (95 %), {error:+.1%}"
            + (", inside" if within else "")
        )
    loss = 0.0
    for draft in DRAFTS:
        names = [f"{draft} n_max={n}" for n in LENGTHS]
        chosen = max(names, key=lambda n: predicted[n].decode_speed)
        best = max(names, key=lambda n: mean(live[n]))
        turns = [c / b - 1 for c, b in zip(live[chosen], live[best], strict=True)]
        half = _half_width(turns)
        cost, surely = -mean(turns), max(0.0, -mean(turns) - half)
        loss = max(loss, surely)
        lines.append(
            f"  {draft}: predicted best {chosen}, live best {best}, {cost:.1%} ± {half:.1%} lost"
        )
    middle = median(errors)
    lines.append(
        f"prediction: median error {middle:.1%} over {len(errors)} (at most {MOST_ERROR:.0%}), "
        f"{inside} of {len(live)} inside the live interval; the best length surely costs "
        f"{loss:.1%} (at most {MOST_LOSS:.0%})"
    )
    return Study(tuple(lines), middle <= MOST_ERROR and loss <= MOST_LOSS)
