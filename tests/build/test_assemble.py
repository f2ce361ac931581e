"""The record of a build whose outcomes are made up: what ran, what failed, what never ran."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from cook.build.assemble import by_cause
from cook.engines.ngram_settings import NgramSettings, NgramType
from cook.errors import InputError, StepError
from cook.graph.store import Store
from cook.record.record import Record, read_record
from cook.scoring.figures import figures, merge_repeats
from cook.steps.live import LiveOutcome
from tests.build.fabricated import World, prompt_set
from tests.build.whole import built


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Record:
    with pytest.MonkeyPatch.context() as patch:
        return built(tmp_path_factory.mktemp("made-up"), patch).record


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


def test_live_figures_are_sums_over_the_stored_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pydantic import TypeAdapter

    record = built(tmp_path, monkeypatch).record
    winner = record.candidate(record.pick.candidate or "")
    assert winner is not None
    assert winner.live is not None
    adapter = TypeAdapter(LiveOutcome)
    stored = [
        adapter.validate_python(a.result)
        for a in sorted(Store(tmp_path / "store").entries(), key=lambda a: a.label)
        if a.label.startswith(f"live {winner.name} round")
    ]
    runs = merge_repeats(outcome.runs for outcome in stored)
    assert winner.live == figures(runs)
    assert winner.server_peak_rss_bytes == max(outcome.peak_rss_bytes for outcome in stored)
    assert winner.prompts is not None
    assert set(winner.prompts.ids) == {run.id for run in runs}
    assert sum(f.requests for f in winner.categories.values()) == len(runs)
    assert read_record(tmp_path / "records" / "made-up.json") == record


RIVAL = {"type": "ngram-simple", "size_n": 1, "size_m": 1}


def test_a_rival_that_beats_the_drafts_is_picked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its forecast; its live run confirms the counts, and a draft ran beside it."""
    world = World(accuracy={"small": 0.05, "large": 0.05}, draft_ms={"small": 9.0, "large": 9.0})
    record = built(tmp_path, monkeypatch, world, score={"rivals": RIVAL}).record
    rival = record.candidate("ngram-simple size_n=1 size_m=1")
    assert rival is not None
    assert record.pick.candidate == rival.name
    assert (rival.draft, rival.settings) == (rival.name, None)
    assert rival.ngram == NgramSettings(NgramType.SIMPLE, size_n=1, size_m=1)
    assert rival.predicted is not None
    assert rival.predicted.draft_s == 0
    assert rival.counts is not None
    assert rival.counts.exact == rival.counts.requests > 0
    assert "drafted and had accepted as simulated in" in record.pick.sentence
    assert any(c.key.is_file and c.live for c in record.candidates)
    assert read_record(tmp_path / "records" / "made-up.json") == record


def test_a_draft_is_picked_where_it_beats_the_rivals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = built(tmp_path, monkeypatch, score={"rivals": [RIVAL, "ngram-cache"]}).record
    winner = record.candidate(record.pick.candidate or "")
    assert winner is not None
    assert winner.key.is_file
    rivals = [c for c in record.candidates if c.ngram is not None]
    assert len(rivals) == 2
    assert all(c.predicted is not None for c in rivals)


