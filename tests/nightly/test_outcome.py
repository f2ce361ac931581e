"""Outcomes of cells: written whole, merged by name, refused when they are something else; and
what is made of them: JUnit XML and a summary that fits and that no name can break."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cook.errors import GateError, InputError, StepError
from cook.nightly.ending import raise_for, report
from cook.nightly.gates import Finding, Verdict
from cook.nightly.junit import junit
from cook.nightly.outcome import (
    VERSION,
    CellOutcome,
    CellStatus,
    read_outcomes,
    worst,
    write_outcome,
)
from cook.nightly.summary import markdown, publish
from cook.output import Mode, Output


def finding(verdict: Verdict, gate: str = "acceptance") -> Finding:
    return Finding(
        gate, "Q4 n_max=8", verdict, 0.62, 0.59, -3.0, -3.9, -2.1, 1e-6, 1e-3, "62 to 59"
    )


def outcome(cell: str = "demo-bundled", *found: Finding, **changes: object) -> CellOutcome:
    worse = any(f.verdict is Verdict.REGRESSION for f in found)
    made = CellOutcome(
        version=VERSION,
        cell=cell,
        recipe="demo",
        engine="bundled",
        status=CellStatus.REGRESSION if worse else CellStatus.OK,
        exit_code=4 if worse else 0,
        created="2026-11-21T02:17:00Z",
        seconds=12.5,
        summary="ok; pick Q4",
        error=None,
        pick="Q4",
        findings=found,
        notes=("engine bundled: b1 then, b2 now",),
        against="2026-11-20T02:17:00Z",
        record="record.json",
    )
    return replace(made, **changes)  # type: ignore[arg-type]


FAILED = outcome(
    "broken-ik",
    status=CellStatus.FAILED,
    exit_code=5,
    error="no engine\nis called ik",
    summary="failed",
)
WORSE = outcome("demo-ik", finding(Verdict.REGRESSION), finding(Verdict.NOT_JUDGED, "speed ratio"))


def test_cells_of_several_folders_are_merged_and_the_newest_wins(tmp_path: Path) -> None:
    write_outcome(outcome(), tmp_path / "one")
    write_outcome(WORSE, tmp_path / "two")
    newer = outcome(created="2026-11-22T02:17:00Z")
    write_outcome(newer, tmp_path / "two")
    assert read_outcomes([tmp_path / "one", tmp_path / "two"]) == (newer, WORSE)
    assert read_outcomes([tmp_path]) == (newer, WORSE)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[]", "version None"),
        ('{"version": 9}', "version 9"),
        ('{"version": 1}', "cell: Field required"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_something_else_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "cell.json").write_text(text)
    with pytest.raises(InputError, match=message):
        read_outcomes([tmp_path])


def test_no_folder_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such folder"):
        read_outcomes([tmp_path / "none"])


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


def test_junit_has_a_case_a_gate() -> None:
    root = ElementTree.fromstring(junit([outcome(), WORSE, FAILED]))
    suites = {s.get("name"): s for s in root}
    assert suites["demo-ik"].attrib | {"time": ""} == {
        "name": "demo-ik",
        "tests": "3",
        "failures": "1",
        "errors": "0",
        "skipped": "1",
        "time": "",
    }
    failure = suites["demo-ik"].find("testcase/failure")
    assert failure is not None
    assert failure.text == "p = 1e-06, alarm at 0.001 and below"
    error = suites["broken-ik"].find("testcase/error")
    assert error is not None
    assert error.text == "no engine\nis called ik"


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=80))
def test_any_text_is_sound_xml(text: str) -> None:
    suite = ElementTree.fromstring(junit([outcome(text, finding(Verdict.REGRESSION), error=text)]))
    assert len(list(suite.iter("testcase"))) == 2


def test_the_summary_tells_the_worst_first() -> None:
    text = markdown("nightly", [outcome(), WORSE, FAILED])
    assert "3 cells: 1 cell got worse, 1 cell failed." in text
    assert text.index("### Got worse") < text.index("broken-ik failed") < text.index("<details>")
    assert (
        "- **demo-ik**: acceptance of Q4 n\\_max=8: 62 to 59 (p = 1e-06, alarm from 0.001)" in text
    )


def test_a_summary_over_the_limit_is_cut_between_parts_and_says_so() -> None:
    cells = [outcome(f"cell-{i}", *[finding(Verdict.SAME)] * 50) for i in range(500)]
    whole = markdown("nightly", [WORSE, *cells], limit_bytes=1 << 30)
    cut = markdown("nightly", [WORSE, *cells])
    assert len(whole.encode()) > 1 << 20
    assert len(cut.encode()) <= 1 << 20
    assert cut.endswith("_The rest did not fit; it is in the artifacts._\n")
    assert "### Got worse" in cut
    assert whole.startswith(cut.partition("\n\n_The rest")[0])


@settings(max_examples=100, deadline=None)
@given(name=st.text(max_size=60), limit=st.integers(0, 3000))
def test_no_name_breaks_the_table_or_the_limit(name: str, limit: int) -> None:
    text = markdown(name, [outcome(summary=name, error=name)], limit_bytes=limit)
    assert len(text.encode("utf-8", "surrogatepass")) <= limit
    whole = markdown("x", [outcome(recipe=name, summary=name)])
    row = next(line for line in whole.splitlines() if line.startswith("| ✅"))
    assert len([c for i, c in enumerate(row) if c == "|" and row[i - 1] != "\\"]) == 5
    assert "<" not in row


def test_the_jobs_summary_is_filled_within_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "summary"
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    assert publish("text\n") is None
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(file))
    file.write_text("x" * 950)
    publish("line of text\n" * 100, limit_bytes=1000)
    assert len(file.read_bytes()) <= 1000
    publish("more\n" * 100, limit_bytes=1000)
    assert len(file.read_bytes()) <= 1000


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
