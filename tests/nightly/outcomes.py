"""Outcomes of cells, for tests."""

from __future__ import annotations

from dataclasses import replace

from cook.nightly.cell_outcomes import CellOutcome, CellStatus
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
