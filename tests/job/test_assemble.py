"""The record of a build whose outcomes are made up: what ran, what failed, what never ran."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter

from cook.errors import InputError, StepError
from cook.formats.gguf import read_gguf
from cook.formats.imatrix_file import Imatrix, ImatrixEntry, write_gguf
from cook.formats.quant_types import Flavour
from cook.graph.execute import Outcomes
from cook.graph.store import Store
from cook.job.assemble import (
    MAX_SKIPPED,
    by_cause,
    imatrix_coverage,
    replayed_prompts,
    type_map,
)
from cook.job.run import Built
from cook.paths import demo_dir
from cook.record.record import (
    ImatrixCoverage,
    Objective,
    PromptFigures,
    Record,
    TypeSpan,
    read_record,
)
from cook.scoring.compare import figures
from cook.steps.deal import DealOutcome
from cook.steps.imatrix import ImatrixOutcome
from tests.job.fabricated import World, source
from tests.job.laid_out import layout
from tests.job.whole import Building

FILE = demo_dir() / "draft-f16.gguf"


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
            found = (candidate.categories, candidate.prompts, candidate.speedup, candidate.output)
            assert found == ({}, None, None, None)
        else:
            assert candidate.reason is None


def test_live_figures_are_sums_over_the_stored_blocks(made_up: Built) -> None:
    record, home = made_up.record, made_up.path.parents[2]
    winner = record.candidate(record.pick.candidate or "")
    assert winner is not None
    outcomes = [
        one.outcome
        for a in sorted(Store(home / "store").entries(), key=lambda a: a.label)
        if a.kind == "deal"
        for server, one in zip(
            a.key_parts["params"]["servers"],
            TypeAdapter(DealOutcome).validate_python(a.result).dealt,
            strict=True,
        )
        if server["inputs"].get("draft") == source(winner.draft or "").key
        and server["params"]["settings"]["n_max"] == winner.settings.n_max
    ]
    runs = [run for outcome in outcomes for run in outcome.runs]
    assert winner.live == figures(runs)
    assert winner.starts == len(outcomes) == 5
    assert winner.server_peak_rss_bytes == max(outcome.peak_rss_bytes for outcome in outcomes)
    assert winner.prompts.ids == tuple(run.id for run in runs)
    assert winner.prompts.block == tuple(run.block for run in runs)
    assert sorted({*winner.prompts.block}) == [0, 1, 2, 3, 4]
    assert winner.prompts.order == tuple(run.order for run in runs)
    assert sum(f.requests for f in winner.categories.values()) == len(runs)
    assert read_record(home / "records" / "made-up.json") == record


def moved_speedup(candidate: Any, bare: Any) -> float:
    """By the record's columns: of common requests, moved by the forecasts to all prompts."""
    columns = [set(zip(c.prompts.ids, c.prompts.block, strict=True)) for c in (candidate, bare)]
    both = columns[0] & columns[1]

    def speed(found: PromptFigures, kept: Callable[[str, int], bool]) -> float:
        blocks = found.block or (0,) * len(found.ids)
        rows = zip(found.ids, blocks, found.tokens, found.wall_ms, strict=True)
        tokens, ms = zip(*((n, t) for name, b, n, t in rows if kept(name, b)), strict=True)
        return float(sum(tokens) / sum(ms))

    def forecast(ids: Collection[str]) -> float:
        mine, theirs = (
            speed(c.predicted.prompts, lambda n, _: n in ids) for c in (candidate, bare)
        )
        return mine / theirs

    mine, theirs = (speed(c.prompts, lambda n, b: (n, b) in both) for c in (candidate, bare))
    return mine / theirs * forecast(bare.prompts.ids) / forecast({name for name, _ in both})


def test_speedups_are_of_the_same_requests_of_no_draft(record: Record) -> None:
    bare = record.candidate("no draft")
    assert (bare.speedup, bare.decode_speedup, bare.speedup_interval) == (1.0, 1.0, None)
    ran = [c for c in record.candidates[1:] if c.live is not None]
    for candidate in ran:
        if candidate.live.requests == bare.live.requests:  # to the digit
            quotient = (candidate.live.end_to_end_speed or 0) / (bare.live.end_to_end_speed or 1)
            assert candidate.speedup == pytest.approx(quotient, rel=1e-9)
        # Else of the requests of both, moved to all by what is forecast.
        assert candidate.speedup == pytest.approx(moved_speedup(candidate, bare), rel=1e-4)
        if candidate.speedup_interval is not None:
            low, high = candidate.speedup_interval.low, candidate.speedup_interval.high
            assert (low * high) ** 0.5 == pytest.approx(candidate.speedup, rel=1e-9)
    assert any(c.live.requests < bare.live.requests for c in ran)
    assert record.candidate(record.pick.candidate or "").speedup_interval is not None


