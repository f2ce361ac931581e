"""The live budget: what fits is laid out before anything runs, and what does not fit is told;
what something else disturbed is measured again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cook.build.layout import Configuration, shortened
from cook.build.live_runs import LiveRuns, fit_budget
from cook.record.objective import Objective
from cook.record.prompt_runs import PromptRun
from cook.record.record import DISTURBED, UNFORESEEN, CandidateKey, Doubt, Record
from cook.steps.live import LiveOutcome, LiveStep
from tests.build.fabricated import Fabrication, World
from tests.build.laid_out import layout
from tests.build.whole import built


@pytest.mark.parametrize(
    ("budget_s", "lengths", "rounds", "rival", "told"),
    [
        (800, True, 2, True, []),
        (799, False, 2, True, ["calibration at other lengths"]),
        (600, False, 2, True, ["calibration at other lengths"]),
        (
            599,
            *(False, 1, True),
            ["calibration at other lengths", "live rounds after the first 1"],
        ),
        (
            299,
            *(False, 1, False),
            [
                "calibration at other lengths",
                "live rounds after the first 1",
                "the live run of a rival",
            ],
        ),
        (
            1,
            *(False, 1, False),
            [
                "calibration at other lengths",
                "live rounds after the first 1",
                "the live run of a rival",
            ],
        ),
    ],
)
def test_what_does_not_fit_is_left_out_in_order_and_told(
    budget_s: float, lengths: bool, rounds: int, rival: bool, told: list[str]
) -> None:
    """Rounds of 100 s: two each of no draft, the leader and its rival, and of two other lengths
    a round each."""
    fit = fit_budget(100, 100, rounds=2, lengths=2, budget_s=budget_s)
    assert (fit.lengths, fit.rounds, fit.rival) == (lengths, rounds, rival)
    assert [e.candidate for e in fit.left_out] == told
    assert all("about 800 s" in e.reason for e in fit.left_out)


def test_a_shortened_configuration_compares_what_it_runs() -> None:
    plan = layout()
    configuration = plan.grid[0]
    short = shortened(configuration, 1)
    assert short.rounds == configuration.rounds[:1]
    assert short.compare is not None
    assert short.compare.live == short.rounds
    assert len(short.compare.baseline) == 1
    assert shortened(configuration, 5) is configuration


class Bench:
    """Live runs of a layout on a made-up machine."""

    def __init__(self, folder: Path, world: World | None = None, minutes: float = 10) -> None:
        self.plan = layout()
        self.fabrication = Fabrication(folder, world)
        self.live = LiveRuns(self.fabrication, 60 * minutes)

    @property
    def pair(self) -> list[Configuration]:
        assert self.plan.baseline is not None
        return [self.plan.baseline, self.plan.grid[0]]

    def calm(self, folder: Path) -> dict[CandidateKey, dict[str, PromptRun]]:
        """What every request of the pair takes where nothing else is at work."""
        fabrication = Fabrication(folder / "calm")
        expected = {}
        for configuration in self.pair:
            fabrication.run(configuration.rounds)
            outcomes = [fabrication.outcomes.result(s) for s in configuration.rounds]
            runs = [run for o in outcomes if o is not None for run in o.runs]
            expected[configuration.key] = {run.id: run for run in runs}
        return expected

    @property
    def asked(self) -> list[str]:
        return [label.removesuffix(" (bundled)") for label in self.fabrication.asked]


def test_rounds_are_interleaved_and_backwards_every_other_time(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.live.run(bench.pair)
    assert bench.asked == [
        "live no draft round 1",
        "live small n_max=2 round 1",
        "live small n_max=2 round 2",
        "live no draft round 2",
    ]
    assert [r.share for r in bench.live.rounds] == [0, 1]
    assert all(len(r.runs) == 2 for r in bench.live.rounds)
    spent = bench.live.spent_s()
    bench.live.run(bench.live.repeated(bench.pair))
    assert len(bench.asked) == 8, "a repeat is a measurement of its own"
    assert bench.live.spent_s() == pytest.approx(2 * spent, rel=0.05)
    assert [r.share for r in bench.live.rounds] == [0, 1, 0, 1]
    merged = bench.live.of(Objective.DECODE_SPEED, None, None).merged
    assert {len(runs) for runs in merged.values()} == {8}


def test_what_ran_in_part_runs_the_rest_beside_others_of_its_prompts(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bare, draft = bench.pair
    bench.live.run([shortened(bare, 1)])
    left = bench.live.left_of(bare)
    assert left.rounds == bare.rounds[1:]
    bench.live.run([left, draft])
    assert [(r.share, len(r.runs)) for r in bench.live.rounds] == [(0, 1), (0, 1), (1, 2)]
    assert not bench.live.left_of(bare).rounds


def test_what_was_measured_says_what_more_takes(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    steps = [(c.key, step) for c in bench.pair for step in c.rounds]
    assert bench.live.estimate(steps) == 0, "nothing is known"
    bench.live.load_s = 30
    assert bench.live.estimate(steps) == 120
    bench.live.run(bench.pair)
    assert bench.live.estimate(steps) == pytest.approx(bench.live.spent_s(), rel=0.15)
    bench.live.budget_s = 2.1 * bench.live.spent_s()
    assert bench.live.affords(steps)
    bench.live.budget_s = 1.5 * bench.live.spent_s()
    assert not bench.live.affords(steps)


class Disturbed(Fabrication):
    """Something else is at work during the first ``times`` runs of no draft, and slows them."""

    times = 1
    slower = 1.0

    def _live(self, step: LiveStep, directory: Path) -> LiveOutcome:
        outcome = super()._live(step, directory)
        if step.draft is not None or self.times <= 0:
            return outcome
        self.times -= 1
        slow = tuple(replace(r, predicted_ms=r.predicted_ms * self.slower) for r in outcome.runs)
        return replace(outcome, runs=slow, others_cores=2.0 if self.slower == 1.0 else 0.0)


@pytest.mark.parametrize("slower", [1.0, 6.0])
@pytest.mark.parametrize("times", [1, 9])
def test_a_disturbed_round_is_measured_again(tmp_path: Path, slower: float, times: int) -> None:
    """By the kernel's account, or by being six times as slow as forecast where it has none."""
    bench = Bench(tmp_path)
    bench.live.expected = expected = bench.calm(tmp_path)
    disturbed = Disturbed(tmp_path)
    disturbed.slower, disturbed.times = slower, times
    bench.live.executor = disturbed
    bench.live.run(bench.pair)
    bare = bench.pair[0]
    assert len(disturbed.asked) == 6, "the whole round, once more; the second not in vain again"
    kept = bench.live.ran(bare)
    assert len(kept.rounds) == 2
    assert kept.rounds[0] != bare.rounds[0]
    if times == 1:
        assert bench.live.doubts == {}
        runs = [r for one in bench.live.rounds for r in one.runs[bare.key]]
        assert all(r.predicted_ms < 2 * expected[bare.key][r.id].predicted_ms for r in runs)
    else:
        doubt = bench.live.doubts[bare.key]
        if slower == 1.0:
            assert doubt == Doubt(DISTURBED, "other programs kept 2.0 cores busy")
        else:
            assert doubt.cause == UNFORESEEN, "as slow both times, and nobody else was seen"
            assert "times the time that was forecast, twice alike" in doubt.why


