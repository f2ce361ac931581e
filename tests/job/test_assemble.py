"""The record of a build whose outcomes are made up: what ran, what failed, what never ran."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from cook.errors import InputError, StepError
from cook.graph.execute import Outcomes
from cook.graph.store import Store
from cook.job.assemble import by_cause, replayed_prompts
from cook.job.run import Built
from cook.record.record import Candidate, Objective, PromptFigures, Record, read_record
from cook.scoring.compare import figures
from cook.steps.deal import DealOutcome
from tests.job.fabricated import World, source
from tests.job.laid_out import layout, score
from tests.job.whole import Building


def test_every_candidate_is_there_those_that_ran_live_first(record: Record) -> None:
    names = [c.name for c in record.candidates]
    live = [c.name for c in record.candidates if c.live is not None]
    assert names[: len(live)] == live
    assert live[0] == "no draft"
    assert {c.draft for c in record.candidates if c.live} == {None, "small", "large"}
    assert sorted(names) == sorted(
        ["no draft", *(f"{d} n_max={n}" for d in ("small", "large") for n in (2, 4, 8))]
    )
    for candidate in record.candidates:
        if candidate.live is None:
            assert candidate.reason == "predicted; not among the finalists"
            assert (candidate.categories, candidate.prompts) == ({}, None)
            assert candidate.speedup is None
        else:
            assert candidate.reason is None


def test_live_figures_are_sums_over_the_stored_blocks(made_up: Built) -> None:
    record, home = made_up.record, made_up.path.parents[2]
    winner = record.candidate(record.pick.candidate or "")
    assert winner is not None
    assert winner.live is not None
    adapter = TypeAdapter(DealOutcome)
    stored = [
        (server, one.outcome)
        for a in sorted(Store(home / "store").entries(), key=lambda a: a.label)
        if a.kind == "deal"
        for server, one in zip(
            a.key_parts["params"]["servers"], adapter.validate_python(a.result).dealt, strict=True
        )
    ]
    outcomes = [
        one
        for server, one in stored
        if server["inputs"].get("draft") == source(winner.draft or "").key
        and server["params"]["settings"]["n_max"] == winner.settings.n_max
        and one is not None
    ]
    runs = [run for outcome in outcomes for run in outcome.runs]
    assert winner.live == figures(runs)
    assert winner.starts == len(outcomes) == 4
    assert winner.server_peak_rss_bytes == max(outcome.peak_rss_bytes for outcome in outcomes)
    assert winner.prompts.ids == tuple(run.id for run in runs)
    assert winner.prompts.block == (*[0] * 4, *[1] * 4, *[2] * 4, *[3] * 4)
    assert winner.prompts.order == tuple(run.order for run in runs)
    assert sum(f.requests for f in winner.categories.values()) == len(runs)
    assert read_record(home / "records" / "made-up.json") == record


def moved_speedup(candidate: Candidate, bare: Candidate) -> float:
    """By the record's columns: of common requests, moved by the forecasts to all prompts."""
    mine, theirs = candidate.prompts, bare.prompts
    assert mine is not None
    assert theirs is not None
    said, others = candidate.predicted.prompts, bare.predicted.prompts
    assert said is not None
    assert others is not None
    both = set(zip(mine.ids, mine.block, strict=True)) & set(
        zip(theirs.ids, theirs.block, strict=True)
    )
    ids = {name for name, _ in both}

    def speed(found: PromptFigures, kept: Callable[[str, int], bool]) -> float:
        blocks = found.block or (0,) * len(found.ids)
        rows = zip(found.ids, blocks, found.tokens, found.wall_ms, strict=True)
        tokens, ms = zip(*((n, t) for name, b, n, t in rows if kept(name, b)), strict=True)
        return float(sum(tokens) / sum(ms))

    def forecast(kept: Callable[[str], bool]) -> float:
        return speed(said, lambda n, _: kept(n)) / speed(others, lambda n, _: kept(n))

    live = speed(mine, lambda n, b: (n, b) in both) / speed(theirs, lambda n, b: (n, b) in both)
    return live * forecast(lambda n: n in theirs.ids) / forecast(ids.__contains__)


def test_speedups_are_of_the_same_requests_of_no_draft(record: Record) -> None:
    bare = record.candidate("no draft")
    assert bare is not None
    assert bare.live.end_to_end_speed is not None
    assert (bare.speedup, bare.decode_speedup, bare.speedup_interval) == (1.0, 1.0, None)
    ran = [c for c in record.candidates[1:] if c.live is not None]
    for candidate in ran:
        assert candidate.speedup is not None
        whole = candidate.live.requests == bare.live.requests
        found = candidate.live.end_to_end_speed or 0
        if whole:  # to the digit
            assert candidate.speedup == pytest.approx(found / bare.live.end_to_end_speed, rel=1e-9)
        # Else of the requests of both, moved to all by what is forecast.
        assert candidate.speedup == pytest.approx(moved_speedup(candidate, bare), rel=1e-4)
        if candidate.speedup_interval is not None:
            low, high = candidate.speedup_interval.low, candidate.speedup_interval.high
            assert (low * high) ** 0.5 == pytest.approx(candidate.speedup, rel=1e-9)
    assert any(c.live and c.live.requests < bare.live.requests for c in ran)
    winner = record.candidate(record.pick.candidate or "")
    assert winner.speedup_interval is not None


