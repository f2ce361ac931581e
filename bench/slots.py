"""Requests in parallel: predicted against live, on servers of 1, 2 and 4 slots.

What live steps take of what was timed is told by one slot on half of the prompts; every figure of
several slots is judged on runs that tell nothing of it, and that of one slot on the other half.
Live runs of all take turns, so that what the machine does meanwhile falls on all.
"""

from __future__ import annotations

from statistics import median

from bench.demo_score import UNPACKED_TARGET, study_layout
from bench.study import Study, empty_executor
from cook.build.forecast import Forecaster
from cook.build.slot_speeds import SlotForecaster, parallel_run, slot_plan, tokens_per_s
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
        plan = layout.forecast
        (draft,) = plan.drafts
        parallel = slot_plan(plan, draft, SLOTS)
        executor.run([*plan.steps(), *parallel.steps()])
        forecaster = Forecaster(plan, executor.outcomes)
        order = [head.id for head in forecaster.trace.heads]
        ran: dict[tuple[int, str], list[LiveStep]] = {}
        for turn in range(turns):
            for count in SLOTS:
                for one in every:
                    step = parallel_run(one, count, order, repeat=1 + turn)
                    executor.run([step])
                    ran.setdefault((count, one.name), []).append(step)
        for failure in executor.outcomes.failures.values():
            raise failure.error

        def live_speeds(count: int, name: str, only: set[str]) -> list[float]:
            outcomes = (executor.outcomes.result(step) for step in ran[count, name])
            return [tokens_per_s(outcome, only) for outcome in outcomes if outcome is not None]

        asked = set(order)
        fitted = set(order[::2])
        timed = SlotForecaster(forecaster, parallel)
        factors = []
        for one in every:
            served = timed.served(1, one.settings, fitted)
            assert served is not None, "nothing failed"
            factors.append(served.tokens_per_s / median(live_speeds(1, one.name, fitted)))
        predicting = SlotForecaster(forecaster, parallel, median(factors))
        lines = [f"demo, {target}: predicted / live t/s of all slots, {turns} live runs in turn:"]
        errors: dict[int, list[float]] = {count: [] for count in SLOTS}
        for count in SLOTS:
            judged = asked - fitted if count == 1 else asked
            for one in every:
                served = predicting.served(count, one.settings, judged)
                assert served is not None, "nothing failed"
                live = live_speeds(count, one.name, judged)
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
