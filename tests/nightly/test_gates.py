"""The rules on simulated nights: what is exact, what is noisy, what was not measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cook.engines.base import EngineIdentity
from cook.errors import GateError, InputError
from cook.formats.quant_types import Flavour
from cook.nightly.gates import Judgement, Verdict, as_document, compare, judge, raise_for
from cook.nightly.history import History, Night, ReferenceNights
from cook.nightly.pipeline import GatesSpec
from cook.record.record import Candidate, Excluded, Quality, read_record
from tests.bare_records import RECORD
from tests.nightly.nights import (
    Harm,
    Series,
    World,
    false_alarms,
    judged,
    nights_until_found,
    starts_printed,
    verdicts,
)

GATES = GatesSpec()
BUILDS = pytest.mark.parametrize("reference", [False, True])
SEED = 40_000_000
"""Of the figures in docs/nightly.md; the rules were made on other seeds."""


def against(now: Night, *earlier: Night) -> Judgement:
    history = History(Path("x"), tuple(night.judged((), ()) for night in earlier))
    return judge(now, history.reference(earlier[0].series), GATES)


def with_record(night: Night, **changes: Any) -> Night:
    return replace(night, record=replace(night.record, **changes))


@pytest.fixture(scope="module")
def nights() -> list[Night]:
    series = Series(World(prompts=24, tokens=64, new_builds=0), seed=3)
    return [series.measure() for _ in range(9)]


def test_nights_of_one_build_are_the_same(nights: list[Night]) -> None:
    judgement = against(nights[-1], *nights[:-1])
    assert judgement.accepted.id == nights[0].id
    assert judgement.regressions == ()
    exact = next(f for f in judgement.findings if f.text == "identical to the last digit")
    assert exact.gate == "replayed acceptance, perplexity, KLD, size"
    assert exact.subject == "Q4, Q8, Q16"
    assert judgement.notes == ()
    assert judgement.unjudged_pick is None
    for finding in judgement.findings:
        if finding.low is not None and finding.before and finding.now and finding.change:
            ratio = finding.now / finding.before - 1
            assert finding.change == pytest.approx(100 * ratio, abs=1e-6), "as printed"


def test_without_a_night_only_the_reference_build_is_compared() -> None:
    night = Series(World(prompts=24, reference=True), seed=1).measure()
    judgement = judge(night, None, GATES)
    assert {f.gate for f in judgement.findings} == {"speed over the reference build"}
    assert "assumed" in (judgement.power or "")
    plain = judge(Series(World(prompts=24), seed=1).measure(), None, GATES)
    assert (plain.findings, plain.power) == ((), None)
    assert plain.notes == ("no good night of this series to compare with",)
    assert as_document(None) is None


@pytest.mark.parametrize(
    ("gate", "before", "better", "worse"),
    [("perplexity", 8.0, 7.9, 8.2), ("KLD", 0.05, 0.04, 0.06), ("size", 2000, 1990, 2020)],
)
def test_files_are_compared_directly(
    nights: list[Night], gate: str, before: float, better: float, worse: float
) -> None:
    def of(value: float) -> Night:
        figures: dict[str, Any] = {"perplexity": 8.0, "KLD": 0.05, "size": 1000} | {gate: value}
        quality = Quality(figures["perplexity"], 0.1, 100, 512, mean_kld=figures["KLD"])
        draft = replace(nights[1].record.drafts[0], quality=quality, file_bytes=figures["size"])
        return with_record(nights[1], drafts=(draft,))

    then = replace(of(before), id="before")
    for value, verdict in ((worse, Verdict.REGRESSION), (better, Verdict.IMPROVEMENT)):
        assert verdicts(against(of(value), then), gate) == {"Q4": verdict}


def test_quality_on_another_amount_of_text_is_not_judged(nights: list[Night]) -> None:
    first, second, third = nights[1].record.drafts
    second = replace(second, quality=replace(second.quality, chunks=50))  # type: ignore[type-var]
    judgement = against(with_record(nights[1], drafts=(first, second, third)), nights[0])
    assert verdicts(judgement, "perplexity, KLD") == {"Q8": Verdict.NOT_JUDGED}


def with_replay(night: Night, share: float, **changes: Any) -> Night:
    """``night`` with that share of the accepted tokens of the replay of Q8."""
    replayed = tuple(
        replace(r, accepted=tuple(int(share * a) for a in r.accepted), **changes)
        if r.draft == "Q8"
        else r
        for r in night.record.replayed
    )
    return with_record(night, replayed=replayed)


def test_acceptance_is_compared_on_the_replies_of_the_same_text(nights: list[Night]) -> None:
    (worse,) = against(with_replay(nights[1], 0.8), nights[0]).regressions
    assert (worse.gate, worse.subject) == ("replayed acceptance", "Q8")
    texts = nights[0].record.replayed[0].texts
    few = ("new",) * (len(texts) - 12) + texts[-12:]
    (worse,) = against(with_replay(nights[1], 0.8, texts=few), nights[0]).regressions
    assert "(12 prompts)" in worse.text
    fewer = ("new",) * (len(texts) - 9) + texts[-9:]
    none = against(with_replay(nights[1], 0.8, texts=fewer), nights[0])
    skipped = next(f for f in none.findings if f.subject == "Q8" and "replayed" in f.gate)
    assert skipped.verdict is Verdict.NOT_JUDGED
    assert "9 of 24 replies are known to be the same text" in skipped.text


def test_without_digests_only_one_build_writes_one_text(nights: list[Night]) -> None:
    before = with_replay(nights[0], 1.0, texts=())
    same = with_replay(nights[1], 0.8, texts=())
    assert against(same, before).regressions
    other = {"bundled": EngineIdentity(Flavour.LLAMA_CPP, "b9", None, "f" * 64)}
    judgement = against(with_record(same, engines=other), before)
    assert verdicts(judgement, "replayed acceptance")["Q8"] is Verdict.NOT_JUDGED
    assert "changed since then: engine bundled: b0 then, b9 now" in judgement.notes


def test_live_acceptance_counts_where_nothing_was_replayed(nights: list[Night]) -> None:
    def blind(one: Candidate) -> Candidate:
        if one.draft != "Q8" or one.prompts is None:
            return one
        return replace(one, prompts=replace(one.prompts, accepted=(0,) * len(one.prompts.ids)))

    before = with_record(nights[0], replayed=())
    now = with_record(nights[1], replayed=(), candidates=tuple(map(blind, nights[1].live)))
    judgement = against(now, before)
    assert verdicts(judgement, "acceptance")["Q8 n_max=8"] is Verdict.REGRESSION
    assert [f.subject for f in judgement.regressions] == ["Q8 n_max=8"]


@pytest.mark.parametrize(
    ("changes", "unjudged", "reason"),
    [
        # Three replays, four speeds.
        ({"prompts_sha256": "1" * 64}, 7, "prompts_sha256 is another: "),
        ({"machine": replace(RECORD.machine, processor="another")}, 4, "the machine is another"),
        ({"disturbed": 3}, 4, "other programs disturbed 3 timings"),
    ],
)
def test_figures_of_other_things_are_not_judged(
    nights: list[Night], changes: dict[str, Any], unjudged: int, reason: str
) -> None:
    before = nights[0].judged((), ())
    reference = ReferenceNights(before, (before,), (before,), (before,))
    judgement = judge(with_record(nights[1], **changes), reference, GATES)
    skipped = [f.text for f in judgement.findings if f.verdict is Verdict.NOT_JUDGED]
    assert len(skipped) == unjudged
    assert all(text.startswith(reason) for text in skipped)
    assert (judgement.unjudged_pick or "").startswith(reason)
    assert judgement.regressions == ()
    assert any("identical" in f.text for f in judgement.findings)


def test_a_reference_build_is_compared_on_a_disturbed_night_as_well() -> None:
    series = Series(World(prompts=24, reference=True), seed=2)
    first, second = series.measure(), series.measure()
    assert against(with_record(second, disturbed=3), first).unjudged_pick is None


def test_what_did_not_run_live_is_not_judged(nights: list[Night]) -> None:
    """A pick that the budget leaves out has lost nothing that is known, and gained nothing."""
    pick = nights[0].pick or ""
    left = tuple(c for c in nights[1].live if c.name != pick)
    record = replace(nights[1].record.pick, excluded=(Excluded(pick, "no time left"),))
    now = with_record(nights[1], candidates=left, pick=record, replayed=())
    judgement = against(now, with_record(nights[0], replayed=()))
    assert verdicts(judgement, "speed")[pick] is Verdict.NOT_JUDGED
    assert judgement.unjudged_pick == "not run live tonight: no time left"
    assert judgement.regressions == ()


def test_a_draft_over_a_limit_is_a_regression(nights: list[Night]) -> None:
    record = replace(nights[1].record.pick, excluded=(Excluded("Q8 n_max=8", "over the limit"),))
    (worse,) = against(with_record(nights[1], pick=record), nights[0]).regressions
    assert (worse.gate, worse.subject) == ("qualifies", "Q8 n_max=8")


def harmed(world: World, seed: int, nights: int, harm: Harm) -> tuple[Judgement, set[str]]:
    """What is judged of a night with ``harm`` after so many without, and what got worse."""
    series = Series(world, seed)
    past = series.good_nights(nights)
    judgement = judged(series.measure(harm), past, GATES)
    return judgement, {f.subject for f in judgement.regressions}


def test_a_pick_that_lost_its_rank_is_judged_by_its_speed() -> None:
    pick = Series(World(), seed=5).measure().pick or ""
    judgement, worse = harmed(World(), 5, 8, Harm(slowdown=0.3, only=(pick,)))
    assert worse == {pick}
    (note,) = (n for n in judgement.notes if n.startswith(f"pick: {pick} then, "))
    assert not note.endswith(f" {pick} now")


def test_a_slower_machine_is_no_slower_draft_but_a_slower_engine_shows_side_by_side() -> None:
    still = World(slow_nights=0)
    assert harmed(still, 4, 8, Harm(slowdown=0.03))[1] == set()
    side_by_side = World(reference=True, starts=4)
    assert "no draft" in harmed(side_by_side, 4, 4, Harm(slowdown=0.05))[1]


@BUILDS
def test_a_share_of_the_simulated_nights(reference: bool) -> None:
    """What the soak test shows, at a tenth of the size and with room for chance."""
    world = World(reference=reference)
    assert len(false_alarms(world, 20, 11, GATES)) <= 1
    assert len(nights_until_found(world, 0.05, 6, 12, GATES)) >= 5
    creeping = nights_until_found(replace(world, starts=4), 0.01, 2, 13, GATES, 10, history=12)
    assert len(creeping) == 2


@pytest.mark.soak
@BUILDS
@pytest.mark.parametrize("noise", [0.008, 0.02, 0.03])
def test_healthy_nights_raise_few_alarms(reference: bool, noise: float) -> None:
    world = World(reference=reference, start_noise=noise)
    alarms = false_alarms(world, 300, SEED, GATES)
    print(f"{noise:.1%}, reference {reference}: {len(alarms)} of 300", *alarms, sep="\n")
    assert len(alarms) <= 6


@pytest.mark.soak
@BUILDS
@pytest.mark.parametrize("noise", [0.008, 0.02, 0.03])
def test_a_pick_that_is_5_percent_slower_is_found_that_night(reference: bool, noise: float) -> None:
    world = World(reference=reference, start_noise=noise)
    starts = 1 if noise == 0.008 else starts_printed(world, SEED, GATES)
    world = replace(world, starts=starts)
    found = len(nights_until_found(world, 0.05, 300, SEED + 10_000, GATES))
    print(f"{noise:.1%}, reference {reference}, {starts} starts: {found} of 300")
    assert found >= 285


@pytest.mark.soak
@BUILDS
@pytest.mark.parametrize("noise", [0.008, 0.02])
def test_a_creeping_loss_is_found_by_the_tenth_night(reference: bool, noise: float) -> None:
    world = World(reference=reference, starts=4, start_noise=noise)
    found = nights_until_found(world, 0.01, 300, SEED + 20_000, GATES, 10, history=12)
    print(f"{noise:.1%}, reference {reference}: {len(found)} of 300", sorted(found)[150])
    assert len(found) >= 285


def test_a_record_is_compared_with_another_or_with_a_history(tmp_path: Path) -> None:
    kept = Path(__file__).parents[1] / "data" / "records" / "live.json"
    record = replace(read_record(kept), created="2027-01-01T00:00:00Z")
    same = compare(record, kept)
    raise_for(same)
    assert (as_document(same) or {})["findings"] == same.findings
    first, *others = record.drafts
    larger = replace(first, file_bytes=2 * (first.file_bytes or 0))
    worse = compare(replace(record, drafts=(larger, *others)), kept)
    assert [f.gate for f in worse.regressions] == ["size"]
    with pytest.raises(GateError, match="1 regression: size of"):
        raise_for(worse)
    with pytest.raises(InputError, match="no such history"):
        compare(record, tmp_path / "none.jsonl")
    with pytest.raises(InputError, match="no earlier good night"):
        compare(replace(record, recipe_sha256="0" * 64), kept.with_name("history.jsonl"))
