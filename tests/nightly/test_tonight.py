"""How a night ends: files, one document, an exit status."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cook.errors import GateError, InputError, StepError
from cook.job.run import Built
from cook.nightly.cell_outcomes import CellOutcome, CellStatus, exit_status, read_outcomes
from cook.nightly.gates import Verdict
from cook.nightly.history import append, read_history
from cook.nightly.pipeline import Cell, load_pipeline
from cook.nightly.tonight import NightRequest, due, raise_for, report, run_cell, run_night
from cook.output import Mode, Output
from cook.steps.draft_quality import MemoryStep
from cook.steps.quantize import QuantizeStep
from tests import builds
from tests.builds import TINY
from tests.nightly.nights import Series, World
from tests.nightly.outcomes import FAILED, WORSE, outcome


def test_a_regression_outranks_a_failure() -> None:
    assert exit_status([outcome(), FAILED, WORSE]) == 4
    assert exit_status([outcome(), FAILED]) == 5
    assert exit_status([]) == 0
    with pytest.raises(GateError, match="1 cell got worse: demo-ik"):
        raise_for([FAILED, WORSE])
    with pytest.raises(StepError, match="1 cell failed: broken-ik") as caught:
        raise_for([outcome(), FAILED])
    assert caught.value.exit_code == 5
    raise_for([outcome()])


def test_a_report_writes_its_files_and_one_document(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    with pytest.raises(GateError):
        report("nightly", [outcome(), WORSE], Output(Mode.JSON), tmp_path / "out")
    document = json.loads(capsys.readouterr().out)
    assert document["exit_code"] == 4
    assert [c["cell"] for c in document["cells"]] == ["demo-bundled", "demo-ik"]
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["junit.xml", "summary.md"]


def test_a_sweep_counts_its_cells_and_prints_what_a_night_finds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COOK_HOME", str(tmp_path / "home"))
    (tmp_path / "r.yaml").write_text(TINY)
    pipeline = tmp_path / "p.yaml"
    pipeline.write_text(
        "version: 1\nname: p\nrecipes: [r.yaml]\nengines: [bundled, ik_llama.cpp]\n"
    )

    def run_cell(loaded: object, cell: Cell, *more: object) -> CellOutcome:
        return replace(outcome(), cell=cell.name)

    monkeypatch.setattr("cook.nightly.tonight.run_cell", run_cell)
    run_night(NightRequest(pipeline, all_cells=True, into=tmp_path / "night"), Output(Mode.HUMAN))
    shown = capsys.readouterr()
    assert shown.out.splitlines()[0] == "tiny-bundled: ok; pick Q4"
    assert "1 of 2 cells\n" in shown.err
    assert "tiny-bundled: 4 starts a side find a loss of 3.0%" in shown.err


QUIET = Output(Mode.QUIET)


@pytest.fixture
def pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COOK_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    (tmp_path / "tiny.yaml").write_text(builds.TINY)
    path = tmp_path / "p.yaml"
    # Two nights a minute apart: how fast a shared machine is then is the weather's, not the test's.
    gates = "gates: {speed_percent: 90, no_draft_percent: 90}\n"
    path.write_text(f"version: 1\nname: p\nrecipes: [tiny.yaml]\nengines: bundled\n{gates}")
    return path


@pytest.mark.engine
def test_nights_are_compared_and_remembered(
    pipeline: Path, bundled: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    out = pipeline.parent / "night"
    run_night(NightRequest(pipeline, into=out), QUIET)
    (first,) = read_outcomes([out])
    assert first.status is CellStatus.OK
    assert first.against is None
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("tiny-bundled: ok; pick ")
    loaded = load_pipeline(pipeline)
    assert [d.reason for d in due(loaded)] == [None]

    # A fresh cell is not run, and its line says so.
    run_night(NightRequest(pipeline), QUIET)
    assert "fresh: last night" in capsys.readouterr().out
    assert len(read_history(loaded.history).nights) == 1

    # The next night is due, measures anew, and counts are what they were: one build, greedy.
    tomorrow = datetime.now(UTC) + timedelta(hours=21)
    (cell,) = due(loaded, tomorrow)
    assert cell.reason == "its last night is 21 hours old"
    run_night(NightRequest(pipeline, all_cells=True, into=out), QUIET)
    (second,) = read_outcomes([out])
    assert second.against == first.created
    same = [f for f in second.findings if f.text == "identical to the last digit"]
    assert len(same) == 1
    assert "acceptance" in same[0].gate
    before, after = read_history(loaded.history).nights
    assert before.live[1].prompts != after.live[1].prompts  # times of their own

    # So is what another build of the engine measured.
    text, digest = loaded.history.read_text(), before.record.engines["bundled"].digest
    loaded.history.write_text(text.replace(digest, "0" * len(digest)))
    assert [d.reason for d in due(loaded)] == ["its engine bundled is another build"]
    loaded.history.write_text(text)

    # A changed recipe is stale at once.
    (pipeline.parent / "tiny.yaml").write_text(
        builds.TINY.replace("max_tokens: 24", "max_tokens: 25")
    )
    (cell,) = due(load_pipeline(pipeline))
    assert cell.reason == "its recipe is not that of its last night"


@pytest.mark.engine
def test_a_regression_exits_4_until_it_is_accepted(pipeline: Path, bundled: Any) -> None:
    loaded = load_pipeline(pipeline)
    run_night(NightRequest(pipeline, cell="tiny-bundled"), QUIET)
    (night,) = read_history(loaded.history).nights
    # As if the file had been half the size the night before.
    (draft,) = night.record.drafts
    assert draft.file_bytes is not None
    smaller = replace(draft, file_bytes=draft.file_bytes // 2)
    append(loaded.history, replace(night, record=replace(night.record, drafts=(smaller,))))
    with pytest.raises(GateError, match="1 cell got worse: tiny-bundled"):
        run_night(NightRequest(pipeline, cell="tiny-bundled", into=pipeline.parent / "n"), QUIET)
    (outcome,) = read_outcomes([pipeline.parent / "n"])
    assert outcome.status is CellStatus.REGRESSION
    assert [f.gate for f in outcome.findings if f.verdict is Verdict.REGRESSION] == ["size"]
    assert read_history(loaded.history).nights[-1].good is False
    run_night(NightRequest(pipeline, accept="tiny-bundled"), QUIET)
    run_night(NightRequest(pipeline, cell="tiny-bundled"), QUIET)
    assert read_history(loaded.history).nights[-1].good is True


def test_the_last_good_pick_runs_again(pipeline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its speed is compared even on a night whose finalists are others."""
    asked: list[str | None] = []

    def build(*_: Any, again: str | None, reference: Any, **__: Any) -> Any:
        asked.append(again)
        assert reference == {}
        raise StepError("enough")

    loaded = load_pipeline(pipeline)
    (cell,) = loaded.cells
    prepared = SimpleNamespace(
        loaded=cell.loaded, layouts=[SimpleNamespace(engine=SimpleNamespace(name="bundled"))]
    )
    monkeypatch.setattr("cook.nightly.tonight.prepare", lambda *_, **__: prepared)
    monkeypatch.setattr("cook.nightly.tonight.build", build)
    assert run_cell(loaded, cell, NightRequest(pipeline), QUIET).status is CellStatus.FAILED
    text = hashlib.sha256(cell.loaded.text.encode()).hexdigest()
    night = Series(World(prompts=10, tokens=32), 1).measure().judged((), ())
    night = replace(night, cell=cell.name, record=replace(night.record, recipe_sha256=text))
    append(loaded.history, night)
    run_cell(loaded, cell, NightRequest(pipeline), QUIET)
    # A night that was no good is no measure.
    append(loaded.history, replace(night, id="worse", good=False))
    run_cell(loaded, cell, NightRequest(pipeline), QUIET)
    assert asked == [None, night.pick, night.pick]


