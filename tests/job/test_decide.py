"""Who is dealt prompts, in which blocks and at what cost, who gets no more of them, and who is
picked: by whole made-up builds, and by dealings alone."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from cook.errors import GateError, StepError
from cook.job.decide import (
    BLOCK_PROMPTS,
    BLOCKS,
    FEW_BLOCKS,
    FILES,
    MOST_SEATS,
    TURN_SEATS,
    Dealing,
    fit_together,
)
from cook.job.layout import Configuration
from cook.job.run import raise_for
from cook.record.record import PromptRun, Record
from tests.job.fabricated import Fabrication, FakeEngine, World, prompt_set
from tests.job.laid_out import SIZES, TARGET, layout, score
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
    pick = record.pick
    assert pick.candidate == ahead[0]
    assert pick.decided == (pick.within[pick.leader or ""] >= 1 - 0.05 / pick.looks)
    assert pick.decided
    assert set(pick.within) == {c.name for c in record.candidates if c.live or c.predicted}
    again = built(LADDER, sizes=MANY)
    assert again.ran == (), "the same build again runs nothing and decides the same"
    assert (again.record.pick, again.record.candidates) == (pick, record.candidates)


def test_who_is_surely_worse_gets_no_more_prompts_and_stays_in_the_table(built: Building) -> None:
    record = built(World(accuracy={"small": 0.9, "large": 0.1})).record
    dealt = blocks(record)
    assert any(name.startswith("large") for name in dealt[0])
    assert not any(name.startswith("large") for block in dealt[1:] for name in block)
    bare, slow = record.candidate("no draft"), record.candidate("large n_max=2")
    assert (bare.starts, slow.starts) == (5, 1)
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
    dead = record.candidate("small n_max=4")
    assert (dead.live, dead.reason) == (None, "small n_max=4: it crashed")
    assert (dead.counts, dead.output) == (None, None), "nothing of it is checked"
    assert record.pick.candidate == "small n_max=8"


def test_without_no_draft_nothing_is_compared_and_why_is_said(built: Building) -> None:
    done = built(World(dying=("no draft",)))
    assert done.record.pick.candidate is None
    assert done.record.pick.sentence.startswith("nothing qualifies: ")
    bare = done.record.candidate("no draft")
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
    assert [label.split(":")[0] for label in dealt] == [f"deal block {n}" for n in (2, 3, 4, 5)]
    assert after.record.pick.candidate == record.pick.candidate


def test_the_best_n_gram_runs_in_one_block_of_all_prompts_and_can_win(built: Building) -> None:
    record = built(NO_GAIN, score=RIVALS).record
    rival, bare = record.candidate(RIVAL), record.candidate("no draft")
    assert rival.live.requests == 16 * (rival.starts or 0) == 16 * len(set(rival.prompts.block))
    assert set(rival.prompts.block) <= set(bare.prompts.block)
    first, second = blocks(record)
    assert len(first) > 2, "no draft and drafts, none of which may win any more"
    assert second == ["no draft", RIVAL, "ngram-cache"], "which may win as well"
    assert record.pick.candidate == RIVAL
    assert (rival.speedup or 0) > 1.05
    assert record.pick.decided
    short = built(NO_GAIN, score={**RIVALS, "live_budget": {"minutes": 0.36}}).record
    assert blocks(short)[1] == ["no draft", RIVAL], "the best alone where no more has room"
    assert not short.pick.decided
    assert short.pick.rival == "ngram-cache"
    assert short.pick.seconds_to_decide


def test_n_grams_are_dealt_as_many_prompts_as_the_budget_has_room_for(built: Building) -> None:
    record = built(NO_GAIN, score={**RIVALS, "live_budget": {"minutes": 0.3}}).record
    assert [len(block) for block in blocks(record)] == [3, 2]
    rival, bare = record.candidate(RIVAL), record.candidate("no draft")
    assert rival.live.requests == 8, "half of them"
    assert Counter(rival.prompts.categories) == {"a": 4, "b": 4}
    assert bare.live.requests > 8
    assert record.pick.candidate == RIVAL
    none = built(NO_GAIN, score={**RIVALS, "live_budget": {"minutes": 0.24}}).record
    assert none.candidate(RIVAL).live is None, "fewer than eight say nothing"


def test_a_draft_is_picked_where_it_beats_the_n_grams(built: Building) -> None:
    record = built(score=RIVALS).record
    assert record.candidate(record.pick.candidate or "").key.is_file
    assert record.candidate(RIVAL).live is not None


def test_a_candidate_that_is_to_run_again_is_dealt_every_prompt(
    built: Building, record: Record
) -> None:
    slow = "large n_max=2"
    assert record.candidate(slow).live is None
    again = built(again=slow).record.candidate(slow)
    assert (again.live.requests, again.starts) == (16, 5)


def test_a_spent_budget_names_who_is_left_out_and_what_would_decide(built: Building) -> None:
    record = built(ALIKE, score={"live_budget": {"minutes": 0.01}}).record
    assert len(blocks(record)) == 1, "the first block runs, whatever it takes"
    assert all("score.live_budget is 0.01 minutes" in out.reason for out in record.left_out)
    *candidates, prompts = record.left_out
    assert prompts.candidate == "live requests of 12 of 16 prompts"
    for out in candidates:
        one = record.candidate(out.candidate)
        assert (one.live, one.reason) == (None, out.reason)
    pick = record.pick
    low, high = pick.rival_low or 0.0, pick.rival_high or 0.0
    assert not pick.decided
    assert low < 1 < high
    assert f"Undecided: {pick.rival} is" in pick.sentence
    assert f"{low - 1:+.1%} to {high - 1:+.1%} faster than" in pick.sentence
    assert pick.seconds_to_decide is not None
    assert "of live runs would decide: raise score.live_budget" in pick.sentence


def test_method_live_goes_the_same_way_in_groups(built: Building) -> None:
    record = built(ALIKE, score={"method": "live"}).record
    assert all(c.live is not None and c.predicted is None for c in record.candidates)
    dealt = blocks(record)
    leader = set(dealt[0]) & set(dealt[1]) - {"no draft"}
    assert leader == {record.pick.candidate}, "the leader so far is in every group"
    assert len({*dealt[0], *dealt[1]}) == 7, "six candidates, five servers a group next to no draft"
    assert [set(block) for block in dealt[2:]] == [{"no draft", *leader, record.pick.rival}], (
        "two starts of the leader alone say little of starts: it meets its rival once more"
    )
    assert record.pick.decided


def test_method_live_leaves_out_once_what_the_budget_has_no_room_for(built: Building) -> None:
    asked = {"method": "live", "live_budget": {"minutes": 0.3}}
    record = built(score=asked).record
    (out,) = record.left_out
    assert out.candidate == "large n_max=8"
    assert record.candidate(out.candidate).reason == out.reason
    names = [one.candidate for one in built(score={**asked, **RIVALS}).record.left_out]
    assert "ngram-cache" in names
    assert len(names) == len(set(names))


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
    winner = record.candidate(record.pick.candidate or "")
    assert winner.live is not None
    assert (winner.speedup or 0) > 1.5
    assert {c.engine for c in record.candidates if c.live} == {"one", "two"}
    assert {f.engine for f in record.factors} <= {"one", "two"}
    assert {f.engine for f in record.noise} == set(record.engines) == {"one", "two"}


def test_acceptance_is_a_count_and_no_pass_is_repeated_for_it(built: Building) -> None:
    record = built(pick={"maximize": "acceptance"}).record
    winner = record.candidate(record.pick.candidate or "")
    rates = {c.name: c.live.acceptance_rate or 0.0 for c in record.candidates if c.live and c.draft}
    assert max(rates, key=lambda name: rates[name]) == winner.name
    assert len(blocks(record)) == 5, "one pass of all prompts"
    assert record.pick.start_sd is None


def test_the_best_by_a_count_is_picked_where_the_budget_let_it_not_run(built: Building) -> None:
    asked = {**RIVALS, "live_budget": {"minutes": 0.01}}
    record = built(NO_GAIN, score=asked, pick={"maximize": "acceptance"}).record
    assert record.candidate(record.pick.leader or "").live is None
    assert record.pick.candidate == record.pick.leader == RIVAL
    assert record.pick.decided


def test_undecided_against_no_draft_says_what_would_decide(built: Building) -> None:
    world = World(accuracy={"small": 0.8, "large": 0.8}, draft_ms={"small": 9.5, "large": 19.0})
    asked = {**ONE_LENGTH, "live_budget": {"minutes": 0.01}}
    pick = built(world, score=asked).record.pick
    assert {pick.leader, pick.rival} == {"small n_max=4", "no draft"}
    assert not pick.decided
    assert (pick.seconds_to_decide or 0) > 1


def test_where_no_draft_is_best_it_is_picked(built: Building) -> None:
    record = built(NO_GAIN).record
    assert record.pick.candidate == "no draft"
    assert record.pick.decided
    assert "No draft is the fastest" in record.pick.sentence
    assert all(len(block) > 1 for block in blocks(record)), "the best draft stays next to it"
    assert "the fastest draft, small n_max=2, is 0.4" in record.pick.sentence


def test_repeats_deal_all_prompts_again_to_fresh_servers(built: Building) -> None:
    bare = built(score={"repeats": 2}).record.candidate("no draft")
    assert (bare.live.requests, bare.starts) == (32, 10)
    record = built(score={"repeats": 2, "live_budget": {"minutes": 0.01}}).record
    assert record.pick.looks == 1, "the budget has no room for more"
    assert record.left_out[-1].candidate == "live requests of 12 of 16 prompts, pass 1 of 2"
    passes = {"repeats": 3, "live_budget": {"minutes": 0.5}}
    said = [out.candidate for out in built(score=passes).record.left_out]
    assert any(name.endswith("of 3") and "pass 1" not in name for name in said), said


def test_live_speedups_over_those_forecast_are_the_factors(record: Record) -> None:
    """Every step takes half a millisecond more than was timed, and no draft has most steps."""
    (found,) = record.factors
    ran = [c for c in record.candidates if c.key.is_file and c.live is not None]
    assert (found.engine, found.drafts) == ("bundled", len(ran))
    assert 1.0 < found.end_to_end < 1.15
    assert found.decode > 0.95
    whole = [math.log((c.speedup or 0) / (c.predicted.speedup or 1)) for c in ran]
    decode = [math.log((c.decode_speedup or 0) / (c.predicted.decode_speedup or 1)) for c in ran]
    assert math.log(found.end_to_end) == pytest.approx(fmean(whole))
    assert math.log(found.decode) == pytest.approx(fmean(decode))


LAYOUT = layout()
PROMPTS = prompt_set().prompts


def seated(*names: str) -> list[Configuration]:
    assert LAYOUT.baseline is not None
    return [LAYOUT.baseline, *(c for c in LAYOUT.grid if c.name in names)]


TWO = seated("small n_max=4", "large n_max=4")
ALL_MODELS = TARGET.size_bytes + sum(SIZES.values())


def request(prompt: str, wall_ms: float) -> PromptRun:
    return PromptRun(prompt, "a", 5, 1.0, 24, wall_ms, wall_ms, None, None, None, "", "limit")


def dealing(folder: Path, *, wall_ms: float | None = None, load_s: float = 0.0) -> Dealing:
    """Every request forecast to take ``wall_ms``; None: nothing is known."""
    said = [request(p.id, wall_ms) for p in PROMPTS] if wall_ms is not None else []
    return Dealing(
        Fabrication(folder), True, 600.0, {c.key: said for c in TWO} if said else {}, load_s
    )


def test_blocks_hold_every_prompt_once_and_their_part_of_every_category(tmp_path: Path) -> None:
    made = dealing(tmp_path, wall_ms=1000)
    found = made.blocks(PROMPTS, TWO)
    assert len(found) == len(PROMPTS) // BLOCK_PROMPTS < BLOCKS
    assert Counter(p.id for block in found for p in block) == Counter(p.id for p in PROMPTS)
    for block in found:
        assert set(Counter(p.category for p in block).values()) <= {1, 2}
        assert {p.category for p in block} == {"a", "b"}
    assert [len(made.blocks(PROMPTS[:n], TWO)) for n in (1, 5, 6, 9, 12)] == [1, 1, 2, 3, 4]


def test_blocks_are_as_many_as_keep_loads_below_a_quarter_of_requests(tmp_path: Path) -> None:
    """16 prompts to each of 3 servers, of which a quarter is 4 s; at most a block for 3 of them."""
    for load_s, count in ((0.5, 5), (0.9, 4), (1.1, 3), (1.9, 2), (60.0, FEW_BLOCKS)):
        made = dealing(tmp_path, wall_ms=1000, load_s=load_s)
        assert len(made.blocks(PROMPTS, TWO)) == count
    turns = dealing(tmp_path, wall_ms=1000)
    assert turns.seats == MOST_SEATS
    turns.together = False
    assert len(turns.blocks(PROMPTS, TWO)) == FEW_BLOCKS
    assert turns.seats == TURN_SEATS


def test_what_a_block_will_take_is_loads_and_requests(tmp_path: Path) -> None:
    known = dealing(tmp_path, wall_ms=1000, load_s=2.0)
    assert known.estimate(TWO, PROMPTS[:4]) == pytest.approx(3 * (2.0 + 4 * 1.0))
    assert dealing(tmp_path, load_s=2.0).estimate(TWO, PROMPTS) == 6.0, "nothing is known"
    one = Dealing(Fabrication(tmp_path), True, 600.0, {TWO[0].key: [request("p00", 500)]}, 0.0)
    assert one.estimate(TWO, PROMPTS[:4]) == pytest.approx(3 * 2.0), "as the others' are"


def test_once_it_ran_the_estimate_is_of_what_was_measured(tmp_path: Path) -> None:
    made = dealing(tmp_path, wall_ms=1e6)
    assert made.deal(TWO, PROMPTS[:4])
    spent = sum(r.wall_ms for c in TWO for r in made.runs[c.key]) / 1000 + 3 * made.load_s
    assert made.load_s == 0.5, "as the made-up server says"
    assert made.spent_s() == pytest.approx(spent)
    assert made.estimate(TWO, PROMPTS[:4]) == pytest.approx(spent)


def test_where_others_crowd_the_machine_the_next_block_is_estimated_to_take_as_long(
    tmp_path: Path,
) -> None:
    made = Dealing(Fabrication(tmp_path, World(crowding=3.0)), True, 600.0, {})
    assert made.deal(TWO, PROMPTS[:4])
    ran = sum(r.wall_ms for c in TWO for r in made.runs[c.key]) / 1000 + 3 * 0.5
    assert made.estimate(TWO, PROMPTS[:4]) == pytest.approx(3.0 * ran)


def test_what_was_dealt_is_kept_by_candidate(tmp_path: Path) -> None:
    made = dealing(tmp_path)
    bare, small, large = TWO
    assert made.dealt(small.key) is None
    for block in (PROMPTS[:4], PROMPTS[4:8]):
        assert made.deal(TWO, block)
    assert made.deal([bare, small], PROMPTS[8:])
    found = made.dealt(large.key)
    assert [step.block for step in found.steps] == [0, 1]
    assert set(found.prompts) == {p.id for p in PROMPTS[:8]}
    assert [run.block for run in made.runs[bare.key]] == [*[0] * 4, *[1] * 4, *[2] * 8]
    assert [[run.id for run in o.runs] for o in found.outcomes(made.executor.outcomes.result)] == [
        [p.id for p in PROMPTS[:4]],
        [p.id for p in PROMPTS[4:8]],
    ]


def test_a_prompt_that_others_disturbed_for_one_counts_for_none(tmp_path: Path) -> None:
    bare, small, large = TWO
    ids = [p.id for p in PROMPTS]
    busy = (f"{small.name} {ids[1]}", f"{large.name} {ids[6]}")
    made = Dealing(Fabrication(tmp_path, World(busy=busy)), True, 600.0, {})
    assert made.deal(TWO, PROMPTS[:4])
    assert made.deal(TWO, PROMPTS[4:8])
    for key in (bare.key, small.key, large.key):
        assert [run.id for run in made.runs[key]] == [ids[0], *ids[2:6], ids[7]]


def test_without_no_draft_the_block_counts_for_none(tmp_path: Path) -> None:
    made = Dealing(Fabrication(tmp_path, World(dying=("no draft",))), True, 600.0, {})
    assert not made.deal(TWO, PROMPTS[:4])
    assert set(made.failed) == {c.key for c in TWO}
    assert all(why.endswith("no draft: it crashed") for why in made.failed.values())
    assert made.spent_s() == 0.0


def test_a_reference_build_is_dealt_the_same_prompts_in_the_same_block(tmp_path: Path) -> None:
    other: Any = FakeEngine("reference")
    made = Dealing(Fabrication(tmp_path), True, 600.0, {}, load_s=2.0, reference={"bundled": other})
    assert made.estimate(TWO, PROMPTS[:4]) == 12.0, "two servers of each candidate"
    assert made.deal(TWO, PROMPTS[:4])
    (step,) = made.steps
    assert [server.engine.name for server in step.servers] == [*["bundled"] * 3, *["reference"] * 3]
    assert [server.name for server in step.servers[3:]] == [
        f"{c.name} on the reference build" for c in TWO
    ]
    for configuration in TWO:
        mine, theirs = made.runs[configuration.key], made.on_reference[configuration.key]
        assert [run.id for run in mine] == [run.id for run in theirs] == [p.id for p in PROMPTS[:4]]
        found = made.dealt(configuration.key)
        assert found.live.engine.name == "bundled"


def test_files_that_are_mapped_are_in_memory_once() -> None:
    several = seated("small n_max=2", "small n_max=4", "large n_max=4")
    needed = round(ALL_MODELS / 0.9)
    assert fit_together(several, needed + 1)
    assert not fit_together(several, needed - 1)
    assert fit_together(several, None), "what there is is not known"


def placed(*, draft: bool, **changes: Any) -> list[Configuration]:
    """TWO with ``changes`` of the target's arguments of all servers, or of the drafts'."""
    found = []
    for one in TWO:
        args = replace(one.live.draft_args if draft else one.live.target_args, **changes)
        live = replace(one.live, draft_args=args) if draft else replace(one.live, target_args=args)
        found.append(replace(one, live=live))
    return found


@pytest.mark.parametrize("flag", ["--no-mmap", "-rtr", "--run-time-repack"])
def test_weights_that_every_server_has_for_itself_count_for_every_server(flag: str) -> None:
    own = placed(draft=False, extra=(flag,))
    needed = 3 * TARGET.size_bytes + sum(SIZES.values())
    assert fit_together(own, round(needed / 0.9) + 1)
    assert not fit_together(own, round(needed / 0.9) - 1)
    assert fit_together(TWO, round(needed / 0.9) - 1)


@pytest.mark.parametrize("draft", [False, True])
@pytest.mark.parametrize(
    "place", [{"n_gpu_layers": 99}, {"devices": ("CUDA0",)}, {"rpc": ("host:1",)}], ids=str
)
def test_on_devices_and_on_other_machines_they_take_turns(
    place: dict[str, Any], draft: bool
) -> None:
    assert not fit_together(placed(draft=draft, **place), None)


def test_a_baseline_with_arguments_of_its_own_takes_turns_with_drafts() -> None:
    own = layout(score(baseline={"args": {"threads": 7}}))
    assert own.baseline is not None
    assert not fit_together([own.baseline, *own.grid[:1]], None)
    assert fit_together([own.baseline], None)
