"""The record of a build whose outcomes are made up: what ran, what failed, what never ran."""

from __future__ import annotations

from pathlib import Path

import pytest

from cook.graph.store import Store
from cook.record.record import Record, read_record
from cook.scoring.figures import figures
from cook.steps.live import LiveOutcome
from tests.build.fabricated import World
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
        for a in Store(tmp_path / "store").entries()
        if a.label.startswith(f"live {winner.name} round")
    ]
    runs = [run for outcome in stored for run in outcome.runs]
    assert winner.live == figures(runs)
    assert winner.server_peak_rss_bytes == max(outcome.peak_rss_bytes for outcome in stored)
    assert winner.prompts is not None
    assert set(winner.prompts.ids) == {run.id for run in runs}
    assert sum(f.requests for f in winner.categories.values()) == len(runs)
    assert read_record(tmp_path / "records" / "made-up.json") == record


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
            assert candidate.speedup == speedup
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
            assert found.off_by_interval is not None
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
    assert states[f"compare output {name} (bundled)"] == "failed"
    assert len(found.failures) == 1, "what only waited for it is no failure of its own"


def test_a_recount_that_failed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = built(tmp_path, monkeypatch, World(failing=("recount of live requests",)))
    for candidate in found.record.candidates[1:]:
        if candidate.live is not None:
            assert candidate.counts is None
            assert candidate.counts_reason is not None
            assert candidate.counts_reason.endswith(": it crashed")


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
    assert len(record.left_out) == 1
    assert "score.live_budget is 0.01 minutes" in record.left_out[0].reason


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
        assert candidate.output is None or not candidate.output.gap_is_measured


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
