"""Scoring by replay, whole: traced, replayed, timed, predicted, dealt, picked, checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cook.formats.gguf import read_gguf
from cook.job.count_accuracy import rival_counts
from cook.job.decide import Dealing
from cook.job.forecast import Forecaster
from cook.job.prepare import prepare
from cook.record.record import Record, read_record
from tests.builds import build
from tests.workbench import executor

pytestmark = pytest.mark.engine

RECIPE = """\
version: 1
name: replay
model: {source: "demo://draft-f16.gguf"}
imatrix: {corpus: "demo://data/calibration.txt", chunks: 10, args: {threads: 1}}
quants:
  - {name: Q4_K_M, type: Q4_K_M}
  - {name: Q2_K, type: Q2_K}
score:
  target: {source: "demo://target-q8_0.gguf", args: {threads: 1, flash_attention: false}}
  prompts: demo
  categories: [docstring, tests, literal]
  limit: 16
  max_tokens: 32
  context: 2048
  draft: {n_max: [2, 4], args: {threads: 1}}
  slots: [1, 2]
  live_budget: {minutes: 0.5}
"""
BRIEF = RECIPE.replace("minutes: 0.5", "minutes: 0.05").replace("  slots: [1, 2]\n", "")
"""One slot, and one block of prompts, whatever that decides."""
READ = "loaded meta data with"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("replay")


@pytest.fixture(scope="module")
def record(home: Path, bundled: Any) -> Record:
    return build(home, "replay", RECIPE)


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """COOK_HOME of all other builds: what they have in common is traced and timed once."""
    return tmp_path_factory.mktemp("others")


@pytest.mark.alone
def test_every_candidate_is_predicted_and_finalists_run_live(record: Record) -> None:
    drafting = [c for c in record.candidates if c.draft is not None]
    assert len(drafting) == 4
    for candidate in drafting:
        assert candidate.predicted.figures.drafted
        assert candidate.predicted.by_depth[0].drafted > 0
    live = {c.draft for c in drafting if c.live is not None}
    assert live == {"Q4_K_M", "Q2_K"}, "one of each file is in the first block"
    assert record.together is True


@pytest.mark.alone
def test_the_noise_floor_is_measured(record: Record) -> None:
    (floor,) = record.noise
    assert floor.engine == "bundled"
    assert 0 <= floor.acceptance < 0.1
    assert 0 < (record.pick.start_sd or 0) < 0.5, "however busy the machine is"


@pytest.mark.alone
def test_every_model_is_read_once_apart_from_live_runs(home: Path, record: Record) -> None:
    """For trace, replays, timings, controls and recounts together; it was 14 times a target."""
    logs = home / "logs"
    whole = [
        text
        for text in (log.read_text(errors="replace") for log in logs.glob("workers/*/stderr.log"))
        if "vocab only" not in text
    ]
    read = [line.split(" from ")[1] for text in whole for line in text.splitlines() if READ in line]
    assert len(read) == len(set(read)) == 3, "the target and two drafts"
    served = [folder.parent.name for folder in logs.glob("*/server-target*")]
    assert served
    assert all(name.startswith(("deal-", "live-")) for name in served)
    starts = sum(c.starts or 0 for c in record.candidates)
    assert len(served) == starts + sum(step.kind == "live" for step in record.steps)


@pytest.mark.alone
def test_two_slots_are_predicted_and_run(record: Record) -> None:
    two = [s for s in record.slots or () if s.slots == 2]
    assert {s.settings.n_max if s.settings else None for s in two} == {None, 2, 4}
    ran = [s for s in two if s.live_tokens_per_s is not None]
    # On a slow machine the blocks spend the budget: then the record says so of each run.
    left_out = sum("score.live_budget is spent" in e.reason for e in record.left_out)
    assert ran or left_out >= 2
    if not left_out:
        assert {s.settings is None for s in ran} == {True, False}
    for speed in ran:
        assert speed.off_by is not None
        assert abs(speed.off_by) < 0.5, "however busy the machine is"
        assert speed.command[speed.command.index("--parallel") + 1] == "2"


@pytest.mark.alone
def test_replay_counts_what_the_server_counts(record: Record) -> None:
    for candidate in record.candidates:
        if candidate.live is None or candidate.draft is None:
            continue
        counts = candidate.counts
        assert counts is not None, candidate.counts_reason
        assert counts.exact == counts.requests
        assert 0 < counts.requests + counts.passed_over <= len(set(candidate.prompts.ids))
        assert counts.live_drafted > 0
        said = candidate.predicted.on_live or candidate.predicted.figures
        # A few short replies: one flipped near-tie moves the rate by a few points at most.
        assert said.acceptance_rate == pytest.approx(candidate.live.acceptance_rate, abs=0.08)


@pytest.mark.alone
def test_the_control_ran_without_a_draft(record: Record) -> None:
    checked = [c.output for c in record.candidates if c.output is not None]
    assert checked
    for output in checked:
        assert output.gap_is_measured
        assert output.control.positions > 100
        assert output.near_tie_gap == 2 * output.control.p99
        parts = output.identical + output.near_ties + output.material + output.unknown
        assert parts == output.replies


SAMPLED = BRIEF.replace("  limit: 16\n", "  limit: 8\n  sampling: {temperature: 0.8, seed: 3}\n")


def test_where_the_target_samples_both_rules_are_told(
    others: Path, bundled: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    record = build(others, "replay", SAMPLED, "--wide")
    assert record.temperature == 0.8
    for candidate in record.candidates:
        if candidate.draft is None:
            continue
        ours, other = candidate.predicted.figures, candidate.predicted.rejection
        assert 0 < other.accepted < other.drafted
        assert other.decode_speed is not None
        assert ours.drafted is not None
        # both rules walk the same text, the one with more accepted in fewer and longer steps
        assert other.accepted + other.cycles <= ours.tokens + 1e-6
        if candidate.live is not None:
            assert candidate.counts is not None, candidate.counts_reason
            assert candidate.counts.exact == candidate.counts.requests
    shown = capsys.readouterr().err
    assert "by rejection sampling" in shown
    assert "by the server's rule" in shown


SCORED = BRIEF[BRIEF.index("score:") :].replace("limit: 16", "limit: 12")

EXPERTS = """\
version: 1
name: experts
model: {source: "demo://draft-f16.gguf"}
quants:
  - {name: Q8_0, type: Q8_0, experts: [2, 1]}
