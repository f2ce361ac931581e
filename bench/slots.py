"""Requests in parallel: predicted against live, on servers of 1, 2 and 4 slots.

What live runs take beyond the timings is fitted on one slot and on half of the prompts, as a build
does; every figure of several slots is judged on runs that nothing was fitted on, and that of one
slot on the other half. Timings and live runs take turns, so that what the machine does meanwhile
falls on both.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from bench.demo_score import UNPACKED_TARGET, study_layout
from bench.prediction import with_passes
from bench.study import Study, empty_executor
from cook.build.forecast import Forecaster
from cook.build.layout import Configuration
from cook.build.slot_speeds import SlotForecaster, parallel_run, slot_plan, tokens_per_s
from cook.record.prompt_runs import PromptRun
from cook.scoring.figures import merge_repeats
from cook.steps.live import LiveStep

DRAFT = "Q4_K_M"
LENGTHS = (2, 4)
SLOTS = (1, 2, 4)
TURNS = 5
MOST_SEQUENTIAL, MOST_PARALLEL = 0.05, 0.10


def slots(turns: int = TURNS, limit: int = 48, target: str = UNPACKED_TARGET) -> Study:
    """The demo pair; ``limit`` prompts, of which half run live."""
    layout = study_layout(
        "replay", limit=limit, tokens=128, n_max=LENGTHS, quants=(DRAFT,), target=target
    )
    assert layout.forecast is not None, "asked for"
    assert layout.baseline is not None, "asked for"
    every = (layout.baseline, *layout.grid)
    with empty_executor() as executor:
        plan = with_passes(layout.forecast, turns)
        (draft,) = plan.drafts
        parallel = slot_plan(plan, draft, SLOTS, passes=turns)
        executor.run([plan.trace, *draft.replays])
        forecaster = Forecaster(plan, executor.outcomes)
        order = [head.id for head in forecaster.trace.heads]
        ran: dict[tuple[int, str], list[LiveStep]] = {}
        for turn in range(turns):
            executor.run(plan.timing(turn))
            executor.run(parallel.timing(turn))
            for count in SLOTS:
                for one in every:
                    step = parallel_run(one, count, order, repeat=1 + turn)
                    executor.run([step])
                    ran.setdefault((count, one.name), []).append(step)
        for failure in executor.outcomes.failures.values():
            raise failure.error

        def runs(count: int, one: Configuration) -> dict[str, PromptRun]:
            outcomes = (executor.outcomes.result(step) for step in ran[count, one.name])
            return {run.id: run for run in merge_repeats(o.runs for o in outcomes if o)}

        typical = {one.name: runs(1, one) for one in every}
        asked = [name for name in order if name in typical[layout.baseline.name]]
        fitted = frozenset(asked[::2])
        overheads = forecaster.fitted(
            _of(typical[layout.baseline.name], fitted),
            [(c.settings, _of(typical[c.name], fitted)) for c in layout.grid if c.settings],
            draft,
        )
        predicting = SlotForecaster(forecaster, parallel, overheads)
        lines = [f"demo, {target}: predicted / live t/s of all slots, {turns} live runs in turn:"]
        errors: dict[int, list[float]] = {count: [] for count in SLOTS}
        for count in SLOTS:
            judged = set(asked) - fitted if count == 1 else set(asked)
            for one in every:
                served = predicting.served(count, one.settings, judged)
                assert served is not None, "nothing failed"
                live = [
                    tokens_per_s(outcome, judged)
                    for step in ran[count, one.name]
                    if (outcome := executor.outcomes.result(step)) is not None
                ]
                # As what is fitted is of every request's median.
                typical_live = median(live)
                errors[count].append(served.tokens_per_s / typical_live - 1)
                lines.append(
                    f"  {count} slots, {one.name:16} {served.tokens_per_s:8.1f} / "
                    f"{typical_live:8.1f}, {errors[count][-1]:+.1%}; live "
                    f"{min(live):.1f} to {max(live):.1f}"
                )
    worst = {count: max(map(abs, found)) for count, found in errors.items()}
    within = worst[1] <= MOST_SEQUENTIAL and max(worst[2], worst[4]) <= MOST_PARALLEL
    lines.append(
        "demo: worst error "
        + ", ".join(f"{found:.1%} at {count}" for count, found in worst.items())
        + f" slots (at most {MOST_SEQUENTIAL:.0%} at 1, {MOST_PARALLEL:.0%} beyond)"
    )
    return Study(tuple(lines), within)


def _of(runs: Mapping[str, PromptRun], prompts: frozenset[str]) -> dict[str, PromptRun]:
    return {name: run for name, run in runs.items() if name in prompts}
