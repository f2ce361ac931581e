"""The choice by forecasts and live rounds together, on machines whose truth is known."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from cook.build.choose import Aim, Chosen, ForecastErrors, choose
from cook.build.contest import FURTHER
from cook.build.forecast import Forecast
from cook.record.objective import Objective
from cook.record.record import CandidateKey
from cook.scoring.noise import LogSpread
from cook.scoring.rounds import Round, Rounds
from tests.build.candidates import UNPRICED, key
from tests.scoring.simulated import Lab, Machine, request

SPEED = Objective.DECODE_SPEED
KEYS = {"bare": key(None), "one": key("one"), "two": key("two")}
SIZES = {"one": 1_000, "two": 2_000}
LOOK = 1 - 0.05 / (1 + FURTHER)
"""Confidence of each look at the live rounds: to look until something is sure makes chance sure."""
TIMING, MODEL_ERROR = 0.005, 0.02
"""What forecasts are truly off by."""


@dataclass(frozen=True)
class Ended:
    """``chosen`` at the last look of those that the budget allowed, and what live rounds said."""

    chosen: Chosen
    rounds: Rounds[CandidateKey]

    @property
    def surely(self) -> bool:
        """Whether one of the two is called surely faster than the other."""
        apart = {KEYS["one"], KEYS["two"]} - {self.chosen.ranking[0], *self.chosen.ties}
        told = self.rounds.ratio(KEYS["one"], KEYS["two"], LOOK)
        assert told is not None
        return bool(apart) or told.low > 1 or told.high < 1


def build(machine: Machine, ms: dict[str, float], seed: int) -> Ended:
    """Forecast, two rounds of all, and further ones until it is decided or the looks are spent."""
    rng = np.random.default_rng(seed)
    hard = rng.lognormal(0, 0.2, 18)
    forecasts = []
    for name, mean in ms.items():
        off = rng.normal(0, TIMING) + (rng.normal(0, MODEL_ERROR) if name != "bare" else 0)
        runs = [
            request(100 + i, mean * float(h * np.exp(off)), name != "bare")
            for i, h in enumerate(hard)
        ]
        forecasts.append(Forecast(KEYS[name], name, UNPRICED, tuple(runs)))
    lab = Lab(machine, ms, rng)
    aim = Aim(SPEED, LOOK)
    errors = ForecastErrors(LogSpread(TIMING, 12))
    rounds: list[Round[CandidateKey]] = []
    for _ in range(1 + FURTHER):
        rounds += [
            Round(r.share, {KEYS[name]: runs for name, runs in r.runs.items()})
            for r in lab.rounds(tuple(ms))
        ]
        seen = Rounds(tuple(rounds), SPEED)
        chosen = choose(forecasts, aim, (), SIZES, errors=errors, live=seen)
        if chosen.decided:
            break
    return Ended(chosen, seen)


QUIET, UNSTEADY = Machine(), Machine(start=0.0215)
TWINS = {"bare": 200.0, "one": 100.0, "two": 100.0}
APART = {"bare": 200.0, "one": 103.0, "two": 100.0}


def copies_told_apart(machine: Machine, trials: int) -> int:
    return sum(build(machine, TWINS, seed).surely for seed in range(trials))


def worse_ones(machine: Machine, trials: int) -> tuple[int, int]:
    """Of two drafts 3 % apart: how often the worse is picked without a word, and how often the
    better is picked and that is called decided."""
    ends = [build(machine, APART, seed).chosen for seed in range(trials)]
    wrong = sum(e.decided and e.key != KEYS["two"] for e in ends)
    return wrong, sum(e.decided and e.key == KEYS["two"] for e in ends)


@pytest.mark.parametrize("machine", [QUIET, UNSTEADY])
def test_copies_of_one_draft_are_seldom_told_apart(machine: Machine) -> None:
    assert copies_told_apart(machine, 12) <= 2


@pytest.mark.parametrize("machine", [QUIET, UNSTEADY])
def test_the_worse_draft_is_never_picked_without_the_word_undecided(machine: Machine) -> None:
    wrong, _ = worse_ones(machine, 12)
    assert wrong <= 1


def test_on_a_quiet_machine_three_per_cent_are_decided() -> None:
    _, right = worse_ones(QUIET, 12)
    assert right >= 8


@pytest.mark.soak
@pytest.mark.parametrize("machine", [QUIET, UNSTEADY, Machine(drift=0.02)])
def test_a_thousand_builds(machine: Machine) -> None:
    apart = copies_told_apart(machine, 1000)
    wrong, right = worse_ones(machine, 1000)
    print(f"{machine}: copies told apart {apart}, 3 % apart: wrong {wrong}, decided right {right}")
    assert apart <= 50
    assert wrong <= 50
