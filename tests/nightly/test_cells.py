"""A sweep on the bundled engine: two nights, a comparison, a plan, and what goes wrong."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cook.errors import GateError, InputError, StepError
from cook.nightly import cells
from cook.nightly.cell_outcome import CellStatus, read_outcomes
from cook.nightly.cells import CellProgress
from cook.nightly.due import due
from cook.nightly.gates import Verdict
from cook.nightly.history import append, read_history
from cook.nightly.pipeline import load_pipeline
from cook.nightly.tonight import NightRequest, tonight
from cook.output import Mode, Output
from cook.provenance import machine
from tests import builds
from tests.nightly.nights import Series, World, night_with

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
    tonight(NightRequest(pipeline, into=out), QUIET)
    (first,) = read_outcomes([out])
    assert first.status is CellStatus.OK
    assert first.against is None
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("tiny-bundled: ok; pick ")
    loaded = load_pipeline(pipeline)
    assert [d.reason for d in due(loaded)] == [None]

    # A fresh cell is not run, and its line says so.
    tonight(NightRequest(pipeline), QUIET)
    assert "fresh: last night" in capsys.readouterr().out
    assert len(read_history(loaded.history).nights) == 1

    # The next night is due, measures anew, and counts are what they were: one build, greedy.
    tomorrow = datetime.now(UTC) + timedelta(hours=21)
    (cell,) = due(loaded, tomorrow)
    assert cell.reason == "its last night is 21 hours old"
    tonight(NightRequest(pipeline, all_cells=True, into=out), QUIET)
    (second,) = read_outcomes([out])
    assert second.against == first.created
    counted = [f for f in second.findings if f.gate == "acceptance"]
    assert [f.change for f in counted] == [0.0] * len(counted)
    assert counted
    before, after = read_history(loaded.history).nights
    drafted = before.candidates[1].name
    assert before.column(drafted) != after.column(drafted)  # times of their own

    # A changed recipe is stale at once, and names the step.
    (pipeline.parent / "tiny.yaml").write_text(
        builds.TINY.replace("max_tokens: 24", "max_tokens: 25")
    )
    (cell,) = due(load_pipeline(pipeline))
    assert cell.reason is not None
    assert "steps would run" in cell.reason


@pytest.mark.engine
def test_a_regression_exits_4_until_it_is_accepted(pipeline: Path, bundled: Any) -> None:
    loaded = load_pipeline(pipeline)
    tonight(NightRequest(pipeline, cell="tiny-bundled"), QUIET)
    (night,) = read_history(loaded.history).nights
    # As if the file had been half the size the night before.
    from dataclasses import replace

    (draft,) = night.drafts
    assert draft.file_bytes is not None
    smaller = replace(draft, file_bytes=draft.file_bytes // 2)
    append(loaded.history, replace(night, drafts=(smaller,)))
    with pytest.raises(GateError, match="1 cell got worse: tiny-bundled"):
        tonight(NightRequest(pipeline, cell="tiny-bundled", into=pipeline.parent / "n"), QUIET)
    (outcome,) = read_outcomes([pipeline.parent / "n"])
    assert outcome.status is CellStatus.REGRESSION
    assert [f.gate for f in outcome.findings if f.verdict is Verdict.REGRESSION] == ["size"]
    assert read_history(loaded.history).nights[-1].good is False
    tonight(NightRequest(pipeline, accept="tiny-bundled"), QUIET)
    tonight(NightRequest(pipeline, cell="tiny-bundled"), QUIET)
    assert read_history(loaded.history).nights[-1].good is True


def test_the_last_good_pick_runs_again(pipeline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its speed is compared even on a night whose finalists are others."""
    asked: list[str | None] = []

    def build(*_: Any, again: str | None, **__: Any) -> Any:
        asked.append(again)
        raise StepError("enough")

    loaded = load_pipeline(pipeline)
    (cell,) = loaded.cells
    prepared = SimpleNamespace(
        loaded=cell.loaded, layouts=[SimpleNamespace(engine=SimpleNamespace(name="bundled"))]
    )
    monkeypatch.setattr(cells, "prepare", lambda *_, **__: prepared)
    monkeypatch.setattr(cells, "build", build)
    assert cells.run_cell(loaded, cell, QUIET).status is CellStatus.FAILED
    text = hashlib.sha256(cell.loaded.text.encode()).hexdigest()
    night = night_with(
        Series(World(prompts=10, tokens=32), 1).measure().judged((), ()),
        cell=cell.name,
        recipe_sha256=text,
        machine=machine().digest,
    )
    append(loaded.history, night)
    cells.run_cell(loaded, cell, QUIET)
    # A night that was no good is no measure.
    append(loaded.history, night_with(night, id="worse", good=False, pick="another"))
    cells.run_cell(loaded, cell, QUIET)
    assert asked == [None, night.pick, night.pick]


def test_a_cell_tells_its_start_its_phases_and_what_takes_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = iter((0.0, 1.0, 10.0, 20.0, 75.0))
    monkeypatch.setattr("cook.nightly.cells.time.monotonic", lambda: next(clock))
    lines: list[str] = []
    progress = CellProgress("demo-bundled", lines.append)
    for kind, name in (("quantize", "A"), ("memory", "A"), ("quantize", "B"), ("quantize", "C")):
        progress.begins(SimpleNamespace(kind=kind, label=f"{kind} {name}"))  # type: ignore[arg-type]
    assert lines == [
        "demo-bundled: started",
        "demo-bundled: quantize the drafts, after 1.0 s",
        "demo-bundled: PPL, KLD and memory, after 10.0 s",
        "demo-bundled: quantize the drafts (quantize C), after 1 min 15 s",
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

    monkeypatch.setattr(cells, "prepare", prepare)
    with pytest.raises(StepError) as caught:
        tonight(NightRequest(pipeline, into=pipeline.parent / "n"), QUIET)
    assert caught.value.exit_code == status


def test_a_missing_engine_fails_its_cell_and_no_other(
    pipeline: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "version: 1\nname: p\nrecipes: [tiny.yaml]\nengines: [absent, missing]\n"
    pipeline.write_text(text)
    with pytest.raises(StepError, match="2 cells failed") as caught:
        tonight(NightRequest(pipeline, into=pipeline.parent / "n"), QUIET)
    assert caught.value.exit_code == 5
    assert len(read_outcomes([pipeline.parent / "n"])) == 2
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("tiny-absent: failed: no engine is called 'absent'")
    assert read_history(load_pipeline(pipeline).history).nights == ()


def test_the_plan_is_one_line_for_a_matrix(
    pipeline: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tonight(NightRequest(pipeline, plan=True), QUIET)
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
        tonight(NightRequest(pipeline, plan=True, cell="x"), QUIET)
