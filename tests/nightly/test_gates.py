"""Gates are silent on noise and loud on what is real: on simulated nights, by the very code."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cook.engines.base import EngineIdentity
from cook.formats.quant_types import Flavour
from cook.nightly.gates import Judgement, Policy, Verdict, judge
from cook.nightly.history import History
from cook.nightly.night import CandidateNight, Night
from tests.nightly.fields import healthy, losses
from tests.nightly.nights import PICK, WORLDS, Harm, Series, World, caught, false_alarms

POLICY = Policy()
CPU, GPU = WORLDS["CPU"], WORLDS["GPU"]
LOSS = Harm(acceptance_points=3.0, only=(PICK,))
SLOW = Harm(slowdown=0.05, only=(PICK,))


@pytest.fixture(scope="module")
def pair() -> tuple[Night, Night]:
    """Two nights of one build: (earlier, later)."""
    series = Series(CPU, seed=11)
    return series.measure().judged((), ()), series.measure()


def findings(judgement: Judgement, gate: str) -> dict[str, Verdict]:
    return {f.subject: f.verdict for f in judgement.findings if f.gate == gate}


@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
def test_a_month_of_healthy_nights_is_silent(world: World) -> None:
    assert false_alarms(world, 30, seed=1, policy=POLICY) == []


@pytest.mark.parametrize("harm", [LOSS, SLOW], ids=["acceptance", "slowdown"])
def test_real_losses_are_caught(harm: Harm) -> None:
    gate = "acceptance" if harm.acceptance_points else "speed ratio"
    found = caught(CPU, harm, 6, seed=5, policy=POLICY, new_build=False)
    assert found["any"] == 6
    assert found[gate] >= 5


@pytest.mark.soak
@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
def test_at_most_one_night_in_a_hundred_raises_a_false_alarm(world: World) -> None:
    nights = 1000
    alarms = false_alarms(world, nights, 1_000, POLICY)
    print(f"{len(alarms)} alarms in {nights} healthy nights", *alarms, sep="\n")
    assert len(alarms) <= nights // 100


@pytest.mark.soak
@pytest.mark.parametrize("new_build", [False, True], ids=["same build", "new build"])
@pytest.mark.parametrize("harm", [LOSS, SLOW], ids=["acceptance", "slowdown"])
@pytest.mark.parametrize("world", WORLDS)
def test_at_least_95_of_100_losses_are_caught(world: str, harm: Harm, new_build: bool) -> None:
    trials = 200
    found = caught(WORLDS[world], harm, trials, 9_000, POLICY, new_build=new_build)
    print(f"{world}, new build {new_build}, {harm}: {found} of {trials}")
    assert found["any"] >= 0.95 * trials


def test_the_same_night_twice_changes_nothing(pair: tuple[Night, Night]) -> None:
    before, _ = pair
    judgement = judge(replace(before, id="again"), before, POLICY)
    assert {f.verdict for f in judgement.findings} == {Verdict.SAME}
    assert all(f.change == 0 for f in judgement.findings)


def test_what_is_the_same_to_the_last_digit_is_one_line(pair: tuple[Night, Night]) -> None:
    """Three drafts, four figures each, of which a build makes nothing anew."""
    before, now = pair
    judgement = judge(now, before, POLICY)
    (line,) = [f for f in judgement.findings if "identical" in f.text]
    assert line.gate == "replayed acceptance, perplexity, KLD, size"
    assert line.subject == "3 drafts"
    assert line.text == "identical to the last digit: Q4, Q8, Q16"
    rest = {f.gate for f in judgement.findings if f is not line}
    assert rest == {"acceptance", "speed ratio", "cycle cost", "no-draft speed"}


def test_without_a_night_to_compare_with_nothing_is_judged(pair: tuple[Night, Night]) -> None:
    judgement = judge(pair[1], None, POLICY)
    assert judgement.findings == ()
    assert "no good night" in judgement.notes[0]


def test_a_larger_file_and_worse_quality_are_regressions(pair: tuple[Night, Night]) -> None:
    before, now = pair
    first, *rest = now.drafts
    assert first.file_bytes
    assert first.perplexity
    assert first.mean_kld
    worse = replace(
        first,
        file_bytes=int(first.file_bytes * 1.01),
        perplexity=first.perplexity * 1.03,
        mean_kld=first.mean_kld * 1.2,
    )
    judgement = judge(replace(now, drafts=(worse, *rest)), before, POLICY)
    for gate in ("size", "perplexity", "KLD"):
        assert findings(judgement, gate) == {first.quant: Verdict.REGRESSION}


def test_smaller_and_better_is_an_improvement(pair: tuple[Night, Night]) -> None:
    before, now = pair
    first, *rest = now.drafts
    assert first.file_bytes
    assert first.perplexity
    better = replace(first, file_bytes=first.file_bytes // 2, perplexity=first.perplexity * 0.9)
    judgement = judge(replace(now, drafts=(better, *rest)), before, POLICY)
    assert findings(judgement, "size")[first.quant] is Verdict.IMPROVEMENT
    assert findings(judgement, "perplexity")[first.quant] is Verdict.IMPROVEMENT
    assert judgement.regressions == ()


def test_another_amount_of_text_is_not_compared(pair: tuple[Night, Night]) -> None:
    before, now = pair
    shorter = tuple(replace(d, chunks=50, perplexity=99.0) for d in now.drafts)
    judgement = judge(replace(now, drafts=shorter), before, POLICY)
    assert set(findings(judgement, "perplexity").values()) == {Verdict.NOT_JUDGED}


def test_disturbed_timings_are_not_judged_but_counts_are(pair: tuple[Night, Night]) -> None:
    before, now = pair
    slow = tuple(
        replace(c, decode_ms=tuple(3 * ms for ms in c.decode_ms if ms is not None))
        if c.draft
        else c
        for c in now.candidates
    )
    judgement = judge(replace(now, disturbed=2, candidates=slow), before, POLICY)
    assert set(findings(judgement, "speed ratio").values()) == {Verdict.NOT_JUDGED}
    assert set(findings(judgement, "acceptance").values()) == {Verdict.SAME}
    assert judgement.regressions == ()


@pytest.mark.parametrize(
    ("field", "value"),
    [("prompts_sha256", "other"), ("max_tokens", 64), ("temperature", 0.7), ("machine", "x")],
)
def test_what_was_measured_otherwise_is_not_compared(
    pair: tuple[Night, Night], field: str, value: object
) -> None:
    before, now = pair
    judgement = judge(replace(now, **{field: value}), before, POLICY)  # type: ignore[arg-type]
    (refused,) = [f for f in judgement.findings if f.gate == "acceptance"]
    assert refused.verdict is Verdict.NOT_JUDGED
    assert "differs" in refused.text


def test_few_prompts_are_not_judged_and_some_need_the_permutation() -> None:
    for prompts, judged in ((6, False), (20, True)):
        series = Series(replace(CPU, prompts=prompts), seed=3)
        before = series.measure().judged((), ())
        judgement = judge(series.measure(Harm(slowdown=0.5)), before, POLICY)
        verdicts = set(findings(judgement, "speed ratio").values())
        assert verdicts == ({Verdict.REGRESSION} if judged else set())


@pytest.mark.parametrize("prompts", [8, 9])
def test_below_ten_prompts_nothing_is_judged(prompts: int) -> None:
    """They said "same" of a draft at half its speed."""
    series = Series(replace(CPU, prompts=prompts), seed=3)
    before = series.measure().judged((), ())
    judgement = judge(series.measure(Harm(slowdown=0.5)), before, POLICY)
    compared = [f for f in judgement.findings if "identical" not in f.text]
    assert {f.verdict for f in compared} == {Verdict.NOT_JUDGED}
    assert {f.text for f in compared} == {f"{prompts} prompts in common; 10 are needed"}


def test_gates_that_too_few_prompts_could_never_raise_are_not_judged() -> None:
    """Ten prompts that all agree have one chance in 1,024; four cells leave a gate half of that."""
    series = Series(replace(CPU, prompts=10), seed=3)
    before = series.measure().judged((), ())
    name = next(c.name for c in before.candidates if c.draft)
    now = series.measure(Harm(slowdown=0.5))
    for cells, judged in ((1, True), (4, False)):
        judgement = judge(now, replace(before, pick=name), Policy(cells=cells))
        found = next(f for f in judgement.findings if (f.gate, f.subject) == ("speed ratio", name))
        assert found.level is not None
        assert (found.level >= 1 / 1024) is judged
        assert found.verdict is (Verdict.REGRESSION if judged else Verdict.NOT_JUDGED)
        assert ("11 are needed" in found.text) is not judged
        assert found.change is not None
        assert found.change < -20


def test_one_prompt_alone_proves_nothing(pair: tuple[Night, Night]) -> None:
    before, now = pair
    column = now.candidates[1]
    accepted = list(column.accepted)
    accepted[0] = 0
    # Enough to move the total by more than a point, were it spread over all prompts.
    drafted = list(column.drafted)
    drafted[0] = 50 * (drafted[0] or 0)
    changed = replace(column, accepted=tuple(accepted), drafted=tuple(drafted))
    candidates = (now.candidates[0], changed, *now.candidates[2:])
    judgement = judge(replace(now, candidates=candidates), before, POLICY)
    finding = next(
        f for f in judgement.findings if (f.gate, f.subject) == ("acceptance", column.name)
    )
    assert finding.change is not None
    assert finding.change < -1
    assert finding.verdict is Verdict.SAME


def test_a_draft_that_no_longer_hits_anything_is_a_regression(pair: tuple[Night, Night]) -> None:
    before, now = pair
    column = now.candidates[1]
    blind = replace(column, accepted=(0,) * len(column.accepted))
    candidates = (now.candidates[0], blind, *now.candidates[2:])
    judgement = judge(replace(now, candidates=candidates), before, POLICY)
    assert findings(judgement, "acceptance")[column.name] is Verdict.REGRESSION


def test_a_slower_machine_is_no_slower_draft() -> None:
    series = Series(replace(CPU, night_noise=0.0, slow_nights=0.0), seed=4)
    before = series.measure().judged((), ())
    judgement = judge(series.measure(Harm(engine_slowdown=0.03)), before, POLICY)
    assert judgement.regressions == ()


def test_levels_of_one_night_spend_no_more_than_the_budget(pair: tuple[Night, Night]) -> None:
    before, now = pair
    for cells in (1, 4):
        judgement = judge(now, before, Policy(cells=cells))
        spent = sum(f.level for f in judgement.findings if f.level is not None)
        assert spent * cells <= POLICY.false_alarms + 1e-12
    pick = [f for f in judgement.findings if f.subject == before.pick and f.gate == "acceptance"]
    others = [f for f in judgement.findings if f.subject != before.pick and f.gate == "acceptance"]
    assert pick[0].level == pytest.approx(sum(f.level or 0 for f in others))


def test_notes_name_what_is_not_the_same(pair: tuple[Night, Night]) -> None:
    before, now = pair
    other = EngineIdentity(Flavour.LLAMA_CPP, "b10000", None, "f" * 64)
    changed = replace(
        now, engines={"bundled": other}, pick="no draft", candidates=now.candidates[:-1]
    )
    notes = "\n".join(judge(changed, before, POLICY).notes)
    assert "engine: bundled was b0 then, is b10000 now" in notes
    assert "pick:" in notes
    assert f"not run live tonight: {now.candidates[-1].name}" in notes


def without_live(night: Night, draft: str) -> Night:
    """``night`` with ``draft`` replayed, but none of the finalists."""
    return replace(
        night,
        candidates=tuple(c for c in night.candidates if c.draft != draft),
        pick=next(c.name for c in night.candidates if c.draft not in (None, draft)),
    )


def with_replay(night: Night, draft: str, accepted: float) -> Night:
    """``night`` with that share of the accepted tokens of one draft's replay."""
    replays = tuple(
        replace(r, accepted=tuple(int(accepted * a) for a in r.accepted if a is not None))
        if r.draft == draft
        else r
        for r in night.replays
    )
    return replace(night, replays=replays)


