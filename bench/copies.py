"""Two byte copies of one draft, measured apart: how often is one named the winner?

By forecasts (:func:`copies`), every trial times and predicts both anew, nothing stored, as a build
does, with no draft beside them; a false winner is a choice whose ties leave the other copy out. By
live runs (:func:`confirmed_copies`), both run on real servers in turn, as finalists do, and a false
winner is one that is surely faster.
"""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import median

from bench.demo_score import study_layout
from bench.study import Study, empty_executor
from cook.build.choose import Aim, ForecastErrors, choose
from cook.build.forecast import Forecaster
from cook.build.layout import Configuration
from cook.build.live_runs import LiveRuns
from cook.record.measured import Overheads
from cook.record.objective import Objective

TRIALS = 50
CONFIRMATIONS = 20
REPEATS = 2
"""Times that a confirmation runs every prompt, as a build does where it repeats its rounds."""
MOST = 0.05
CONFIDENCE = 0.95


def copies() -> Study:
    """Copies are one file under two names: equal bytes, timed one after the other."""
    layout = study_layout("replay", limit=24, tokens=96, n_max=(4,), quants=("Q4_K_M",))
    plan = layout.forecast
    assert plan is not None, "asked for"
    assert layout.prompts is not None, "asked for"
    draft = plan.drafts[0]
    prompts = [p.id for p in layout.prompts.prompts if p.half == "pick"]
    false = 0
    with empty_executor() as executor:
        executor.run([plan.trace, *draft.replays])
        for trial in range(TRIALS):
            twins = []
            for number, name in enumerate(("one", "two")):
                first = 1000 * (2 * trial + number + 1)
                curves = tuple(replace(c, name=name, turn=first + c.turn) for c in draft.curves)
                twins.append(replace(draft, draft=replace(draft.draft, name=name), curves=curves))
            verify = tuple(replace(c, turn=2000 * trial + 10 + c.turn) for c in plan.verify)
            trial_plan = replace(plan, drafts=tuple(twins), verify=verify, floor=None)
            executor.run([*trial_plan.opening(), *trial_plan.last_pass()])
            forecaster = Forecaster(trial_plan, executor.outcomes)
            noise = forecaster.timing_noise(Overheads(), prompts)
            forecasts = forecaster.forecasts(Overheads(), prompts)
            choice = choose(
                forecasts,
                Aim(Objective.DECODE_SPEED),
                (),
                {"one": 0, "two": 0},
                errors=ForecastErrors(noise.of_median if noise else None),
            )
            drafting = {f.key for f in forecasts if f.key.draft is not None}
            chosen = {choice.key, *choice.ties}
            false += len(drafting & chosen) == 1
    return Study(
        (
            f"two copies of one draft, {TRIALS} trials, each timed anew: a false winner in {false} "
            f"({false / TRIALS:.0%}), at most {MOST:.0%}",
        ),
        false <= MOST * TRIALS,
    )


def confirmed_copies() -> Study:
    """Rounds of both copies on real servers, each on a share of the prompts."""
    layout = study_layout("replay", limit=16, tokens=64, n_max=(4,), quants=("Q4_K_M",))
    (draft,) = layout.grid
    surely = 0
    widths: list[float] = []
    with empty_executor() as executor:
        for trial in range(CONFIRMATIONS):
            twins = [
                _twin(draft, name, 10 * (2 * trial + number))
                for number, name in enumerate(("one", "two"))
            ]
            live = LiveRuns(executor, math.inf)
            live.run(twins)
            for failure in executor.outcomes.failures.values():
                raise failure.error
            one, two = (twin.key for twin in twins)
            told = live.of(Objective.DECODE_SPEED, None, None).ratio(one, two, CONFIDENCE)
            assert told is not None, "on enough prompts"
            surely += told.low > 1 or told.high < 1
            widths.append(math.sqrt(told.high / told.low) - 1)
    return Study(
        (
            f"two copies of one draft, {CONFIRMATIONS} confirmations on real servers: one surely "
            f"faster ({CONFIDENCE:.0%}) in {surely}, at most {MOST:.0%}; intervals of "
            f"\N{PLUS-MINUS SIGN}{median(widths):.1%} (median)",
        ),
        surely <= MOST * CONFIRMATIONS,
    )


def _twin(draft: Configuration, name: str, first: int) -> Configuration:
    """``draft`` under another name, whose steps are measurements of their own."""
    assert draft.draft is not None, "asked for"
    return replace(
        draft,
        name=name,
        draft=replace(draft.draft, name=name),
        rounds=tuple(
            replace(step, name=name, repeat=first + repeat)
            for repeat in range(REPEATS)
            for step in draft.rounds
            if step.repeat == 0
        ),
    )
