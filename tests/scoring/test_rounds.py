"""Live rounds: requests of one server err together, and no interval takes them to be apart."""

from __future__ import annotations

import numpy as np
import pytest

from cook.record.objective import Objective
from cook.scoring.intervals import SEED, paired
from cook.scoring.noise import LogSpread
from cook.scoring.rounds import Round, Rounds
from cook.scoring.statistics import ratio_interval
from tests.scoring.simulated import Lab, Machine, request

QUIET = Machine()
DRIFTING = Machine(drift=0.02)
CREEPING = Machine(creep=0.007)
UNSTEADY = Machine(start=0.0215)
"""As unlike from server to server as starts of 0.8 % and a drift of 2 % make it."""
TWINS = {"bare": 200.0, "one": 100.0, "two": 100.0}
SPEED = Objective.DECODE_SPEED


def rounds(machine: Machine, seed: int, times: int, ms: dict[str, float] = TWINS) -> Rounds[str]:
    lab = Lab(machine, ms, np.random.default_rng(seed))
    return Rounds(tuple(lab.rounds(tuple(ms), times)), SPEED)


def false_winners(machine: Machine, times: int, trials: int) -> tuple[int, int]:
    """Of two copies of one draft: how often one is surely faster, and how often it would be, were
    requests timed apart from each other."""
    found = naive = 0
    for seed in range(trials):
        seen = rounds(machine, seed, times)
        told = seen.ratio("one", "two", 0.95)
        assert told is not None
        found += told.low > 1 or told.high < 1
        one, two = (seen.merged[name] for name in ("one", "two"))
        measured = paired({"one": one, "two": two}, SPEED, None)
        assert measured is not None
        apart = ratio_interval(measured, 0, 1, np.random.default_rng(SEED))
        naive += apart.low > 1 or apart.high < 1
    return found, naive


@pytest.mark.parametrize("machine", [QUIET, DRIFTING, CREEPING, UNSTEADY])
def test_two_copies_of_one_draft_are_seldom_told_apart(machine: Machine) -> None:
    found, _ = false_winners(machine, 1, 40)
    assert found <= 5  # 5 % and two standard errors and a half


def test_requests_taken_apart_would_tell_them_apart() -> None:
    """What the hierarchy of starts and requests is for."""
    _, naive = false_winners(UNSTEADY, 1, 40)
    assert naive >= 12


@pytest.mark.soak
@pytest.mark.parametrize("times", [1, 2, 4])
@pytest.mark.parametrize("machine", [QUIET, DRIFTING, CREEPING, UNSTEADY])
def test_of_a_thousand_confirmations_few_tell_copies_apart(machine: Machine, times: int) -> None:
    found, _ = false_winners(machine, times, 1000)
    print(f"{machine} {2 * times} rounds: {found} of 1000")
    assert found <= 50


def test_more_rounds_narrow_the_interval() -> None:
    widths = []
    for times in (1, 2, 6):
        told = rounds(QUIET, 3, times, {"bare": 200.0, "one": 97.0, "two": 100.0}).ratio(
            "one", "two", 0.95
        )
        assert told is not None
        assert told.low < 100 / 97 < told.high
        widths.append(told.high - told.low)
    assert widths == sorted(widths, reverse=True)
    assert widths[-1] < 0.03


def test_drift_that_all_of_a_round_share_is_none_of_the_starts() -> None:
    spreads = [rounds(Machine(drift=d), 5, 8).start() for d in (0.0, 0.3)]
    assert all(s is not None for s in spreads)
    sds = [s.sd for s in spreads if s is not None]
    assert sds[0] == pytest.approx(sds[1], rel=0.35)
    # a start, and the mean of nine requests
    assert sds[1] == pytest.approx(np.hypot(0.008, 0.02 / 3), rel=0.5)


def test_one_that_came_later_is_compared_as_if_at_the_same_time() -> None:
    """The machine is 10 % slower by then, for all that run again beside it."""
    lab = Lab(Machine(start=1e-4, request=1e-4), TWINS, np.random.default_rng(0))
    before = lab.rounds(("bare", "one"))
    lab.machine = Machine(start=1e-4, request=1e-4, creep=0.0)
    lab.hard = lab.hard * 1.1
    after = lab.rounds(("one", "two"))
    told = Rounds((*before, *after), SPEED).ratio("two", "bare", 0.95)
    assert told is not None
    assert told.low == pytest.approx(2.0, rel=0.01)
    assert told.high == pytest.approx(2.0, rel=0.01)


def test_a_single_round_says_what_other_timings_say() -> None:
    lab = Lab(QUIET, TWINS, np.random.default_rng(1))
    one = (lab.round(("bare", "one", "two"), 0),)
    assert Rounds(one, SPEED).ratio("one", "two", 0.95) is None
    close = Rounds(one, SPEED, started=LogSpread(0.001, 20)).ratio("one", "two", 0.95)
    wide = Rounds(one, SPEED, started=LogSpread(0.05, 20)).ratio("one", "two", 0.95)
    assert close is not None
    assert wide is not None
    assert wide.high - wide.low > 3 * (close.high - close.low)


def test_a_forecast_is_held_against_what_starts_leave_open() -> None:
    """A forecast of the very truth lies in the interval, which no number of prompts closes."""
    lab = Lab(UNSTEADY, TWINS, np.random.default_rng(3))
    seen = Rounds(tuple(lab.rounds(("bare", "one", "two"), 2)), SPEED)
    said = [request(i, 100.0 * float(h)) for i, h in enumerate(lab.hard)]
    told = seen.off_by("one", said, 0.95)
    assert told is not None
    assert told.low < 1 < told.high
    assert told.high - told.low > 0.02
    assert seen.off_by("three", said, 0.95) is None
    assert seen.off_by("one", said[:7], 0.95) is None


def test_counts_have_no_starts() -> None:
    lab = Lab(QUIET, TWINS, np.random.default_rng(1))
    seen = Rounds(tuple(lab.rounds(("one", "two"))), Objective.ACCEPTANCE)
    told = seen.ratio("one", "two", 0.95)
    assert told is not None
    assert (told.low, told.high) == (1.0, 1.0)


def test_what_did_not_run_is_not_compared() -> None:
    seen = rounds(QUIET, 1, 1)
    assert seen.ratio("one", "three", 0.95) is None
    few = Rounds((Round(0, {k: r[:3] for k, r in seen.rounds[0].runs.items()}),), SPEED)
    assert few.ratio("one", "two", 0.95) is None, "fewer than eight prompts"


def test_the_cost_of_deciding_falls_with_the_lead_and_the_rounds_that_ran() -> None:
    two, four = (rounds(QUIET, 7, times) for times in (1, 2))
    costs = [four.further("one", "two", lead, 0.01, 0.95) for lead in (0.005, 0.01, 0.05)]
    assert costs[0] is None or costs[1] is None or costs[0] >= costs[1]
    assert costs[2] == 1
    assert two.further("one", "two", -0.02, 0.01, 0.95) is None, "it is not even the leader"
