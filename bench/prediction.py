"""Predicted against live decode speed: drafts x n_max 2, 4, 8 on the demo pair.

Live runs are repeated in turn (every configuration once, then all again), on the prompts that
figures are reported on; overheads are fitted on one more live round of no draft and of one
draft at n_max 4, as a build does. The interval is that of the live mean over its repeats.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import mean, median, stdev

from bench.demo_score import study_menu
from bench.study import Study, empty_kitchen
from cook.graph.execute import Executor
from cook.speculation.racing import student_quantile
from cook.steps.finalists import live_runs
from cook.steps.forecast import Forecast, Overheads
from cook.steps.menu import Configuration, Menu, interleaved
from cook.steps.oven import Oven

DRAFTS = ("Q8_0", "Q4_K_M", "Q2_K")
LENGTHS = (2, 4, 8)
REPEATS = 10
MOST_ERROR, MOST_LOSS = 0.05, 0.02


def prediction() -> Study:
    """The median error over drafts and lengths, and what the predicted best length costs."""
    menu = study_menu("replay", limit=16, tokens=128, n_max=LENGTHS, quants=DRAFTS)
    assert menu.forecast is not None, "asked for"
    assert menu.baseline is not None, "asked for"
    with empty_kitchen() as kitchen:
        kitchen.run(menu.forecast.steps())
        oven = Oven(menu, menu.forecast, kitchen.outcomes, 128, 2048)
        overheads = calibrated(menu, oven, kitchen)
        reported = {run.id for run in live_runs(menu.baseline, kitchen).values()}
        predicted = {f.name: f for f in oven.forecasts(overheads, reported)}
        live = _live(kitchen, [menu.baseline, *menu.grid])
    return _told(predicted, live)


def calibrated(menu: Menu, oven: Oven, kitchen: Executor) -> Overheads:
    """As a build calibrates: no draft, and one draft at one length."""
    from cook.steps.finalists import calibrate

    leader = next(f for f in oven.forecasts(Overheads()) if f.name == "Q4_K_M n_max=4")
    return calibrate(menu, oven, leader, kitchen)[0]


def _live(kitchen: Executor, every: list[Configuration]) -> dict[str, list[float]]:
    """Decode speed of each repeat of each configuration."""
    speeds: dict[str, list[float]] = {c.name: [] for c in every}
    for repeat in range(1, REPEATS + 1):
        turn = [
            replace(c, rounds=tuple(replace(r, repeat=repeat) for r in c.rounds)) for c in every
        ]
        kitchen.run(interleaved(turn))
        for configuration in turn:
            runs = live_runs(configuration, kitchen).values()
            tokens = sum(run.predicted_n - 1 for run in runs)
            speeds[configuration.name].append(1000 * tokens / sum(r.predicted_ms for r in runs))
    return speeds


def _half_width(values: Sequence[float]) -> float:
    """Of the 95 % interval of the mean over the turns."""
    return float(student_quantile(0.975, len(values) - 1) * stdev(values) / len(values) ** 0.5)


def _told(predicted: dict[str, Forecast], live: dict[str, list[float]]) -> Study:
    lines = [f"predicted / live decode t/s, {REPEATS} live repeats in turn:"]
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
