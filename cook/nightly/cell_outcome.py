"""What became of one cell tonight, as a small document that another job can read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from pathlib import Path

from cook.errors import GateError, InputError
from cook.files import atomic_write
from cook.nightly.causes import Cause
from cook.nightly.gates import Finding, Verdict

VERSION = 1
HINT = "`cook sweep` writes it again when it runs the cell"
FILE = "cell.json"
RECORD = "record.json"
MAX_BYTES = 16 << 20
MAX_CELLS = 4096
MAX_FILES = 100_000
"""Directory entries looked at before a tree is called no set of cells."""


class CellStatus(StrEnum):
    OK = "ok"
    REGRESSION = "regression"
    FAILED = "failed"
    FRESH = "fresh"  # its last night is recent: not run


REGRESSION_EXIT = GateError.exit_code


@dataclass(frozen=True, kw_only=True)
class CellOutcome:
    """One cell. ``exit_code`` is what its own run exits with; ``summary`` one line for people."""

    version: int = VERSION
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
    causes: tuple[Cause, ...] | None = None
    """What is not what it was on the night that this one is compared with."""
    against: str | None = None
    """When the night was that this one is compared with; None: there is none."""
    record: str | None = None

    @property
    def regressions(self) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if f.verdict is Verdict.REGRESSION)


def write_outcome(outcome: CellOutcome, directory: Path) -> Path:
    """Write ``DIRECTORY/<cell>/cell.json``, whole or not at all."""
    from pydantic import TypeAdapter

    document = TypeAdapter(CellOutcome).dump_python(outcome, mode="json")
    path = directory / outcome.cell / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as stream:
        stream.write(json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False).encode())
    return path


def read_outcomes(directories: Iterable[Path]) -> tuple[CellOutcome, ...]:
    """Every cell under ``directories``, by name; of several of one name the newest."""
    found: dict[str, CellOutcome] = {}
    for directory in directories:
        if not directory.is_dir():
            raise InputError(f"{directory}: no such folder")
        for path in islice(_files(directory), MAX_CELLS):
            outcome = _read(path)
            if outcome.cell not in found or outcome.created > found[outcome.cell].created:
                found[outcome.cell] = outcome
    return tuple(found[name] for name in sorted(found))


def _files(directory: Path) -> Iterator[Path]:
    seen = islice(directory.rglob("*"), MAX_FILES)
    return iter(sorted(path for path in seen if path.name == FILE and path.is_file()))


def _read(path: Path) -> CellOutcome:
    from pydantic import TypeAdapter, ValidationError

    try:
        if path.stat().st_size > MAX_BYTES:
            raise InputError(f"{path}: larger than {MAX_BYTES >> 20} MiB, not a cell's outcome")
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    except (ValueError, RecursionError):
        raise InputError(f"{path}: not JSON", hint=HINT) from None
    version = document.get("version") if isinstance(document, dict) else None
    if version != VERSION:
        raise InputError(f"{path}: version {version!r}, this cook reads {VERSION}", hint=HINT)
    try:
        outcome: CellOutcome = TypeAdapter(CellOutcome).validate_python(document)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise InputError(f"{path}: {where}: {first['msg']}", hint=HINT) from None
    return outcome


def worst(outcomes: Iterable[CellOutcome]) -> int:
    """The exit status of a whole night: a regression before a failure before all well."""
    codes = {o.exit_code for o in outcomes}
    return REGRESSION_EXIT if REGRESSION_EXIT in codes else max(codes, default=0)