def test_a_draft_bad_enough_to_leave_the_finalists_is_a_regression(
    pair: tuple[Night, Night],
) -> None:
    """It has no live figures tonight: nothing was said of it but a note, and the night was good."""
    before, now = pair
    lost = with_replay(without_live(now, "Q8"), "Q8", 0.8)
    judgement = judge(lost, before, POLICY)
    assert [(f.gate, f.subject) for f in judgement.regressions] == [("replayed acceptance", "Q8")]
    (note,) = [n for n in judgement.notes if n.startswith("Q8 ")]
    assert "its replayed acceptance fell" in note


def test_a_draft_that_only_moved_in_rank_is_a_note(pair: tuple[Night, Night]) -> None:
    before, now = pair
    judgement = judge(without_live(now, "Q8"), before, POLICY)
    assert judgement.regressions == ()
    (note,) = [n for n in judgement.notes if n.startswith("Q8 ")]
    assert "it only moved in rank" in note
    # The same where a new build replays it anew and finds about as much.
    judgement = judge(with_replay(without_live(now, "Q8"), "Q8", 0.999), before, POLICY)
    (note,) = [n for n in judgement.notes if n.startswith("Q8 ")]
    assert "shows no fall: it only moved in rank" in note
    assert judgement.regressions == ()


def test_a_worse_draft_that_never_was_a_finalist_is_a_regression(
    pair: tuple[Night, Night],
) -> None:
    before, now = pair
    judgement = judge(
        with_replay(without_live(now, "Q16"), "Q16", 0.8), without_live(before, "Q16"), POLICY
    )
    assert [(f.gate, f.subject) for f in judgement.regressions] == [("replayed acceptance", "Q16")]