def test_where_no_draft_is_best_its_rival_is_the_best_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A draft of another file ran live, too, an eighth of a build for what nobody would serve."""
    world = World(accuracy={"small": 0.05, "large": 0.1}, draft_ms={"small": 9.0, "large": 9.0})
    record = built(tmp_path, monkeypatch, world).record
    assert record.pick.candidate == "no draft"
    assert record.pick.choice is not None
    assert record.pick.choice.confirmed
    drafts = [c for c in record.candidates if c.live is not None and c.draft is not None]
    assert {c.draft for c in drafts} == {"large"}
    labels = [s.label for s in record.steps if s.kind == "live"]
    assert not [label for label in labels if "small" in label]


def test_speedups_are_against_no_draft(record: Record) -> None:
    bare = record.candidate("no draft")
    assert bare is not None
    assert bare.live is not None
    assert bare.live.end_to_end_speed is not None
    assert (bare.speedup, bare.decode_speedup, bare.speedup_interval) == (1.0, 1.0, None)
    for candidate in record.candidates[1:]:
        if candidate.live is not None:
            assert candidate.live.end_to_end_speed is not None
            speedup = candidate.live.end_to_end_speed / bare.live.end_to_end_speed
            # taken as if at the same time, where the figures are what each took when it ran
            assert candidate.speedup == pytest.approx(speedup, rel=0.02)
            assert candidate.speedup_interval is not None
            assert candidate.speedup_interval.low < speedup < candidate.speedup_interval.high


def test_a_prediction_is_held_against_its_live_run(record: Record) -> None:
    for candidate in record.candidates:
        found = candidate.predicted
        assert found is not None, "every draft was replayed and timed"
        assert found.prompts is not None
        assert len(found.prompts.ids) == 8, "on the prompts that nothing was chosen on"
        spent = found.verify_s + found.draft_s + found.mirror_s + found.sample_s + found.overhead_s
        assert spent == pytest.approx(found.figures.decode_ms / 1000)
        assert sum(d.drafted for d in found.by_depth) == (found.figures.drafted or 0)
        assert (found.off_by is None) == (candidate.live is None)
        if candidate.live is not None:
            assert found.off_by == pytest.approx(0, abs=0.1)
            assert found.judged == 4
            assert found.off_by_interval is None, "too few to say how sure it is"
    probabilities = [c.predicted.probability_best or 0 for c in record.candidates if c.predicted]
    assert sum(probabilities) == pytest.approx(1)


def test_what_is_asked_of_a_finalist_beside_its_speed(record: Record) -> None:
    for candidate in record.candidates[1:]:
        if candidate.live is None:
            assert (candidate.counts, candidate.counts_reason, candidate.output) == (None,) * 3
            continue
        assert candidate.counts is not None
        assert (candidate.counts.exact, candidate.counts.replay_drafted) == (4, 101)
        assert candidate.counts_reason is None
        if candidate.name != record.pick.candidate:
            assert candidate.output is None, "nobody would serve it"
            continue
        assert candidate.output is not None
        assert (candidate.output.identical, candidate.output.near_ties) == (7, 1)
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
    assert record.drafts[0].speed is not None
    assert record.drafts[0].speed.tokens_per_s == pytest.approx(1000, rel=0.02)
    (floor,) = record.noise
    assert (floor.engine, floor.passes) == ("bundled", 3)
    assert floor.speed is not None
    assert 0 < floor.speed < 0.02
    assert floor.acceptance is not None


def test_steps_and_warnings(record: Record) -> None:
    assert {step.state for step in record.steps} == {"ran"}
    kinds = {step.kind for step in record.steps}
    assert kinds == {*("trace", "replay", "curve", "live", "compare", "control", "selfcheck")} | {
        "memory"
    }
    assert len({step.key for step in record.steps}) == len(record.steps)
    assert record.warnings == ("a warning of the layout",)
    assert record.disturbed == 0


def test_what_several_steps_warn_of_is_told_once_with_their_names() -> None:
    why = "llama-quantize made every tensor anew"
    told = [("quantize a", why), ("quantize b", "odd"), ("quantize b", why), ("quantize a", why)]
    assert by_cause(told) == [f"quantize a, quantize b: {why}", "quantize b: odd"]
    (many,) = by_cause((f"q{n}", why) for n in range(500))
    assert many.endswith(f"q11 and 488 more: {why}")


def test_a_failed_live_run_is_told_and_does_not_win(
    record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (name,) = (c.name for c in record.candidates if c.live and c.draft == "large")
    found = built(tmp_path, monkeypatch, World(failing=(f"live {name} round 2",)))
    candidate = found.record.candidate(name)
    assert candidate is not None
    assert candidate.live is None
    assert candidate.reason == f"live {name} round 2 (bundled): it crashed"
    assert candidate.counts_reason is None
    assert candidate.command, "its first round ran, and says how to start it"
    states = {step.label: step.state for step in found.record.steps}
    assert states[f"live {name} round 2 (bundled)"] == "failed"
    assert f"compare output {name} (bundled)" not in states, "nobody will serve it"
    assert len(found.failures) == 1


def test_a_recount_that_failed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = built(tmp_path, monkeypatch, World(failing=("recount of live requests",)))
    for candidate in found.record.candidates[1:]:
        if candidate.live is not None:
            assert candidate.counts is None
            assert candidate.counts_reason is not None
            assert candidate.counts_reason.endswith(": it crashed")


def test_a_control_that_failed_is_told_and_fails_no_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = built(tmp_path, monkeypatch, World(failing=("no-draft control",)))
    assert made.failures == ()
    checks = [c.output for c in made.record.candidates if c.output is not None]
    assert checks
    for check in checks:
        assert check.control is None
        assert not check.gap_is_measured
        assert check.not_controlled is not None
        assert check.not_controlled.endswith("it crashed")


def test_nothing_predicted_is_told_and_everything_runs_live(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = built(tmp_path, monkeypatch, World(failing=("replay",))).record
    assert all(c.live is not None and c.predicted is None for c in record.candidates)
    assert record.pick.choice is None
    assert record.noise == ()
    assert record.pick.candidate is not None


def test_an_engine_of_which_nothing_could_be_predicted_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(
        accuracy=dict.fromkeys(("small@one", "large@one", "small@two", "large@two"), 0.8),
        draft_ms=dict.fromkeys(("small@one", "large@one", "small@two", "large@two"), 1.0),
        failing=("replay small@two", "replay large@two"),
    )
    record = built(tmp_path, monkeypatch, world, engines=("one", "two")).record
    (told,) = [w for w in record.warnings if "nothing could be predicted" in w]
    assert told.startswith("two: nothing could be predicted: replay small@two")
    assert {c.name for c in record.candidates if c.draft is None} == {
        "no draft@one",
        "no draft@two",
    }
    assert {c.engine for c in record.candidates if c.predicted} == {"one"}


def test_disturbed_timings_are_counted_and_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = built(tmp_path, monkeypatch, World(busy=("draft times",))).record
    assert record.disturbed == 6
    (told,) = [w for w in record.warnings if "disturbed" in w]
    assert told.startswith("6 of ")
    assert "up to 2.0 cores" in told


def test_what_the_budget_leaves_out_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = built(tmp_path, monkeypatch, score={"live_budget": {"minutes": 0.01}}).record
    assert [e.candidate for e in record.left_out] == [
        "calibration at other lengths",
        "live rounds after the first 1",
        "the live run of a rival",
    ]
    assert all("score.live_budget is 0.01 minutes" in e.reason for e in record.left_out)
    live = [s.label for s in record.steps if s.kind == "live"]
    assert len(live) == 2, "no draft and the leader, a round each"
    assert record.pick.certainty is not None
    assert record.pick.certainty.objection == "no rival ran"


def test_repeats_are_one_request_each_with_the_median_of_the_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = built(tmp_path, monkeypatch, score={"repeats": 3}).record
    assert record.candidates[0].live is not None
    assert record.candidates[0].live.requests == 8


def test_rejection_sampling_is_told_of_a_sampled_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = built(
        tmp_path,
        monkeypatch,
        World(temperature=0.8),
        score={"sampling": {"temperature": 0.8}, "draft": {"n_max": [2, 4], "p_min": [0.0, 0.5]}},
    ).record
    for candidate in record.candidates[1:]:
        assert candidate.predicted is not None
        assert candidate.settings is not None
        assert (candidate.predicted.rejection is None) == (candidate.settings.p_min > 0)
        assert candidate.output is None or candidate.output.gap_is_measured


def test_cache_types_are_candidates_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft = {"n_max": [4], "cache_types": ["f16", "q8_0"]}
    record = built(tmp_path, monkeypatch, score={"draft": draft}).record
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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, maximize: str
) -> None:
    record = built(
        tmp_path, monkeypatch, score={"method": method}, pick={"maximize": maximize}
    ).record
    winner = record.candidate(record.pick.candidate or "")
    assert winner is not None
    assert winner.live is not None
    value = {
        "end_to_end_speed": winner.live.end_to_end_speed,
        "decode_speed": winner.live.decode_speed,
        "acceptance": winner.live.acceptance_rate,
        "acceptance_length": winner.live.acceptance_length,
    }[maximize]
    assert record.pick.value == value
    assert (record.pick.choice is None) == (method == "live")
    drafted = maximize.startswith("acceptance")
    assert ("no draft" in [e.candidate for e in record.pick.excluded]) == drafted


def test_limits_exclude_before_anything_is_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = built(tmp_path, monkeypatch, pick={"subject_to": {"size_gib": 2e-6}}).record
    assert {e.candidate for e in record.pick.excluded} == {f"large n_max={n}" for n in (2, 4, 8)}
    assert record.pick.candidate is not None
    assert not record.pick.candidate.startswith("large")


def test_drafts_that_left_the_race_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"d{i}" for i in range(8)]
    world = World(
        accuracy={name: 0.2 + 0.1 * i for i, name in enumerate(names)},
        draft_ms=dict.fromkeys(names, 1.0),
    )
    record = built(tmp_path, monkeypatch, world, sizes=dict.fromkeys(names, 1000)).record
    left = {c.draft: c.reason for c in record.candidates if "left the race" in (c.reason or "")}
    assert "d0" in left
    assert "d7" not in left
    assert left["d0"] is not None
    assert "behind d7 n_max=8" in left["d0"]
    assert all(c.predicted is None for c in record.candidates if c.draft == "d0")
    # Nor is it timed in the pass that is taken once the race is over.
    state = {s.label: s.state for s in record.steps if s.label.startswith("draft times")}
    assert state["draft times d0 pass 2 (bundled)"] == "ran"
    assert state["draft times d0 pass 3 (bundled)"] == "not run"
    assert state["draft times d7 pass 3 (bundled)"] == "ran"
    # Its acceptance is kept all the same, over the prompts it was replayed on.
    replayed = {r.draft: r for r in record.replayed}
    assert set(replayed) == set(names)
    assert 0 < len(replayed["d0"].ids) < len(replayed["d7"].ids) == 16


def test_a_candidate_is_run_again_beside_the_finalists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = built(tmp_path / "a", monkeypatch).record
    asked = next(c.name for c in plain.candidates if c.live is None)
    again = built(tmp_path / "b", monkeypatch, again=asked).record
    lived = [c.name for c in plain.candidates if c.live is not None]
    assert [c.name for c in again.candidates if c.live is not None] == [
        *lived[:2],
        asked,
        *lived[2:],
    ], "after no draft and the choice, before the rival"
    # A name that no candidate has changes nothing.
    none = built(tmp_path / "c", monkeypatch, again="gone n_max=4").record
    assert [c.name for c in none.candidates if c.live is not None] == lived


def test_a_forecast_is_judged_on_replies_that_nothing_was_fitted_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = built(tmp_path, monkeypatch).record
    (fitted,) = record.calibrations
    assert (fitted.engine, fitted.halved) == ("bundled", False)
    assert fitted.candidates[0] == "no draft"
    assert len(fitted.candidates) >= 3, "no draft, the leader, and it at another length"
    reported = {p.id for p in prompt_set().prompts if p.half == "report"}
    assert set(fitted.prompts) < reported
    assert fitted.replies == len(fitted.candidates) * len(fitted.prompts)
    for candidate in record.candidates:
        if candidate.live is None or candidate.predicted is None:
            continue
        assert candidate.predicted.judged == len(reported) - len(fitted.prompts)
        assert candidate.predicted.decode_off_by == pytest.approx(0, abs=0.03)


def test_timings_that_are_wrong_are_seen_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With every timing 30 % too small, what corrects them and the error without it are told."""
    from cook.report.document import Table, Text
    from cook.report.sections.predicted_live import section

    record = built(tmp_path, monkeypatch, World(timed=0.7)).record
    found = [c for c in record.candidates if c.live and c.predicted]
    assert len(found) == 3
    errors = [c.predicted.timed_off_by for c in found if c.predicted]
    assert all(error is not None and 0.35 < error < 0.55 for error in errors)
    blocks = section(record).blocks
    (table,) = [block for block in blocks if isinstance(block, Table)]
    assert all(str(row[6]).startswith(("+3", "+4", "+5")) for row in table.rows)
    (told,) = [b.text for b in blocks if isinstance(b, Text) and "fitted to live" in b.text]
    assert re.search(r"beside what was timed: \+[234]\d\.\d% of every step and prompt", told)
    assert "ms a step without a draft" in told


def test_with_one_live_round_half_of_its_prompts_judge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cook.build.layout.FEW_PROMPTS", 100)
    record = built(tmp_path, monkeypatch).record
    (fitted,) = record.calibrations
    assert fitted.halved
    assert len(fitted.prompts) == 4
    assert {c.predicted.judged for c in record.candidates if c.live and c.predicted} == {4}


def test_what_a_gc_removed_meanwhile_is_a_failed_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def removed(_: object) -> Record:
        shutil.rmtree(tmp_path / "store")
        raise FileNotFoundError("model.gguf")

    def wrong(_: object) -> Record:
        raise InputError("a fault of the recipe's")

    monkeypatch.setattr("cook.build.run.assemble", wrong)
    with pytest.raises(InputError, match="a fault of the recipe's"):
        built(tmp_path, monkeypatch)
    monkeypatch.setattr("cook.build.run.assemble", removed)
    with pytest.raises(StepError, match="removed from the store while it was needed"):
        built(tmp_path, monkeypatch)