def test_a_prediction_is_held_against_its_live_requests(record: Record) -> None:
    for candidate in record.candidates:
        found, live = candidate.predicted, candidate.live
        assert found is not None, "every draft was replayed and timed"
        assert len(found.prompts.ids) == 16, "every prompt"
        spent = found.verify_s + found.draft_s + found.mirror_s + found.sample_s
        assert spent == pytest.approx(found.figures.decode_ms / 1000)
        assert sum(d.drafted for d in found.by_depth) == (found.figures.drafted or 0)
        assert (found.off_by is None) == (found.on_live is None) == (live is None)
        if live is not None:
            assert found.on_live.requests == live.requests
            quotient = (found.on_live.end_to_end_speed or 0) / (live.end_to_end_speed or 1)
            assert found.off_by == pytest.approx(quotient - 1)
            assert found.off_by == pytest.approx(0, abs=0.12)
            assert found.decode_off_by == pytest.approx(0, abs=0.15)


def test_what_is_asked_of_a_finalist_apart_from_its_speed(record: Record) -> None:
    for candidate in record.candidates[1:]:
        assert candidate.counts_reason is None
        if candidate.live is None:
            assert candidate.counts is None
            continue
        assert (candidate.counts.exact, candidate.counts.replay_drafted) == (4, 101)
        if candidate.name != record.pick.candidate:
            assert candidate.output is None, "it is not the one to be served"
            continue
        assert (candidate.output.identical, candidate.output.near_ties) == (15, 1)
        assert candidate.output.gap_is_measured
        assert candidate.output.near_tie_gap == pytest.approx(0.2)


def test_drafts_noise_steps_and_warnings(record: Record) -> None:
    assert [(d.quant, d.file_bytes, d.memory_bytes) for d in record.drafts] == [
        ("small", 1000, 1300),
        ("large", 3000, 3300),
    ]
    for draft in record.drafts:
        assert draft.bpw == pytest.approx(1.0)
        found = (draft.quality, draft.quality_reason, draft.speed_reason)
        assert found == (None, "not asked for", None)
    assert record.drafts[0].speed.tokens_per_s == pytest.approx(1000, rel=0.02)
    (floor,) = record.noise
    assert (floor.engine, floor.confidence) == ("bundled", 0.95)
    assert 0 < floor.acceptance < 0.3
    assert 0 < (record.pick.start_sd or 0) < 0.02
    assert record.together is True
    assert {step.state for step in record.steps} == {"ran"}
    kinds = "trace", "replay", "curve", "deal", "compare", "control", "selfcheck", "memory"
    assert {step.kind for step in record.steps} == set(kinds)
    assert len({step.key for step in record.steps}) == len(record.steps)
    assert record.warnings == ("a warning of the layout",)
    assert record.disturbed == 0


def test_what_several_steps_warn_of_is_said_once_with_their_names() -> None:
    why = "llama-quantize made every tensor again"
    said = [("quantize a", why), ("quantize b", "odd"), ("quantize b", why), ("quantize a", why)]
    assert by_cause(said) == [f"quantize a, quantize b: {why}", "quantize b: odd"]
    (many,) = by_cause((f"q{n}", why) for n in range(500))
    assert many.endswith(f"q11 and 488 more: {why}")


def test_checks_that_failed_and_timings_that_were_disturbed_are_named(built: Building) -> None:
    crashes = ("recount of live requests", "no-draft control")
    made = built(World(failing=crashes, busy=("draft times",)))
    assert not any("control" in failure for failure in made.failures)
    ran = [c for c in made.record.candidates[1:] if c.live is not None]
    for candidate in ran:
        assert candidate.counts is None
        assert candidate.counts_reason.endswith(": it crashed")
    (check,) = (c.output for c in ran if c.output is not None)
    assert (check.control, check.gap_is_measured) == (None, False)
    assert check.not_controlled.endswith("it crashed")
    assert made.record.disturbed == 2
    (warning,) = [w for w in made.record.warnings if "disturbed" in w]
    assert warning.startswith("2 of ")
    assert "up to 2.0 cores" in warning


