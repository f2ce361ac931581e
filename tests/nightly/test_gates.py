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
        verdicts = findings(judgement, gate)
        assert verdicts.pop(first.quant) is Verdict.REGRESSION
        assert set(verdicts.values()) == {Verdict.SAME}


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


def test_gates_that_too_few_prompts_could_never_raise_are_not_judged() -> None:
    """Nine prompts that all agree have one chance in 512, and the level is 1 in 667."""
    for prompts, judged in ((8, False), (9, False), (10, True)):
        series = Series(replace(CPU, prompts=prompts), seed=3)
        before = series.measure().judged((), ())
        name = next(c.name for c in before.candidates if c.draft)
        judgement = judge(series.measure(Harm(slowdown=0.5)), replace(before, pick=name), POLICY)
        found = next(f for f in judgement.findings if (f.gate, f.subject) == ("speed ratio", name))
        assert found.level == pytest.approx(0.0015)
        assert found.verdict is (Verdict.REGRESSION if judged else Verdict.NOT_JUDGED)
        assert ("10 are needed" in found.text) is not judged
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
    assert "b0 then, b10000 now" in notes
    assert "pick:" in notes
    assert f"not measured tonight: {now.candidates[-1].name}" in notes


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
