"""Who is dealt prompts, who gets no more of them, and who is picked: by whole made-up builds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cook.errors import GateError, StepError
from cook.job.decide import FILES
from cook.job.run import raise_for
from cook.record.record import Candidate, Record
from tests.job.fabricated import World
from tests.job.whole import Building

MANY = {f"d{i}": 1_000 + i for i in range(6)}
LADDER = World(
    accuracy={name: 0.6 + 0.05 * i for i, name in enumerate(MANY)},
    draft_ms=dict.fromkeys(MANY, 1.0),
)
"""Six drafts, each clearly better than the one before."""
ALIKE = World(accuracy={"small": 0.8, "large": 0.8}, draft_ms={"small": 1.0, "large": 1.0})
ONE_LENGTH: dict[str, Any] = {"draft": {"n_max": [4]}}
NO_GAIN = World(accuracy={"small": 0.05, "large": 0.05}, draft_ms={"small": 9.0, "large": 9.0})
RIVALS: dict[str, Any] = {
    "rivals": [{"type": "ngram-simple", "size_n": 1, "size_m": 1}, "ngram-cache"]
}
RIVAL = "ngram-simple size_n=1 size_m=1"


def candidate(record: Record, name: str) -> Candidate:
    found = record.candidate(name)
    assert found is not None
    return found


def blocks(found: Record) -> list[list[str]]:
    """Names of the candidates in each block, as its commands have them."""
    live = [c for c in found.candidates if c.prompts is not None]
    count = 1 + max(b for c in live if c.prompts for b in c.prompts.block)
    return [[c.name for c in live if c.prompts and b in c.prompts.block] for b in range(count)]


def test_the_first_block_is_no_draft_and_the_best_of_other_files(built: Building) -> None:
    done = built(LADDER, sizes=MANY)
    record = done.record
    first = blocks(record)[0]
    said = {c.name: c.predicted.speedup or 0.0 for c in record.candidates if c.predicted}
    best = {
        draft: max((n for n in said if n.startswith(draft)), key=lambda n: said[n])
        for draft in MANY
    }
    ahead = sorted(best.values(), key=lambda name: -said[name])
    assert {"no draft", *ahead[:2]} <= set(first)
    assert len({name.split()[0] for name in first} - {"no"}) <= FILES
    assert record.pick.candidate == ahead[0]
    assert record.pick.decided
    again = built(LADDER, sizes=MANY)
    assert again.ran == (), "the same build again runs nothing and decides the same"
    assert (again.record.pick, again.record.candidates) == (record.pick, record.candidates)


def test_who_is_surely_worse_gets_no_more_prompts_and_stays_in_the_table(built: Building) -> None:
    record = built(World(accuracy={"small": 0.9, "large": 0.1})).record
    dealt = blocks(record)
    assert any(name.startswith("large") for name in dealt[0])
    assert not any(name.startswith("large") for block in dealt[1:] for name in block)
    bare, slow = candidate(record, "no draft"), candidate(record, "large n_max=2")
    assert (bare.starts, slow.starts) == (4, 1)
    assert slow.live.requests < 16
    assert slow.speedup == pytest.approx(0.72, abs=0.05)
    assert record.pick.within[slow.name] == 0


def test_a_candidate_whose_server_dies_is_out_with_its_reason(built: Building) -> None:
    done = built(World(dying=("small",)))
    record = done.record
    assert done.failures == (), "the build goes on"
    assert (record.pick.candidate or "").startswith("large")
    dead = {c.name: c for c in record.candidates if c.draft == "small"}
    reasons = {e.candidate: e.reason for e in record.pick.excluded}
    for name, one in dead.items():
        assert one.live is None
        assert one.reason == reasons[name] == f"{name}: it crashed"
        assert name not in record.pick.ranking


def test_a_server_that_dies_later_takes_out_what_it_was_dealt_before(built: Building) -> None:
    world = World(dying=("small n_max=4",), dying_from=1)
    record = built(world).record
    dead = candidate(record, "small n_max=4")
    assert (dead.live, dead.reason) == (None, "small n_max=4: it crashed")
    assert (dead.counts, dead.output) == (None, None), "nothing of it is checked"
    assert record.pick.candidate == "small n_max=8"


def test_without_no_draft_nothing_is_compared_and_why_is_said(built: Building) -> None:
    done = built(World(dying=("no draft",)))
    assert done.record.pick.candidate is None
    assert done.record.pick.sentence.startswith("nothing qualifies: ")
    bare = candidate(done.record, "no draft")
    assert bare.live is None
    assert bare.reason.endswith("no draft: it crashed")
    with pytest.raises(StepError, match="1 step failed") as failed:
        raise_for(done)
    assert failed.value.exit_code == 1
    with pytest.raises(GateError, match="nothing qualifies: ") as gate:
        raise_for(replace(done, failures=()))
    assert gate.value.exit_code == 4
    assert len(done.failures) == 1


def test_a_build_that_was_ended_goes_on_at_the_next_block(built: Building, record: Record) -> None:
    built(World(failing=("deal block 2",)))
    after = built()
    dealt = [label for label in after.ran if label.startswith("deal")]
    assert [label.split(":")[0] for label in dealt] == [f"deal block {n}" for n in (2, 3, 4)]
    assert after.record.pick.candidate == record.pick.candidate


def test_the_best_n_gram_runs_in_one_block_of_all_prompts_and_can_win(built: Building) -> None:
    record = built(NO_GAIN, score=RIVALS).record
    rival, bare = candidate(record, RIVAL), candidate(record, "no draft")
    assert (rival.starts, len(set(rival.prompts.block)), rival.live and rival.live.requests) == (
        *(1, 1),
        16,
    )
    assert set(rival.prompts.block) <= set(bare.prompts.block)
    assert record.pick.candidate == RIVAL
    assert rival.speedup is not None
    assert rival.speedup > 1.05
    assert candidate(record, "ngram-cache").live is None, "the best of them alone runs"


def test_a_draft_is_picked_where_it_beats_the_n_grams(built: Building) -> None:
    record = built(score=RIVALS).record
    assert candidate(record, record.pick.candidate or "").key.is_file
    assert candidate(record, RIVAL).live is not None


def test_a_candidate_that_is_to_run_again_is_dealt_every_prompt(
    built: Building, record: Record
) -> None:
    slow = "large n_max=2"
    assert candidate(record, slow).live is None
    again = candidate(built(again=slow).record, slow)
    assert (again.live.requests, again.starts) == (16, 4)


def test_a_spent_budget_names_who_is_left_out_and_what_would_decide(built: Building) -> None:
    record = built(score={"live_budget": {"minutes": 0.01}}).record
    assert len(blocks(record)) == 1, "the first block runs, whatever it takes"
    assert all("score.live_budget is 0.01 minutes" in out.reason for out in record.left_out)
    *candidates, prompts = record.left_out
    assert prompts.candidate == "live requests of 12 of 16 prompts"
    for out in candidates:
        one = candidate(record, out.candidate)
        assert (one.live, one.reason) == (None, out.reason)
    pick = record.pick
    assert not pick.decided
    assert pick.rival_low is not None
    assert pick.rival_high is not None
    assert pick.rival_low < 1 < pick.rival_high
    assert f"Undecided: {pick.rival} is" in pick.sentence
    assert f"{pick.rival_low - 1:+.1%} to {pick.rival_high - 1:+.1%} faster than" in pick.sentence
    assert pick.seconds_to_decide is not None
    assert "of live runs would decide: raise score.live_budget" in pick.sentence


def test_method_live_goes_the_same_way_in_groups(built: Building) -> None:
    record = built(score={"method": "live"}).record
    assert all(c.live is not None and c.predicted is None for c in record.candidates)
    dealt = blocks(record)
    leader = set(dealt[0]) & set(dealt[1]) - {"no draft"}
    assert leader == {record.pick.candidate}, "the leader so far is in every group"
    assert len({*dealt[0], *dealt[1]}) == 7, "six candidates, five servers a group beside no draft"
    assert [set(block) for block in dealt[2:]] == [{"no draft", *leader, record.pick.rival}], (
        "two starts of the leader alone say little of starts: it meets its rival once more"
    )
    assert record.pick.decided


def test_method_live_leaves_out_what_the_budget_has_no_room_for(built: Building) -> None:
    asked = {"method": "live", "live_budget": {"minutes": 0.3}}
    record = built(score=asked).record
    (out,) = record.left_out
    assert out.candidate == "large n_max=8"
    assert candidate(record, out.candidate).reason == out.reason


def test_a_candidate_is_left_out_once(built: Building) -> None:
    rivals = ["ngram-cache", {"type": "ngram-simple", "size_n": 1, "size_m": 1}]
    asked = {"method": "live", "live_budget": {"minutes": 0.3}, "rivals": rivals}
    names = [one.candidate for one in built(score=asked).record.left_out]
    assert "ngram-cache" in names
    assert len(names) == len(set(names))


def test_a_draft_over_a_limit_is_in_no_block(built: Building) -> None:
    record = built(
        World(),
        pick={"subject_to": {"size_gib": 2e-6}},
        again="large n_max=4",
    ).record
    assert not any(name.startswith("large") for block in blocks(record) for name in block)
    assert {e.candidate for e in record.pick.excluded} == {f"large n_max={n}" for n in (2, 4, 8)}


def test_the_smaller_file_is_picked_within_the_margin_and_the_sentence_says_so(
    built: Building,
) -> None:
    sizes = {"small": 9_000, "large": 1_000}  # the better draft is the larger file
    record = built(ALIKE, sizes=sizes, score=ONE_LENGTH, pick={"margin": 0.15}).record
    assert record.pick.decided
    assert (record.pick.leader, record.pick.candidate) == ("small n_max=4", "large n_max=4")
    assert record.pick.within["large n_max=4"] >= 0.95
    assert "within 15 % of small n_max=4, the best (95%), and is the smaller file" in (
        record.pick.sentence
    )


def test_two_engines_are_in_one_table_over_the_fastest_no_draft(built: Building) -> None:
    names = [f"{draft}@{engine}" for engine in ("one", "two") for draft in ("small", "large")]
    world = World(accuracy=dict.fromkeys(names, 0.8), draft_ms=dict.fromkeys(names, 1.0))
    record = built(world, engines=("one", "two")).record
    bare = [c for c in record.candidates if c.draft is None]
    assert {c.name for c in bare} == {"no draft@one", "no draft@two"}
    assert all({c.name for c in bare} <= set(block) for block in blocks(record))
    assert sorted(c.speedup or 0.0 for c in bare)[1] == 1.0, "the fastest is what all are over"
    winner = candidate(record, record.pick.candidate or "")
    fastest = max(bare, key=lambda c: c.speedup or 0.0)
    assert winner.live is not None
    assert fastest.live is not None
    assert winner.speedup is not None
    assert winner.speedup > 1.5
    assert {c.engine for c in record.candidates if c.live} == {"one", "two"}
    assert {f.engine for f in record.factors} <= {"one", "two"}


def test_acceptance_is_a_count_and_no_pass_is_repeated_for_it(built: Building) -> None:
    record = built(pick={"maximize": "acceptance"}).record
    winner = candidate(record, record.pick.candidate or "")
    rates = {c.name: c.live.acceptance_rate or 0.0 for c in record.candidates if c.live and c.draft}
    assert max(rates, key=lambda name: rates[name]) == winner.name
    assert len(blocks(record)) == 4, "one pass of all prompts"
    assert record.pick.start_sd is None


def test_where_no_draft_is_best_it_is_picked(built: Building) -> None:
    record = built(NO_GAIN).record
    assert record.pick.candidate == "no draft"
    assert record.pick.decided
    assert "No draft is the fastest" in record.pick.sentence
    assert all(len(block) > 1 for block in blocks(record)), "the best draft stays beside it"
    assert "the fastest draft, small n_max=2, is 0.4" in record.pick.sentence


def test_repeats_deal_all_prompts_again_to_fresh_servers(built: Building) -> None:
    record = built(score={"repeats": 2}).record
    bare = candidate(record, "no draft")
    assert (bare.live.requests, bare.starts) == (32, 8)


def test_live_speedups_over_those_forecast_are_the_factors(record: Record) -> None:
    """Every step takes half a millisecond more than was timed, and no draft has most steps."""
    (found,) = record.factors
    ran = [c for c in record.candidates if c.key.is_file and c.live is not None]
    assert (found.engine, found.drafts) == ("bundled", len(ran))
    assert 1.0 < found.end_to_end < 1.15
    assert found.decode > 0.95


def test_repeats_that_the_budget_has_no_room_for_are_left_out(built: Building) -> None:
    record = built(score={"repeats": 2, "live_budget": {"minutes": 0.01}}).record
    assert record.pick.looks == 1
    assert record.left_out[-1].candidate == "live requests of 12 of 16 prompts"
