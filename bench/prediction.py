"""Predicted against live decode speed, out of sample: pairs x engines x draft lengths.

Turns, each of: a pass of all timings, and a live round of every configuration. Overheads are
fitted on the requests of no draft and of one draft, on half of the prompts; predictions and live
runs are compared on the other half. A machine that slows down meanwhile (shared ones do, by a
quarter from minute to minute) falls on all alike. Predictions use medians over the turns; beside
the error stands the scatter of the live runs themselves.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import mean, median, stdev

from bench.demo_score import F16_TARGET, Q8_0_TARGET, study_layout
from bench.proportions import DENSE, TARGET, pair_folder, proportions_layout, write_recipe
from bench.proportions import DRAFTS as FIRST_LAYERS
from bench.random_model import Shape
from bench.study import Study, empty_executor, engine_names
from cook.build.decide import fitted_on, live_runs
from cook.build.forecast import Forecaster
from cook.build.layout import Configuration, ForecastPlan, Layout, interleaved
from cook.graph.execute import Executor
from cook.record.prompt_runs import PromptRun
from cook.scoring.racing import student_quantile
from cook.steps.curve import CurveStep

DRAFTS = ("Q8_0", "Q4_K_M", "Q2_K")
FITTED_ON = "Q4_K_M"
LENGTHS = (2, 4, 8)
TURNS = 10
MOST_MEDIAN, MOST_ERROR, MOST_LOSS = 0.05, 0.10, 0.02

Runs = Mapping[str, PromptRun]
Rounds = dict[str, list[Runs]]
"""By configuration, its live requests of each turn: prompt id -> request."""


@dataclass(frozen=True)
class Compared:
    """A configuration, in decoded tokens a second; ``live`` of each turn."""

    name: str
    draft: str | None
    n_max: int
    predicted: float
    live: tuple[float, ...]

    @property
    def error(self) -> float:
        """predicted / live - 1."""
        return self.predicted / mean(self.live) - 1

    @property
    def scatter(self) -> float | None:
        """Spread of one live run, as a share; None where there was one only."""
        return stdev(self.live) / mean(self.live) if len(self.live) > 1 else None


def prediction(target: str = F16_TARGET) -> Study:
    """The demo pair on every engine at hand."""
    pair = f"demo, {target}"
    return _study(
        pair,
        lambda engine: study_layout(
            "replay",
            limit=16,
            tokens=128,
            n_max=LENGTHS,
            quants=DRAFTS,
            target=target,
            engine=engine,
        ),
        FITTED_ON,
    )


def prediction_in_cache() -> Study:
    """The same with the q8_0 target, which fits in a large cache."""
    return prediction(Q8_0_TARGET)


def prediction_dense() -> Study:
    """A small dense F16 pair of another architecture than the demo's, on prompts of 256 tokens."""
    return _of_first_layers("dense F16", DENSE, 256, turns=5)


def prediction_in_proportion(tokens: int) -> Study:
    """The pair of real proportions on prompts of ``tokens`` tokens."""
    return _of_first_layers("real proportions", TARGET, tokens, turns=3)


def _of_first_layers(pair: str, shape: Shape, tokens: int, turns: int) -> Study:
    threads = len(os.sched_getaffinity(0))
    with pair_folder(shape) as folder:
        recipe = write_recipe(folder, tokens, n_max=LENGTHS, shape=shape, threads=threads)
        return _study(
            f"{pair}, {tokens} tokens",
            partial(proportions_layout, recipe),
            FIRST_LAYERS[1],
            turns=turns,
        )


def _study(pair: str, lay: Callable[[str], Layout], fitted: str, turns: int = TURNS) -> Study:
    studies = [
        told(f"{pair} x {name}", compared(lay(name), fitted, turns), turns)
        for name in engine_names()
    ]
    return Study(
        tuple(line for study in studies for line in study.lines),
        all(study.within for study in studies),
    )


def compared(layout: Layout, fitted: str, turns: int) -> list[Compared]:
    """Every configuration of ``layout``, on the prompts that nothing was fitted on.

    ``fitted``: the draft whose live requests overheads are fitted on, beside those of no draft.
    """
    assert layout.forecast is not None, "asked for"
    assert layout.baseline is not None, "asked for"
    plan = with_passes(layout.forecast, turns)
    every = [layout.baseline, *layout.grid]
    with empty_executor() as executor:
        executor.run([plan.trace, *(r for d in plan.drafts for r in d.replays)])
        forecaster = Forecaster(plan, executor.outcomes)
        live: Rounds = {c.name: [] for c in every}
        for turn in range(turns):
            executor.run(plan.timing(turn))
            _live_round(executor, every, 1 + turn, live)
        for failure in executor.outcomes.failures.values():
            raise failure.error
        prompts, _ = fitted_on(layout.baseline)
        typical = {name: _typical(rounds) for name, rounds in live.items()}
        overheads = forecaster.fitted(
            _of(typical[layout.baseline.name], prompts),
            [
                (c.settings, _of(typical[c.name], prompts))
                for c in layout.grid
                if c.settings and c.draft is not None and c.draft.name == fitted
            ],
            next(d for d in plan.drafts if d.draft.name == fitted),
        )
        judged = set(typical[layout.baseline.name]) - prompts
        predicted = {f.name: f for f in forecaster.forecasts(overheads, judged)}
        return [
            Compared(
                name=c.name,
                draft=c.draft.name if c.draft is not None else None,
                n_max=c.settings.n_max if c.settings else 0,
                predicted=predicted[c.name].decode_speed,
                live=tuple(
                    _speed(forecaster.counted_alike(c.key, tuple(_of(runs, judged).values())))
                    for runs in live[c.name]
                ),
            )
            for c in every
        ]


