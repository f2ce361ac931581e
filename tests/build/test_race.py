"""Races: hopeless drafts leave with their reason, the leader and the unknown never do."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cook.build.forecast import Forecast
from cook.build.race import relative_scores, run_race
from cook.engines.base import DraftSettings
from cook.record.objective import Objective
from cook.record.prompt_runs import PromptRun
from cook.record.record import CandidateKey
from cook.scoring.noise import TimingNoise
from cook.scoring.statistics import Measured
from tests.build.candidates import UNPRICED

ROUNDS = (tuple(f"p{i}" for i in range(12)), tuple(f"p{i}" for i in range(12, 24)))
REPORT = tuple(f"p{i}" for i in range(24, 36))


@dataclass(frozen=True)
class Replay:
    name: str
    prompts: tuple[str, ...]


@dataclass(frozen=True)
class Named:
    name: str


@dataclass(frozen=True)
class Draft:
    """What the race looks at of a DraftForecast: names, cache type and its replays."""

    draft: Named
    cache_type: str
    replays: tuple[Replay, ...]


@dataclass(frozen=True)
class Plan:
    drafts: tuple[Draft, ...]
    rounds: int = 3


@dataclass(frozen=True)
class Table:
    """Stands for a Forecaster: forecasts are read off a table of ms a prompt."""

    plan: Plan
    ms: dict[str, dict[str, float]]
    noise: TimingNoise | None = None
    categories: dict[str, str] = field(default_factory=dict)
    accepted: dict[str, int] = field(default_factory=dict)

    def forecasts(self, overheads: Any = None, only: Any = None, turn: int | None = None) -> Any:
        found = []
        for draft in self.plan.drafts:
            times = self.ms.get(draft.draft.name)
            if times is None:
                continue
            for n_max in (2, 4):
                slower = 1.5 if n_max == 2 else 1.0
                runs = tuple(self._run(draft, i, slower * times[i]) for i in only)
                found.append(
                    Forecast(
                        CandidateKey(
                            "bundled", draft.draft.name, DraftSettings(n_max), draft.cache_type
                        ),
                        f"{draft.draft.name} n_max={n_max}",
                        UNPRICED,
                        runs,
                    )
                )
        return found

    def _run(self, draft: Draft, prompt: str, ms: float) -> PromptRun:
        category = self.categories.get(prompt, "a")
        accepted = self.accepted.get(draft.draft.name, 50)
        return PromptRun(
            prompt, category, 9, 1.0, 101, ms, ms + 1.0, 100, accepted, None, "", "limit"
        )

    def timing_noise(self, overheads: object, only: Any) -> TimingNoise | None:
        return self.noise


class Replays:
    """Stands for an Executor; keeps what it was asked to run."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, tuple[str, ...]]] = []

    def run(self, steps: list[Replay]) -> None:
        self.asked += [(step.name, step.prompts) for step in steps]


def table(speeds: dict[str, float], spread: float = 0.01, seed: int = 1) -> Table:
    """Drafts whose ms a prompt are ``speeds``; an unknown one has None."""
    rng = np.random.default_rng(seed)
    names = [*ROUNDS[0], *ROUNDS[1], *REPORT]
    common = rng.lognormal(0, 0.3, len(names))
    ms = {
        draft: dict(zip(names, mean * common * rng.lognormal(0, spread, len(names)), strict=True))
        for draft, mean in speeds.items()
        if mean
    }
    shares = (*ROUNDS, REPORT)
    drafts = tuple(
        Draft(Named(d), "f16", tuple(Replay(d, share) for share in shares)) for d in speeds
    )
    return Table(Plan(drafts), ms)


def race(
    forecaster: Table, objective: Objective = Objective.DECODE_SPEED, weights: Any = None
) -> tuple[dict[Any, str], Replays]:
    replays = Replays()
    anything: Any = forecaster, replays
    return run_race(anything[0], objective, weights, 0.95, anything[1]), replays


def test_hopeless_drafts_leave_after_the_first_round_with_the_reason() -> None:
    dropped, replays = race(table({"best": 100, "near": 101, "slow": 150}))
    assert list(dropped) == [("slow", "f16")]
    reason = dropped["slow", "f16"]
    assert reason.startswith("left the race after 12 prompts: 33.")
    assert reason.endswith("% behind best n_max=4")
    assert replays.asked == [
        ("best", ROUNDS[1]),
        ("near", ROUNDS[1]),
        ("best", REPORT),
        ("near", REPORT),
    ]


def test_a_draft_that_could_not_be_forecast_goes_on() -> None:
    dropped, replays = race(table({"best": 100, "unknown": 0, "slow": 150}))
    assert list(dropped) == [("slow", "f16")]
    assert ("unknown", REPORT) in replays.asked


