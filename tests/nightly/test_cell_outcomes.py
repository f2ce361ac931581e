"""Outcomes of cells: written whole, merged by name, refused when they are something else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cook.errors import InputError
from cook.nightly.cell_outcomes import (
    CellOutcome,
    CellStatus,
    junit,
    publish,
    read_outcomes,
    summary,
    write_outcome,
)
from cook.nightly.gates import Finding, Verdict


def finding(verdict: Verdict, gate: str = "acceptance") -> Finding:
    return Finding(gate, "Q4 n_max=8", verdict, "62 to 59", 0.62, 0.59, -3.0, -3.9, -2.1)


def outcome(cell: str = "demo-bundled", *found: Finding, **changes: object) -> CellOutcome:
    worse = any(f.verdict is Verdict.REGRESSION for f in found)
    made = CellOutcome(
        cell=cell,
        recipe="demo",
        engine="bundled",
        status=CellStatus.REGRESSION if worse else CellStatus.OK,
        exit_code=4 if worse else 0,
        created="2026-11-21T02:17:00Z",
        seconds=12.5,
        summary="ok; pick Q4",
        pick="Q4",
        findings=found,
        notes=("engine bundled: b1 then, b2 now",),
        power="4 starts a side find a loss of 3.0%",
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
WORSE = outcome("demo-ik", finding(Verdict.REGRESSION), finding(Verdict.NOT_JUDGED, "speed"))


def test_cells_of_several_folders_are_merged_and_the_newest_wins(tmp_path: Path) -> None:
    newer = outcome(created="2026-11-22T02:17:00Z")
    for folder, one in (("one", outcome()), ("two", WORSE), ("two", newer)):
        write_outcome(one, tmp_path / folder)
    assert read_outcomes([tmp_path / "one", tmp_path / "two"]) == (newer, WORSE)
    assert read_outcomes([tmp_path]) == (newer, WORSE)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "not JSON"),
        ('{"schema_version": 9}', "version 9"),
        ('{"schema_version": 2}', "cell: Field required"),
    ],
)
def test_something_else_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "cell.json").write_text(text)
    with pytest.raises(InputError, match=message):
        read_outcomes([tmp_path])
    with pytest.raises(InputError, match="no such folder"):
        read_outcomes([tmp_path / "none"])


def test_the_summary_has_the_worst_first_and_is_cut_between_lines_which_it_says() -> None:
    whole = summary("nightly", [outcome(), WORSE, FAILED])
    assert "3 cells: 1 cell got worse, 1 cell failed." in whole
    places = ("### Got worse", "broken-ik failed", "<details>")
    assert sorted(places, key=whole.index) == list(places)
    assert "- **demo-ik**: acceptance of Q4 n_max=8: 62 to 59\n" in whole
    assert "- 4 starts a side find a loss of 3.0%" in whole
    cells = [outcome(f"cell-{i}", *[finding(Verdict.SAME)] * 50) for i in range(500)]
    whole = summary("nightly", [WORSE, *cells], limit_bytes=1 << 30)
    cut = summary("nightly", [WORSE, *cells])
    assert len(whole.encode()) > 1 << 20 >= len(cut.encode())
    assert cut.endswith("_The rest did not fit; it is in the artifacts._\n")
    assert "### Got worse" in cut
    assert whole.startswith(cut.partition("\n\n_The rest")[0])


@settings(max_examples=100, deadline=None)
@given(name=st.text(max_size=60), limit=st.integers(0, 3000))
def test_no_name_breaks_the_table_the_limit_or_the_xml(name: str, limit: int) -> None:
    text = summary(name, [outcome(summary=name, error=name)], limit_bytes=limit)
    assert len(text.encode("utf-8", "surrogatepass")) <= limit
    whole = summary("x", [outcome(recipe=name, summary=name)])
    row = next(line for line in whole.splitlines() if line.startswith("| ✅"))
    assert len([c for i, c in enumerate(row) if c == "|" and row[i - 1] != "\\"]) == 5
    assert "<" not in row
    suite = ElementTree.fromstring(junit([outcome(name, finding(Verdict.REGRESSION), error=name)]))
    assert len(list(suite.iter("testcase"))) == 2


def test_the_jobs_summary_is_filled_within_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "summary"
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    assert publish("text\n") is None
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(file))
    file.write_text("x" * 950)
    for text in ("line of text\n", "more\n"):
        publish(text * 100, limit_bytes=1000)
        assert len(file.read_bytes()) <= 1000


def test_junit_has_a_case_a_gate() -> None:
    root = ElementTree.fromstring(junit([outcome(), WORSE, FAILED]))
    suites = {s.get("name"): s for s in root}
    worse = suites["demo-ik"]
    counts = {"tests": "3", "failures": "1", "errors": "0", "skipped": "1"}
    assert worse.attrib == {"name": "demo-ik", "time": "12.5", **counts}
    assert worse.find("testcase/failure").get("message") == "62 to 59"
    assert worse.find("testcase/skipped").get("message") == "62 to 59"
    assert suites["broken-ik"].find("testcase/error").text == "no engine\nis called ik"