def test_nights_of_a_cell_end_in_a_verdict_each(
    pipeline: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First night, the same, a larger file, and a night on which the pick did not run live."""
    loaded = load_pipeline(pipeline)
    (cell,) = loaded.cells
    text = hashlib.sha256(cell.loaded.text.encode()).hexdigest()
    series = Series(World(prompts=12, new_builds=0), seed=4)
    nights = [replace(series.measure().record, recipe_sha256=text) for _ in range(4)]
    larger = tuple(replace(draft, file_bytes=2 * 10**9) for draft in nights[2].drafts)
    nights[2] = replace(nights[2], drafts=larger)
    left = tuple(c for c in nights[3].candidates if c.name != nights[0].pick.candidate)
    nights[3] = replace(nights[3], candidates=left)
    made = iter(nights)
    prepared = SimpleNamespace(
        loaded=cell.loaded, layouts=[SimpleNamespace(engine=SimpleNamespace(name="bundled"))]
    )
    monkeypatch.setattr("cook.nightly.tonight.prepare", lambda *_, **__: prepared)
    monkeypatch.setattr(
        "cook.nightly.tonight.build", lambda *_, **__: Built(next(made), Path("r"), (), (), ())
    )
    request = NightRequest(pipeline, into=pipeline.parent / "n")
    outcomes = [run_cell(loaded, cell, request, QUIET) for _ in nights]
    assert [outcome.status for outcome in outcomes] == [
        CellStatus.OK,
        CellStatus.OK,
        CellStatus.REGRESSION,
        CellStatus.NOT_JUDGED,
    ]
    assert [outcome.exit_code for outcome in outcomes] == [0, 0, 4, 0]
    first, second, worse, unjudged = (outcome.summary for outcome in outcomes)
    assert "first night" in first
    assert f"against {nights[0].created}" in second
    assert worse.startswith("REGRESSION: size of Q4: ")
    assert "and 2 more" in worse
    pick = nights[0].pick.candidate
    assert unjudged.startswith(f"not judged: {pick}: not run live tonight: it was no finalist")
    assert outcomes[1].power is not None
    history = read_history(loaded.history)
    assert [night.good for night in history.nights] == [True, True, False, True]
    assert read_outcomes([pipeline.parent / "n"]) == (outcomes[-1],)


def test_a_cell_prints_its_start_and_each_phase_once(
    pipeline: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load_pipeline(pipeline)

    def build(*_: Any, watch: Any, **__: Any) -> Any:
        for step in (QuantizeStep, MemoryStep, QuantizeStep):
            watch(SimpleNamespace(phase=step.phase))
        raise StepError("enough")

    monkeypatch.setattr(
        "cook.nightly.tonight.prepare",
        lambda *_, **__: SimpleNamespace(loaded=loaded.cells[0].loaded, layouts=[]),
    )
    monkeypatch.setattr("cook.nightly.tonight.build", build)
    lines: list[str] = []
    run_cell(loaded, loaded.cells[0], NightRequest(pipeline), QUIET, lines.append)
    assert [line.partition(", after")[0] for line in lines] == [
        "tiny-bundled: started",
        "tiny-bundled: quantize the drafts",
        "tiny-bundled: PPL, KLD and memory",
    ]


@pytest.mark.parametrize(
    ("error", "status"),
    [(InputError("m.gguf: broken"), 1), (GateError("nothing qualifies"), 1), (StepError("x"), 1)],
)
def test_a_broken_cell_is_a_failed_one_not_a_wrong_command_line(
    pipeline: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int
) -> None:
    def prepare(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr("cook.nightly.tonight.prepare", prepare)
    with pytest.raises(StepError) as caught:
        run_night(NightRequest(pipeline, into=pipeline.parent / "n"), QUIET)
    assert caught.value.exit_code == status


def test_a_missing_engine_fails_its_cell_and_no_other(
    pipeline: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "version: 1\nname: p\nrecipes: [tiny.yaml]\nengines: [absent, missing]\n"
    pipeline.write_text(text)
    with pytest.raises(StepError, match="2 cells failed") as caught:
        run_night(NightRequest(pipeline, into=pipeline.parent / "n"), QUIET)
    assert caught.value.exit_code == 5
    assert len(read_outcomes([pipeline.parent / "n"])) == 2
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("tiny-absent: failed: no engine is called 'absent'")
    assert read_history(load_pipeline(pipeline).history).nights == ()


def test_the_plan_is_one_line_for_a_matrix(
    pipeline: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_night(NightRequest(pipeline, plan=True), QUIET)
    (line,) = capsys.readouterr().out.splitlines()
    (entry,) = json.loads(line)["include"]
    assert entry == {
        "cell": "tiny-bundled",
        "recipe": "tiny",
        "engine": "bundled",
        "reason": "never run here",
    }


def test_two_questions_at_once_are_refused(pipeline: Path) -> None:
    with pytest.raises(InputError, match="--plan and --cell cannot be asked together"):
        run_night(NightRequest(pipeline, plan=True, cell="x"), QUIET)