def test_where_nothing_is_predicted_everything_runs_live(built: Building) -> None:
    record = built(World(failing=("replay",))).record
    assert all(c.live is not None and c.predicted is None for c in record.candidates)
    assert (record.noise, record.factors) == ((), ())
    assert record.pick.candidate is not None


def test_an_engine_of_which_nothing_could_be_predicted_is_named(built: Building) -> None:
    names = [f"{draft}@{engine}" for engine in ("one", "two") for draft in ("small", "large")]
    world = World(
        accuracy=dict.fromkeys(names, 0.8),
        draft_ms=dict.fromkeys(names, 1.0),
        failing=("replay small@two", "replay large@two"),
    )
    record = built(world, engines=("one", "two")).record
    (warning,) = [w for w in record.warnings if "nothing could be predicted" in w]
    assert warning.startswith("two: nothing could be predicted: replay small@two")
    bare = {c.name for c in record.candidates if c.draft is None}
    assert bare == {"no draft@one", "no draft@two"}
    assert {c.engine for c in record.candidates if c.predicted} == {"one"}


def test_rejection_sampling_is_of_a_sampled_target(built: Building) -> None:
    record = built(
        World(temperature=0.8),
        score={"sampling": {"temperature": 0.8}, "draft": {"n_max": [2, 4], "p_min": [0.0, 0.5]}},
    ).record
    for candidate in record.candidates[1:]:
        assert (candidate.predicted.rejection is None) == (candidate.settings.p_min > 0)
        assert candidate.output is None or candidate.output.gap_is_measured


def test_cache_types_are_candidates_of_their_own(built: Building) -> None:
    record = built(score={"draft": {"n_max": [4], "cache_types": ["f16", "q8_0"]}}).record
    assert {(c.name, c.cache_type) for c in record.candidates} == {
        ("no draft", None),
        *((f"{d} n_max=4 kv={t}", t) for d in ("small", "large") for t in ("f16", "q8_0")),
    }
    assert all(c.predicted is not None for c in record.candidates)


@pytest.mark.parametrize("method", ["replay", "live"])
@pytest.mark.parametrize("maximize", Objective)
def test_whatever_is_maximized_the_pick_has_the_figure(
    built: Building, method: str, maximize: Objective
) -> None:
    record = built(score={"method": method}, pick={"maximize": maximize.value}).record
    winner = record.candidate(record.pick.candidate or "")
    figure = "acceptance_rate" if maximize is Objective.ACCEPTANCE else maximize.value
    assert record.pick.value == getattr(winner.live, figure)
    assert record.pick.leader is not None
    drafted = maximize.value.startswith("acceptance")
    assert ("no draft" in record.pick.ranking) == (not drafted)
    unable = [f"no draft has no {maximize.unit}"] if drafted else []
    assert [e.reason for e in record.pick.excluded] == unable


def test_timings_that_are_wrong_are_seen_to_be(built: Building) -> None:
    """Every timing is 30 % too small: so are forecasts of times, and speedups are less off."""
    record = built(World(timed=0.7)).record
    found = [c for c in record.candidates if c.live and c.predicted]
    assert len(found) >= 3
    assert all(0.25 < (c.predicted.off_by or 0) < 0.6 for c in found)
    (factors,) = record.factors
    assert factors.decode == pytest.approx(1, abs=0.15)
    assert record.pick.decided


def test_a_block_that_failed_is_named_and_what_ran_before_it_counts(built: Building) -> None:
    found = built(World(failing=("deal block 3",)))
    (failed,) = (step for step in found.record.steps if step.state == "failed")
    assert failed.label.startswith("deal block 3")
    assert found.failures == (f"{failed.label}: it crashed",)
    assert found.record.candidate("no draft").live.requests == 7


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
    found = [(r.draft, r.engine, r.n_max) for r in record.replayed]
    assert found == [("small", "bundled", 4), ("large", "bundled", 4)]
    for one in record.replayed:
        reported = record.candidate(f"{one.draft} n_max=4").predicted.prompts
        counts = (zip(each.ids, each.accepted, strict=True) for each in (one, reported))
        seen, said = map(dict, counts)
        assert seen == said
        assert len(seen) == 16, "every prompt"
    plan: Any = layout().forecast
    assert list(replayed_prompts([plan], Outcomes())) == [], "nothing has run"