def test_what_is_far_from_its_forecast_otherwise_each_time_was_disturbed(tmp_path: Path) -> None:
    class Unsteady(Disturbed):
        def _live(self, step: LiveStep, directory: Path) -> LiveOutcome:
            self.slower *= 1.5
            return super()._live(step, directory)

    bench = Bench(tmp_path)
    bench.live.expected = bench.calm(tmp_path)
    unsteady = Unsteady(tmp_path)
    unsteady.slower, unsteady.times = 2.0, 9
    bench.live.executor = unsteady
    bench.live.run([shortened(c, 1) for c in bench.pair])
    assert {d.cause for d in bench.live.doubts.values()} == {DISTURBED}


def test_a_busy_run_says_nothing_of_its_forecast(tmp_path: Path) -> None:
    """As slow as the run before, beside which another program was seen."""

    class BusyFirst(Disturbed):
        def _live(self, step: LiveStep, directory: Path) -> LiveOutcome:
            outcome = super()._live(step, directory)
            busy = step.draft is None and step.repeat == 0
            return replace(outcome, others_cores=2.0) if busy else outcome

    bench = Bench(tmp_path)
    bench.live.expected = bench.calm(tmp_path)
    busy = BusyFirst(tmp_path)
    busy.slower, busy.times = 6.0, 9
    bench.live.executor = busy
    bench.live.run([shortened(c, 1) for c in bench.pair])
    assert {d.cause for d in bench.live.doubts.values()} == {DISTURBED}