def test_a_finalist_that_was_not_replayed_tonight_is_not_judged(pair: tuple[Night, Night]) -> None:
    before, now = pair
    lost = without_live(now, "Q8")
    lost = replace(lost, replays=tuple(r for r in lost.replays if r.draft != "Q8"))
    judgement = judge(lost, before, POLICY)
    assert findings(judgement, "replayed acceptance")["Q8"] is Verdict.NOT_JUDGED
    (note,) = [n for n in judgement.notes if n.startswith("Q8 ")]
    assert "is not judged: not replayed tonight" in note


def test_a_finalist_that_no_longer_keeps_a_limit_is_a_regression(
    pair: tuple[Night, Night],
) -> None:
    before, now = pair
    name = next(c.name for c in before.candidates if c.draft == "Q8")
    over = replace(
        without_live(now, "Q8"), excluded=((name, "perplexity_ratio 1.4 is over the limit of 1.2"),)
    )
    (worse,) = judge(over, before, POLICY).regressions
    assert (worse.gate, worse.subject) == ("qualifies", name)
    assert "over the limit" in worse.text


def test_a_night_that_kept_no_replays_is_compared_by_the_rest(pair: tuple[Night, Night]) -> None:
    before, now = pair
    judgement = judge(now, replace(before, replays=()), POLICY)
    assert any("kept no replayed acceptance" in note for note in judgement.notes)
    assert findings(judgement, "replayed acceptance") == {}
    assert findings(judgement, "speed ratio")


