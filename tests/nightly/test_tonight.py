"""How a night ends: files, one document, an exit status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cook.errors import GateError, StepError
from cook.nightly.cell_outcome import worst
from cook.nightly.tonight import raise_for, report
from cook.output import Mode, Output
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