def test_a_prediction_is_held_against_its_live_requests(record: Record) -> None:
    for candidate in record.candidates:
        found = candidate.predicted
        assert found is not None, "every draft was replayed and timed"
        assert len(found.prompts.ids) == 16, "every prompt"
        spent = found.verify_s + found.draft_s + found.mirror_s + found.sample_s
        assert spent == pytest.approx(found.figures.decode_ms / 1000)
        assert sum(d.drafted for d in found.by_depth) == (found.figures.drafted or 0)
        assert (found.off_by is None) == (found.on_live is None) == (candidate.live is None)
        if candidate.live is not None:
            assert found.on_live.requests == candidate.live.requests
            quotient = (found.on_live.end_to_end_speed or 0) / (
                candidate.live.end_to_end_speed or 1
            )
            assert found.off_by == pytest.approx(quotient - 1)
            assert found.off_by == pytest.approx(0, abs=0.12)
            assert found.decode_off_by == pytest.approx(0, abs=0.15)


def test_what_is_asked_of_a_finalist_beside_its_speed(record: Record) -> None:
    for candidate in record.candidates[1:]:
        if candidate.live is None:
            assert (candidate.counts, candidate.counts_reason, candidate.output) == (None,) * 3
            continue
        assert (candidate.counts.exact, candidate.counts.replay_drafted) == (4, 101)
        assert candidate.counts_reason is None
        if candidate.name != record.pick.candidate:
            assert candidate.output is None, "nobody would serve it"
            continue
        assert (candidate.output.identical, candidate.output.near_ties) == (15, 1)
        assert candidate.output.gap_is_measured
        assert candidate.output.near_tie_gap == pytest.approx(0.2)


def test_drafts_and_noise(record: Record) -> None:
    assert [(d.quant, d.file_bytes, d.memory_bytes) for d in record.drafts] == [
        ("small", 1000, 1300),
        ("large", 3000, 3300),
    ]
    for draft in record.drafts:
        assert draft.bpw == pytest.approx(1.0)
        assert (draft.quality, draft.quality_reason) == (None, "not asked for")
        assert draft.speed is not None
        assert draft.speed_reason is None
    assert record.drafts[0].speed.tokens_per_s == pytest.approx(1000, rel=0.02)
    (floor,) = record.noise
    assert (floor.engine, floor.confidence) == ("bundled", 0.95)
    assert 0 < floor.acceptance < 0.3
    assert record.pick.start_sd is not None
    assert 0 < record.pick.start_sd < 0.02
    assert record.together is True


def test_steps_and_warnings(record: Record) -> None:
    assert {step.state for step in record.steps} == {"ran"}
    kinds = {step.kind for step in record.steps}
    expected = "trace", "replay", "curve", "deal", "compare", "control", "selfcheck", "memory"
    assert kinds == set(expected)
    assert len({step.key for step in record.steps}) == len(record.steps)
    assert record.warnings == ("a warning of the layout",)
    assert record.disturbed == 0


def test_what_several_steps_warn_of_is_told_once_with_their_names() -> None:
    why = "llama-quantize made every tensor anew"
    told = [("quantize a", why), ("quantize b", "odd"), ("quantize b", why), ("quantize a", why)]
    assert by_cause(told) == [f"quantize a, quantize b: {why}", "quantize b: odd"]
    (many,) = by_cause((f"q{n}", why) for n in range(500))
    assert many.endswith(f"q11 and 488 more: {why}")


def test_a_recount_that_failed_is_told(built: Building) -> None:
    found = built(World(failing=("recount of live requests",)))
    for candidate in found.record.candidates[1:]:
        if candidate.live is not None:
            assert candidate.counts is None
            assert candidate.counts_reason.endswith(": it crashed")


def test_a_control_that_failed_is_told_and_fails_no_build(built: Building) -> None:
    made = built(World(failing=("no-draft control",)))
    assert made.failures == ()
    checks = [c.output for c in made.record.candidates if c.output is not None]
    assert checks
    for check in checks:
        assert check.control is None
        assert not check.gap_is_measured
        assert check.not_controlled.endswith("it crashed")


def test_nothing_predicted_is_told_and_everything_runs_live(built: Building) -> None:
    record = built(World(failing=("replay",))).record
    assert all(c.live is not None and c.predicted is None for c in record.candidates)
    assert record.noise == ()
    assert record.factors == ()
    assert record.pick.candidate is not None