@pytest.mark.parametrize("slowed", ["all", "small"])
def test_a_machine_that_slows_down_for_all_disturbs_nothing(tmp_path: Path, slowed: str) -> None:
    class Slowing(Fabrication):
        def _live(self, step: LiveStep, directory: Path) -> LiveOutcome:
            outcome = super()._live(step, directory)
            if step.round == 0 or (slowed != "all" and slowed not in step.name):
                return outcome
            slow = tuple(replace(r, predicted_ms=r.predicted_ms * 1.2) for r in outcome.runs)
            return replace(outcome, runs=slow)

    bench = Bench(tmp_path)
    bench.live.executor, bench.live.expected = Slowing(tmp_path), bench.calm(tmp_path)
    bench.live.run(bench.pair)
    told = [d for d in bench.live.doubts.values() if "its rounds differ by" in d.why]
    assert len(told) == (slowed != "all")


def test_overheads_are_fitted_on_what_was_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Beside(Fabrication):
        others_at_work = True

        def _live(self, step: LiveStep, directory: Path) -> LiveOutcome:
            outcome = super()._live(step, directory)
            if step.draft is not None or not self.others_at_work:
                return outcome
            self.others_at_work = False
            slow = tuple(replace(r, predicted_ms=6 * r.predicted_ms) for r in outcome.runs)
            return replace(outcome, runs=slow, others_cores=2.0)

    monkeypatch.setattr("tests.build.whole.Fabrication", Beside)
    record = built(tmp_path, monkeypatch).record
    assert labels(record).count("live no draft round 1") == 2
    (fitted,) = record.calibrations
    assert fitted.overheads.plain_s == pytest.approx(0.0005, abs=0.0005), "not 0.1 s a step"


def test_without_budget_a_disturbed_round_is_told_and_not_repeated(tmp_path: Path) -> None:
    bench = Bench(tmp_path, World(busy=("live no draft round 1",)), minutes=0.001)
    bench.live.run(bench.pair)
    assert len(bench.asked) == 4
    assert list(bench.live.doubts) == [bench.pair[0].key]


def labels(record: Record) -> list[str]:
    return [s.label.removesuffix(" (bundled)") for s in record.steps if s.kind == "live"]


def test_a_disturbed_build_is_not_confirmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = built(tmp_path, monkeypatch, World(busy=("live no draft",))).record
    assert (
        "Live runs were disturbed (no draft: other programs kept 2.0 cores busy): measure again"
    ) in record.pick.sentence
    assert labels(record).count("live no draft round 1") >= 2, "it was measured again"


