"""How a night ends: files, one document, an exit status."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from cook.errors import GateError, StepError
from cook.nightly import cells
from cook.nightly.cell_outcome import CellOutcome, worst
from cook.nightly.cells import NightRequest
from cook.nightly.pipeline import Cell
from cook.nightly.tonight import raise_for, report, tonight
from cook.output import Mode, Output
from tests.builds import TINY
from tests.nightly.outcomes import FAILED, WORSE, outcome


def test_a_regression_outranks_a_failure() -> None:
    assert worst([outcome(), FAILED, WORSE]) == 4
    assert worst([outcome(), FAILED]) == 5
    assert worst([]) == 0
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

    monkeypatch.setattr(cells, "run_cell", run_cell)
    tonight(NightRequest(pipeline, all_cells=True, into=tmp_path / "night"), Output(Mode.HUMAN))
    shown = capsys.readouterr()
    assert shown.out.splitlines()[0] == "tiny-bundled: ok; pick Q4"
    assert "1 of 2 cells\n" in shown.err
    assert "tiny-bundled: 4 starts a side find a loss of 3.0%" in shown.err