def with_passes(plan: ForecastPlan, passes: int) -> ForecastPlan:
    def more(curves: Sequence[CurveStep]) -> tuple[CurveStep, ...]:
        return tuple(replace(curves[0], turn=turn) for turn in range(passes))

    return replace(
        plan,
        verify=more(plan.verify),
        plain=more(plan.plain),
        drafts=tuple(replace(d, curves=more(d.curves)) for d in plan.drafts),
    )


def _live_round(
    executor: Executor, every: Sequence[Configuration], repeat: int, found: Rounds
) -> None:
    """One more live round of each configuration, in turn."""
    turn = [replace(c, rounds=tuple(replace(r, repeat=repeat) for r in c.rounds)) for c in every]
    executor.run(interleaved(turn))
    for configuration in turn:
        found[configuration.name].append(live_runs(configuration, executor))


def _of(runs: Runs, prompts: set[str] | frozenset[str]) -> dict[str, PromptRun]:
    return {name: run for name, run in runs.items() if name in prompts}


def _typical(rounds: Sequence[Runs]) -> dict[str, PromptRun]:
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


def _speed(runs: Sequence[PromptRun]) -> float:
    """Decoded tokens a second of one round."""
    return 1000 * sum(run.predicted_n - 1 for run in runs) / sum(run.predicted_ms for run in runs)


def _half_width(values: Sequence[float]) -> float:
    """Of the 95 % interval of the mean over the turns; infinite for a single one."""
    if len(values) < 2:
        return float("inf")
    return float(student_quantile(0.975, len(values) - 1) * stdev(values) / len(values) ** 0.5)


def told(what: str, found: Sequence[Compared], turns: int) -> Study:
    """Every configuration, then errors by draft length, then what the predicted best costs."""
    lines = [f"{what}: predicted / live decode t/s, {turns} live repeats in turn:"]
    for one in found:
        scatter = f"live scatter {one.scatter:.1%}" if one.scatter is not None else "one live run"
        lines.append(
            f"  {one.name:20} {one.predicted:8.2f} / {mean(one.live):8.2f}, "
            f"{one.error:+.1%}; {scatter}"
        )
    lines.append(f"{what}: |predicted / live - 1| on prompts that nothing was fitted on:")
    groups = {"no draft": [c for c in found if c.draft is None]}
    for n_max in sorted({c.n_max for c in found if c.draft is not None}):
        groups[f"drafts n_max={n_max}"] = [c for c in found if c.draft and c.n_max == n_max]
    for name, group in groups.items():
        errors = [abs(c.error) for c in group]
        scatters = [c.scatter for c in group if c.scatter is not None]
        beside = f"{median(scatters):.1%}" if scatters else "unknown"
        lines.append(
            f"  {name:20} median {median(errors):.1%}, worst {max(errors):.1%} "
            f"of {len(errors)}; scatter of a live run {beside}"
        )
    loss, about = _loss(found)
    every = [abs(c.error) for c in found]
    lines += about
    lines.append(
        f"{what}: median error {median(every):.1%} (at most {MOST_MEDIAN:.0%}), worst "
        f"{max(every):.1%} (at most {MOST_ERROR:.0%}); the best length surely costs {loss:.1%} "
        f"(at most {MOST_LOSS:.0%})"
    )
    within = median(every) <= MOST_MEDIAN and max(every) <= MOST_ERROR and loss <= MOST_LOSS
    return Study(tuple(lines), within)


def _loss(found: Sequence[Compared]) -> tuple[float, list[str]]:
    """What the predicted best length of each draft surely loses on its live best, at most."""
    loss, lines = 0.0, []
    for draft in dict.fromkeys(c.draft for c in found if c.draft is not None):
        mine = [c for c in found if c.draft == draft]
        chosen = max(mine, key=lambda c: c.predicted)
        best = max(mine, key=lambda c: mean(c.live))
        turns = [c / b - 1 for c, b in zip(chosen.live, best.live, strict=True)]
        half = _half_width(turns)
        loss = max(loss, -mean(turns) - half)
        lines.append(
            f"  {draft}: predicted best n_max={chosen.n_max}, live best n_max={best.n_max}, "
            f"{-mean(turns):.1%} ± {half:.1%} lost"
        )
    return max(0.0, loss), lines