def test_a_disturbed_score_of_live_runs_alone_is_not_confirmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(busy=("live large",))
    record = built(tmp_path, monkeypatch, world, score={"method": "live"}).record
    assert "Live runs were disturbed (large n_max=" in record.pick.sentence
    assert record.pick.certainty is not None
    assert (record.pick.certainty.objection or "").startswith("disturbed")


def test_a_speedup_lies_in_its_interval_however_the_machine_drifts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Speedups are of rounds beside each other: by bare figures a drift was a candidate's own."""

    class Drifting(Fabrication):
        ran = 0

        def _live(self, step: LiveStep, directory: Path) -> LiveOutcome:
            outcome = super()._live(step, directory)
            slow = 1 + 0.02 * self.ran
            self.ran += 1
            runs = tuple(
                replace(r, predicted_ms=r.predicted_ms * slow, wall_ms=r.wall_ms * slow)
                for r in outcome.runs
            )
            return replace(outcome, runs=runs)

    monkeypatch.setattr("tests.build.whole.Fabrication", Drifting)
    record = built(tmp_path, monkeypatch).record
    sure = [c for c in record.candidates if c.speedup_interval is not None]
    assert len(sure) >= 2
    for one in sure:
        assert one.speedup is not None
        assert one.speedup_interval is not None
        assert one.speedup_interval.low < one.speedup < one.speedup_interval.high
        middle = (one.speedup_interval.low * one.speedup_interval.high) ** 0.5
        assert one.speedup == pytest.approx(middle, rel=0.05)


def test_the_rival_runs_beside_what_is_fitted_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that comparing it with the leader takes no round of the leader's twice."""
    record = built(tmp_path, monkeypatch).record
    ran = labels(record)
    drafts = {label.split()[1] for label in ran} - {"no"}
    assert drafts == {"small", "large"}
    assert len(ran) == len(set(ran)), "each once"
    second = ran.index("live no draft round 2")
    assert {label.split()[1] for label in ran[:second]} == {"no", "small", "large"}
    (fitted,) = record.calibrations
    rival = min(drafts, key=lambda name: sum(name in one for one in fitted.candidates))
    assert not [one for one in fitted.candidates if rival in one], "on the rival nothing is"


def test_who_is_no_leader_once_overheads_are_known_runs_no_second_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step that costs far more than was timed makes longer drafts the better ones."""
    record = built(tmp_path, monkeypatch, World(overhead_ms=20.0)).record
    (fitted,) = record.calibrations
    assert fitted.candidates == ("no draft", *(f"small n_max={n}" for n in (4, 2, 8)))
    assert record.pick.candidate == "small n_max=8"
    ran = labels(record)
    assert ran[:2] == ["live no draft round 1", "live small n_max=4 round 1"]
    assert "live small n_max=4 round 2" not in ran
    assert ran[-3:] == [
        f"live {name} round 2" for name in ("no draft", "small n_max=8", "large n_max=8")
    ]
    repeated = {label for label in ran if ran.count(label) > 1}
    assert repeated == {"live small n_max=8 round 1"}, "beside whom the new rival is compared"


def test_as_much_runs_live_as_the_budget_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two drafts that are equals but for their prompts: no more rounds could decide it."""
    world = World(accuracy={"small": 0.995, "large": 1.0}, draft_ms={"small": 1.0, "large": 1.02})
    score = {"draft": {"n_max": [4]}}
    rich = built(tmp_path / "rich", monkeypatch, world, score=score).record
    budget = {"live_budget": {"minutes": 0.1}}
    poor = built(tmp_path / "poor", monkeypatch, world, score=score | budget).record
    assert len(labels(rich)) > len(labels(poor))
    assert len(set(labels(poor))) == len(labels(poor)), "each once"
    assert not [e for e in poor.left_out if "about 0 s" in e.reason], "what ran is not left out"
    for record in (rich, poor):
        sure = record.pick.certainty
        assert sure is not None
        assert ("undecided" in record.pick.sentence) is not sure.decided
        assert sure.decided or sure.leader == record.pick.candidate
