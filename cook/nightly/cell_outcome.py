"""What became of one cell tonight, as a small document that another job can read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from cook.errors import GateError, InputError
from cook.nightly.gates import Finding, Verdict
from cook.record.versioned import json_values, read_versioned, write_versioned

SCHEMA_VERSION = 2
HINT = "`cook sweep` writes it again when it runs the cell"
FILE = "cell.json"
RECORD = "record.json"


class CellStatus(StrEnum):
    OK = "ok"
    REGRESSION = "regression"
    FAILED = "failed"
    FRESH = "fresh"  # its last night is recent: not run
    NOT_JUDGED = "not judged"  # the speed of the accepted pick is not known tonight


@dataclass(frozen=True, kw_only=True)
class CellOutcome:
    """One cell. ``exit_code`` is what its own run exits with; ``summary`` one line for people."""

    schema_version: int = SCHEMA_VERSION
    cell: str
    recipe: str
    engine: str
    status: CellStatus
    exit_code: int = 0
    created: str
    seconds: float = 0.0
    summary: str
    error: str | None = None
    pick: str | None = None
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    power: str | None = None
    """What loss of speed a night like this one finds, and the starts that the tolerance needs."""
    against: str | None = None
    """When the accepted night was; None: there is none."""
    record: str | None = None

    @property
    def regressions(self) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if f.verdict is Verdict.REGRESSION)


def write_outcome(outcome: CellOutcome, directory: Path) -> Path:
    """Write ``DIRECTORY/<cell>/cell.json``, whole or not at all."""
    path = directory / outcome.cell / FILE
    write_versioned(json_values(outcome), path)
    return path


def read_outcomes(directories: Iterable[Path]) -> tuple[CellOutcome, ...]:
    """Every cell under ``directories``, by name; of several of one name the newest."""
    found: dict[str, CellOutcome] = {}
    for directory in directories:
        if not directory.is_dir():
            raise InputError(f"{directory}: no such folder")
        for path in sorted(directory.rglob(FILE)):
            outcome = read_versioned(path, CellOutcome, SCHEMA_VERSION, "cell", HINT)
            if outcome.cell not in found or outcome.created > found[outcome.cell].created:
                found[outcome.cell] = outcome
    return tuple(found[name] for name in sorted(found))


def worst(outcomes: Iterable[CellOutcome]) -> int:
    """The exit status of a whole night: a regression before a failure before all well."""
    codes = {o.exit_code for o in outcomes}
    worse = GateError.exit_code
    return worse if worse in codes else max(codes, default=0)