drafts:
  - {name: target, source: "demo://target-q8_0.gguf", experts: 4, prune_layers: [[], 3]}
"""


def on(engine: Any) -> tuple[str, str]:
    """The words that name ``engine`` to a build."""
    folder = Path(engine.tool("quantize")).parent
    named = engine.name if engine.name == "bundled" else f"{engine.name}={folder}"
    return "--engine", named


def test_fewer_experts_go_through_a_build_as_quants_do(others: Path, engine: Any) -> None:
    """The build of :data:`EXPERTS`: one quant, three files made of it and of the target, and
    replay's counts those of the server."""
    record = build(others, "experts", EXPERTS + SCORED, *on(engine))
    assert [draft.quant for draft in record.drafts] == [
        *("Q8_0 experts=2", "Q8_0 experts=1", "target experts=4"),
        "target experts=4 prune_layers=3",
    ]
    kinds = [step.kind for step in record.steps]
    assert (kinds.count("quantize"), kinds.count("reduce")) == (1, 3)
    whole, fewer, wide, short = record.drafts
    assert (whole.reduction.experts, fewer.reduction.experts) == (2, 1)
    assert whole.tensor_bytes == fewer.tensor_bytes
    assert (short.tensor_bytes or 0) < (wide.tensor_bytes or 0)
    assert read_gguf(str(fewer.path)).metadata["bailingmoe2.expert_used_count"] == 1
    rates = {r.draft: sum(r.accepted) / sum(r.drafted) for r in record.replayed}
    assert rates["target experts=4"] > max(rates["Q8_0 experts=2"], rates["Q8_0 experts=1"])
    require_counted(record)


def require_counted(record: Record) -> None:
    """Every candidate has a forecast; those that ran count and write as they should."""
    for candidate in record.candidates:
        assert candidate.predicted is not None, candidate.reason
        if candidate.counts is not None:
            assert candidate.counts.exact == candidate.counts.requests
        if candidate.output is not None:
            assert candidate.output.material == 0


HEADS = """\
version: 1
name: heads
drafts:
  - {name: draft, source: "demo://draft-f16.gguf", output: [f16, q4_0, q2_K]}
"""


def test_output_heads_go_through_a_build_as_quants_do(others: Path, engine: Any) -> None:
    """The build of :data:`HEADS`: two files made of one, and replay's counts those of the
    server."""
    record = build(others, "heads", HEADS + SCORED, *on(engine))
    types = [d.output for d in record.drafts]
    assert types == ["f16", "q4_0", "q2_K"]
    assert [d.quant for d in record.drafts] == [f"draft output={one}" for one in types]
    kinds = [step.kind for step in record.steps if step.state == "ran"]
    assert kinds.count("head") == 2
    whole, *smaller = (d.tensor_bytes or 0 for d in record.drafts)
    assert all(size < whole for size in smaller)
    assert {r.draft for r in record.replayed} == {d.quant for d in record.drafts}
    require_counted(record)