def test_lost_drafts_are_found_while_finalists_change() -> None:
    trials = list(losses(CPU, 12, seed=70, policy=POLICY))
    left = [trial for trial in trials if trial.left]
    assert len(left) >= 10
    assert all(trial.found and trial.told for trial in left)
    seen = healthy(CPU, 20, seed=70, policy=POLICY)
    assert seen.moved >= 4
    assert seen.alarms == ()


@pytest.mark.soak
@pytest.mark.parametrize("world", WORLDS)
def test_a_lost_draft_is_found_within_one_night_in_95_of_100(world: str) -> None:
    trials = list(losses(WORLDS[world], 1000, 200_000, POLICY))
    left = [trial for trial in trials if trial.left]
    found = sum(trial.found for trial in left)
    print(f"{world}: {found} of {len(left)} lost drafts found", *(t for t in left if not t.found))
    assert len(left) >= 900
    assert found >= 0.95 * len(left)
    assert all(trial.told for trial in left)


@pytest.mark.soak
@pytest.mark.parametrize("world", WORLDS)
def test_moving_finalists_raise_a_false_alarm_in_at_most_one_night_of_100(world: str) -> None:
    seen = healthy(WORLDS[world], 1000, 300_000, POLICY)
    print(f"{world}: {len(seen.alarms)} alarms; finalists moved on {seen.moved} of {seen.nights}")
    print(*seen.alarms, sep="\n")
    assert seen.moved >= 300
    assert len(seen.alarms) <= seen.nights // 100


def test_a_noisy_series_needs_more_to_raise_an_alarm() -> None:
    restless = Series(replace(CPU, start_noise=0.05), seed=8)
    past: tuple[Night, ...] = ()
    for _ in range(14):
        past = (*past, restless.measure().judged((), ()))
    history = History(Path("x"), past)
    now = restless.measure()
    learned = judge(now, past[-1], POLICY, history)
    unlearned = judge(now, past[-1], POLICY)

    def width(judgement: Judgement) -> float:
        found = next(f for f in judgement.findings if f.gate == "speed ratio")
        assert found.high is not None
        assert found.low is not None
        return found.high - found.low

    assert width(learned) > 1.5 * width(unlearned)


@settings(max_examples=30, deadline=None)
@given(scale=st.floats(0.2, 5.0))
def test_a_night_on_a_faster_clock_has_the_same_ratios(scale: float) -> None:
    before, now = _PAIR
    faster = replace(now, candidates=tuple(_scaled(c, scale) for c in now.candidates))
    for figure in ("speed ratio", "cycle cost"):
        one = [f.change for f in judge(now, before, POLICY).findings if f.gate == figure]
        two = [f.change for f in judge(faster, before, POLICY).findings if f.gate == figure]
        assert one == pytest.approx(two)


def _scaled(column: CandidateNight, scale: float) -> CandidateNight:
    return replace(
        column,
        decode_ms=tuple(None if ms is None else ms * scale for ms in column.decode_ms),
        wall_ms=tuple(None if ms is None else ms * scale for ms in column.wall_ms),
    )


_SERIES = Series(replace(CPU, prompts=16, tokens=32), seed=2)
_PAIR = (_SERIES.measure(), _SERIES.measure())