def covered(
    path: Path, entries: dict[str, list[int]], skipped: tuple[str, ...] = ()
) -> ImatrixCoverage:
    """What is said of an imatrix with these counts by expert, of the demo's draft."""
    tensors, matrix = read_gguf(FILE), {}
    for name, counts in entries.items():
        seen = np.array(counts, dtype=np.float32)
        width = tensors.tensor(name).shape[0] if name.startswith("blk.") else 4
        values = np.ones((len(seen), width), dtype=np.float32) * (seen[:, None] > 0)
        matrix[name] = ImatrixEntry(values, seen)
    write_gguf(Imatrix(matrix, ("text",), 7, 512, "gguf"), path)
    more: Any = {"entries": 3, "experts_total": 8, "experts_covered": 7, "skipped": skipped}
    result = ImatrixOutcome(7, 4.0, 0.1, 1.0, 1, (), **more)
    engine = SimpleNamespace(flavour=Flavour.LLAMA_CPP)
    model = SimpleNamespace(path=FILE)
    step: Any = SimpleNamespace(
        key="k", file_name=path.name, context=512, engine=engine, model=model
    )
    artifact = SimpleNamespace(file=path.with_name)
    outcomes: Any = SimpleNamespace(result=lambda _: result, artifact=lambda _: artifact)
    found = imatrix_coverage(step, outcomes)
    assert found is not None
    assert imatrix_coverage(None, outcomes) is None
    assert imatrix_coverage(step, Outcomes()) is None, "no matrix was made"
    return found


def test_layers_add_up_their_experts_and_dense_entries_do_not_count(tmp_path: Path) -> None:
    up, down, dense = (
        f"blk.{name}.weight" for name in ("1.ffn_up_exps", "1.ffn_down_exps", "0.attn_qkv")
    )
    experts = read_gguf(FILE).tensor(up).shape[2]
    entries = {up: [0, *[1] * (experts - 1)], down: [1] * experts, dense: [9]}
    found = covered(tmp_path / "imatrix.gguf", entries)
    layers = [(x.layer, x.experts, x.covered) for x in found.layers]
    assert layers == [(1, 2 * experts, 2 * experts - 1)]
    assert found.fraction == 7 / 8


def test_a_long_list_of_names_is_cut_but_counted(tmp_path: Path) -> None:
    names = tuple(f"blk.{i}.x.weight" for i in range(100))
    found = covered(tmp_path / "imatrix.gguf", {"a.weight": [1]}, names)
    assert (len(found.skipped), found.skipped_count) == (MAX_SKIPPED, 100)


def test_spans_account_for_every_matrix_once(tmp_path: Path, tiny_model: Path) -> None:
    tensors = read_gguf(FILE).tensors
    matrices = [t for t in tensors if len(t.shape) > 1 and t.name.endswith(".weight")]
    spans = type_map(FILE)
    assert sum(s.layers * s.elements for s in spans) == sum(t.elements for t in matrices)
    sizes = sum(t.size_bytes or 0 for t in matrices)
    assert sum(s.layers * (s.size_bytes or 0) for s in spans) == sizes
    assert sum(s.layers * sum(s.types.values()) for s in spans) == len(matrices)
    (experts,) = (s for s in spans if s.group == "routed_experts")
    layers = {t.name.split(".")[1] for t in tensors if "ffn_up_exps" in t.name}
    assert experts.layers == len(layers), "layers that are alike are one span"
    assert (experts.types, experts.bpw) == ({"f16": 3}, 16)
    (attention,) = (s for s in type_map(tiny_model) if s.group == "attention")
    assert attention.layers == 1 + (attention.last_layer or 0) > 1
    (embeddings,) = (s for s in spans if s.group == "embeddings")
    assert (embeddings.first_layer, embeddings.layers) == (None, 1)
    assert TypeSpan("other", 0, 0, {"type 999": 1}, 256, None).bpw is None
    (tmp_path / "x.gguf").write_bytes(b"nothing")
    for model in (None, tmp_path / "x.gguf", tmp_path / "absent.gguf"):
        assert type_map(model) == ()