READY = """\
version: 1
name: contexts
drafts:
  - {name: draft, source: "demo://draft-f16.gguf"}
"""
CONTEXTS = READY + SCORED.replace("max_tokens: 32", "max_tokens: 160").replace(
    "n_max: [2, 4]", "n_max: 4, context: [256, 1024]"
)


@pytest.mark.ik
def test_a_context_of_the_draft_s_own_that_holds_every_text_is_replayed(
    others: Path, ik_engine: Any
) -> None:
    record = build(others, "contexts", CONTEXTS, *on(ik_engine))
    short, long = record.drafts
    assert (short.context, long.context) == (256, 1024)
    assert (short.memory_bytes or 0) < (long.memory_bytes or 0)
    replays = [s.label for s in record.steps if s.state == "ran" and s.kind == "replay"]
    assert len([label for label in replays if "token by token" not in label]) == 1, "once for both"
    left = record.candidate("draft context=256 n_max=4")
    kept = record.candidate("draft context=1024 n_max=4")
    assert left.predicted is None
    assert "its context of 256 tokens does not hold" in (left.reason or "")
    assert kept.predicted is not None
    assert "-c 1024" in " ".join(kept.command)
    assert kept.counts.exact == kept.counts.requests
    assert kept.serving.draft_context == 1024


BEHIND = READY.replace("contexts", "behind") + SCORED.replace(
    "max_tokens: 32", "max_tokens: 48"
).replace("n_max: [2, 4]", "n_max: 4, after: [{type: ngram-map-k, size_n: 3, size_m: 6}]")


def test_a_draft_behind_n_grams_is_forecast_and_counted_as_the_server_does(
    others: Path, bundled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = build(others, "behind", BEHIND)
    name = "draft after ngram-map-k size_n=3 size_m=6"
    alone, behind = record.drafts
    assert behind.quant == name
    assert (alone.digest, alone.memory_bytes) == (behind.digest, behind.memory_bytes)
    assert behind.after is not None
    found = record.candidate(f"{name} n_max=4")
    assert found.predicted is not None, found.reason
    assert found.ngram == behind.after
    plain = record.candidate("draft n_max=4")
    assert found.predicted.figures.drafted != plain.predicted.figures.drafted
    assert [r.draft for r in record.replayed] == ["draft"]
    assert read_record(others / "records" / "behind.json") == record
    # And live, whatever was picked.
    monkeypatch.setenv("COOK_HOME", str(others))
    (layout,) = prepare(others / "behind.yaml", threads=1).layouts
    configuration = next(c for c in layout.grid if c.name == found.name)
    assert layout.baseline is not None
    assert layout.forecast is not None
    with executor(others, threads=1) as running:
        running.run(layout.forecast.steps())
        forecaster = Forecaster(layout.forecast, running.outcomes)
        dealing = Dealing(running, True, 600.0, {})
        assert dealing.deal([layout.baseline, configuration], configuration.live.prompts)
        dealt = dealing.dealt(configuration.key)
        assert dealt is not None, dealing.failed
        counts = rival_counts(configuration.key, dealt, forecaster)
    assert counts.requests + counts.passed_over == 12
    assert counts.exact == counts.requests > 0


def test_every_listed_chain_is_forecast_on_its_own_text(
    others: Path, bundled: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    text = BRIEF.replace("name: replay", "name: chains").replace(
        "  limit: 16\n", "  limit: 8\n  sampling: {temperature: [0, 0.8]}\n"
    )
    record = build(others, "chains", text)
    assert record.temperature == 0.0
    (chain,) = record.chains or ()
    assert (chain.sampling.temperature, chain.reason) == (0.8, None)
    bare, *drafts = chain.candidates
    assert bare.key.draft is None
    assert {one.key.draft for one in drafts} == {"Q4_K_M", "Q2_K"}
    for one in drafts:
        assert one.figures.acceptance_rate is not None
        assert one.rejection.accepted / one.rejection.drafted > one.figures.acceptance_rate
        assert one.figures.drafted
        assert sum(n or 0 for n in one.prompts.drafted) == one.figures.drafted
    kinds = [step.label for step in record.steps if step.kind == "trace"]
    assert kinds == ["trace (bundled)", "trace at temperature 0.8 (bundled)"]
    assert "at temperature 0.8: " in capsys.readouterr().out