def test_an_engine_of_which_nothing_could_be_predicted_is_told(built: Building) -> None:
    world = World(
        accuracy=dict.fromkeys(("small@one", "large@one", "small@two", "large@two"), 0.8),
        draft_ms=dict.fromkeys(("small@one", "large@one", "small@two", "large@two"), 1.0),
        failing=("replay small@two", "replay large@two"),
    )
    record = built(world, engines=("one", "two")).record
    (told,) = [w for w in record.warnings if "nothing could be predicted" in w]
    assert told.startswith("two: nothing could be predicted: replay small@two")
    assert {c.name for c in record.candidates if c.draft is None} == {
        "no draft@one",
        "no draft@two",
    }
    assert {c.engine for c in record.candidates if c.predicted} == {"one"}


def test_disturbed_timings_are_counted_and_told_once(built: Building) -> None:
    record = built(World(busy=("draft times",))).record
    assert record.disturbed == 2
    (told,) = [w for w in record.warnings if "disturbed" in w]
    assert told.startswith("2 of ")
    assert "up to 2.0 cores" in told


def test_rejection_sampling_is_told_of_a_sampled_target(built: Building) -> None:
    record = built(
        World(temperature=0.8),
        score={"sampling": {"temperature": 0.8}, "draft": {"n_max": [2, 4], "p_min": [0.0, 0.5]}},
    ).record
    for candidate in record.candidates[1:]:
        assert (candidate.predicted.rejection is None) == (candidate.settings.p_min > 0)
        assert candidate.output is None or candidate.output.gap_is_measured


def test_cache_types_are_candidates_of_their_own(built: Building) -> None:
    draft = {"n_max": [4], "cache_types": ["f16", "q8_0"]}
    record = built(score={"draft": draft}).record
    assert {(c.name, c.cache_type) for c in record.candidates} == {
        ("no draft", None),
        *((f"{d} n_max=4 kv={t}", t) for d in ("small", "large") for t in ("f16", "q8_0")),
    }
    assert all(c.predicted is not None for c in record.candidates)


@pytest.mark.parametrize("method", ["replay", "live"])
@pytest.mark.parametrize(
    "maximize", ["end_to_end_speed", "decode_speed", "acceptance", "acceptance_length"]
)
def test_whatever_is_maximized_the_pick_has_the_figure(
    built: Building, method: str, maximize: str
) -> None:
    record = built(score={"method": method}, pick={"maximize": maximize}).record
    winner = record.candidate(record.pick.candidate or "")
    figure = "acceptance_rate" if maximize == "acceptance" else maximize
    assert record.pick.value == getattr(winner.live, figure)
    assert record.pick.leader is not None
    drafted = maximize.startswith("acceptance")
    assert ("no draft" in record.pick.ranking) == (not drafted)
    unable = [f"no draft has no {Objective(maximize).unit}"] if drafted else []
    assert [e.reason for e in record.pick.excluded] == unable


def test_timings_that_are_wrong_are_seen_to_be(built: Building) -> None:
    """Every timing is 30 % too small: so are forecasts of times, and speedups are less off."""
    record = built(World(timed=0.7)).record
    found = [c for c in record.candidates if c.live and c.predicted]
    assert len(found) >= 3
    for candidate in found:
        assert candidate.predicted.off_by is not None
        assert 0.25 < candidate.predicted.off_by < 0.6
    (factors,) = record.factors
    assert factors.decode == pytest.approx(1, abs=0.15)
    assert record.pick.decided


def test_a_block_that_failed_is_told_and_what_ran_before_it_counts(built: Building) -> None:
    found = built(World(failing=("deal block 3",)))
    (failed,) = (step for step in found.record.steps if step.state == "failed")
    assert failed.label.startswith("deal block 3")
    assert found.failures == (f"{failed.label}: it crashed",)
    bare = found.record.candidate("no draft")
    assert bare.live.requests == 8


def test_what_a_gc_removed_meanwhile_is_a_failed_step(
    built: Building, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def removed(*_: object) -> Record:
        shutil.rmtree(tmp_path / "store")
        raise FileNotFoundError("model.gguf")

    def wrong(*_: object) -> Record:
        raise InputError("a fault of the recipe's")

    monkeypatch.setattr("cook.job.run.assemble", wrong)
    with pytest.raises(InputError, match="a fault of the recipe's"):
        built()
    monkeypatch.setattr("cook.job.run.assemble", removed)
    with pytest.raises(StepError, match="removed from the store while it was needed"):
        built()


def test_every_draft_keeps_its_replayed_acceptance(record: Record) -> None:
    assert [(r.draft, r.engine, r.n_max) for r in record.replayed] == [
        ("small", "bundled", 4),
        ("large", "bundled", 4),
    ]
    for found in record.replayed:
        name = f"{found.draft} n_max=4"
        predicted = next(c.predicted for c in record.candidates if c.name == name)
        seen = dict(zip(found.ids, found.accepted, strict=True))
        reported = dict(zip(predicted.prompts.ids, predicted.prompts.accepted, strict=True))
        assert {i: seen[i] for i in reported} == reported
        assert len(seen) == len(reported) == 16, "every prompt"


def test_what_was_not_replayed_has_none() -> None:
    plan = layout(score()).forecast
    assert plan is not None
    assert list(replayed_prompts([plan], Outcomes())) == []