def test_nobody_leaves_where_all_but_one_are_unknown() -> None:
    dropped, replays = race(table({"best": 100, "unknown": 0}))
    assert dropped == {}
    assert len(replays.asked) == 4


def test_nobody_leaves_for_less_than_timing_errs() -> None:
    forecaster = table({"best": 100, "behind": 110})
    assert race(forecaster)[0]
    noisy = replace(forecaster, noise=TimingNoise(0.05, 20, 3))
    assert race(noisy)[0] == {}
    # acceptance is not timed
    noisy = replace(noisy, accepted={"best": 70, "behind": 30})
    assert list(race(noisy, Objective.ACCEPTANCE)[0]) == [("behind", "f16")]


def test_cache_types_of_one_draft_race_apart() -> None:
    forecaster = table({"best": 100, "same": 150})
    one, other = forecaster.plan.drafts
    renamed = replace(other, draft=Named("same"), cache_type="q8_0")
    dropped, _ = race(replace(forecaster, plan=Plan((one, renamed))))
    assert list(dropped) == [("same", "q8_0")]


def test_weights_say_what_counts() -> None:
    """Half as fast on a category that hardly counts is no reason to leave."""
    forecaster = table({"best": 100, "odd": 100}, spread=0.0)
    halves = {name: "ab"[i % 2] for i, name in enumerate(forecaster.ms["odd"])}
    slow = {n: ms * (2.0 if halves[n] == "b" else 0.99) for n, ms in forecaster.ms["odd"].items()}
    forecaster = replace(forecaster, ms={**forecaster.ms, "odd": slow}, categories=halves)
    assert ("odd", "f16") in race(forecaster)[0]
    assert race(forecaster, weights={"a": 1.0, "b": 0.001})[0] == {}


@settings(max_examples=30, deadline=None)
@given(
    speeds=st.lists(st.floats(50, 200), min_size=2, max_size=6),
    seed=st.integers(0, 999),
    spread=st.sampled_from([0.01, 0.2]),
    objective=st.sampled_from([Objective.DECODE_SPEED, Objective.END_TO_END_SPEED]),
)
def test_the_leader_never_leaves(
    speeds: list[float], seed: int, spread: float, objective: Objective
) -> None:
    forecaster = table({f"d{i}": ms for i, ms in enumerate(speeds)}, spread, seed)
    dropped, replays = race(forecaster, objective)
    left = {name for name, _ in dropped}
    finished = {name for name, prompts in replays.asked if prompts == REPORT}
    assert finished
    assert left | finished == set(forecaster.ms)
    assert not left & finished
    seen = [*ROUNDS[0], *ROUNDS[1]]
    total = {name: sum(times[p] for p in seen) for name, times in forecaster.ms.items()}
    assert min(total, key=lambda name: total[name]) in finished or len(left) == 0


def test_relative_scores_are_shares_of_the_firsts_figure() -> None:
    measured = Measured(
        ("one", "two"),
        np.array([[10.0, 30.0], [10.0, 30.0]]),
        np.array([[1.0, 2.0], [2.0, 4.0]]),
        np.zeros(2, np.int64),
        np.array([1.0, 3.0]),
    )
    assert relative_scores(measured).mean(axis=1) == pytest.approx([0.0, -1.0])


@dataclass(frozen=True)
class Overheard(Table):
    """A table in which every cycle has an overhead: those that accept less have more cycles."""

    cycles: dict[str, int] = field(default_factory=dict)

    def forecasts(self, overheads: Any = None, only: Any = None, turn: int | None = None) -> Any:
        seconds = overheads.step_s if overheads is not None else 0.0
        found = []
        for forecast in super().forecasts(None, only, turn):
            more = 1000 * seconds * self.cycles[forecast.key.draft]
            runs = [replace(r, predicted_ms=r.predicted_ms + more) for r in forecast.runs]
            found.append(replace(forecast, runs=tuple(runs)))
        bare = tuple(self._run(self.plan.drafts[0], i, 300.0) for i in only)
        return [Forecast(CandidateKey("bundled"), "no draft", UNPRICED, bare), *found]


def test_who_an_overhead_may_yet_bring_ahead_stays() -> None:
    """A large draft that accepts more is behind by the timings alone; what each cycle takes
    beyond them is not known before a live run, and it has a third of the cycles."""
    drafts = table({"quick": 100, "careful": 115, "slow": 150})
    cycles = {"quick": 60, "careful": 20, "slow": 60}
    forecaster = Overheard(drafts.plan, drafts.ms, cycles=cycles)
    dropped, replays = race(forecaster)
    assert list(dropped) == [("slow", "f16")]
    assert ("careful", REPORT) in replays.asked
    alike = Overheard(drafts.plan, drafts.ms, cycles=dict.fromkeys(cycles, 60))
    assert ("careful", "f16") in race(alike)[0]
