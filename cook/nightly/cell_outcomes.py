"""What became of the cells tonight: a document each, which another job can read, and of all of them
the Markdown for a CI job's summary and JUnit XML, which CI services show as tests."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from xml.etree import ElementTree

from cook.errors import GateError, InputError
from cook.nightly.gates import Finding, Verdict
from cook.record.versioned import json_values, read_versioned, write_versioned
from cook.report.writing import fenced, head, row, text
from cook.units import plural

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


def exit_status(outcomes: Iterable[CellOutcome]) -> int:
    """The exit status of a whole night: a regression before a failure before all well."""
    codes = {o.exit_code for o in outcomes}
    worse = GateError.exit_code
    return worse if worse in codes else max(codes, default=0)


MAX_BYTES = 1 << 20
"""What GitHub shows of one step's summary (1 MiB); a longer one is refused as a whole."""
ENVIRONMENT = "GITHUB_STEP_SUMMARY"
_REST = "\n\n_The rest did not fit; it is in the artifacts._\n"
MARK = {
    CellStatus.OK: "✅",
    CellStatus.REGRESSION: "❌",
    CellStatus.FAILED: "⚠️",
    CellStatus.FRESH: "💤",
    CellStatus.NOT_JUDGED: "❔",
}
COUNTED = {
    CellStatus.REGRESSION: "got worse",
    CellStatus.FAILED: "failed",
    CellStatus.NOT_JUDGED: "not judged",
}
MOST_TEXT, MOST_ERROR = 2_000, 20_000
"""Characters of a name or sentence, and of an error, that are shown."""


def summary(title: str, outcomes: Sequence[CellOutcome], limit_bytes: int = MAX_BYTES) -> str:
    """The summary, at most ``limit_bytes`` of UTF-8, else cut after a line, which it says.

    Order is importance: the table of cells, what got worse, what failed, what got better, then
    each cell's figures.
    """
    counts = Counter(outcome.status for outcome in outcomes)
    shown = [
        f"{plural(counts[status], 'cell')} {what}"
        for status, what in COUNTED.items()
        if counts[status]
    ]
    lines = [f"## {_cut(title)}", ""]
    lines.append(f"{plural(len(outcomes), 'cell')}: {', '.join(shown) or 'nothing got worse'}.")
    lines += ["", head((name, "left") for name in ("", "recipe", "engine", "tonight"))]
    for o in outcomes:
        lines.append(row((MARK[o.status], _cut(o.recipe), _cut(o.engine), _cut(o.summary))))
    lines += _listed("Got worse", outcomes, Verdict.REGRESSION)
    for o in outcomes:
        if o.error is not None:
            lines += ["", f"### {_cut(o.cell)} failed", "", fenced(o.error[:MOST_ERROR], "text")]
    lines += _listed("Got better", outcomes, Verdict.IMPROVEMENT)
    for o in outcomes:
        against = _cut(o.against or "nothing: there is no good night yet")
        lines += ["", f"<details><summary>{_cut(o.cell)}</summary>", ""]
        lines += [f"Compared with {against}.", ""]
        lines += [f"- {_cut(note)}" for note in (*o.notes, o.power or "") if note]
        if o.findings:
            lines += ["", head((name, "left") for name in ("gate", "of", "verdict", "figures"))]
        lines += [row((f.gate, _cut(f.subject), f.verdict, _cut(f.text))) for f in o.findings]
        lines += ["", "</details>"]
    return _fitted("\n".join(lines) + "\n", limit_bytes)


def publish(text: str, limit_bytes: int = MAX_BYTES) -> Path | None:
    """Append to the running job's summary; None outside of GitHub Actions.

    What earlier commands of the step wrote there counts towards the limit.
    """
    name = os.environ.get(ENVIRONMENT)
    if not name:
        return None
    path = Path(name)
    room = limit_bytes - (path.stat().st_size if path.exists() else 0)
    with path.open("a", encoding="utf-8") as stream:
        stream.write(_fitted(text, room))
    return path


def _fitted(text: str, limit_bytes: int) -> str:
    if len(encoded := text.encode()) <= limit_bytes:
        return text
    room = limit_bytes - len(_REST.encode())
    return encoded[:room].rpartition(b"\n")[0].decode() + _REST if room >= 0 else ""


def _listed(title: str, outcomes: Sequence[CellOutcome], verdict: Verdict) -> list[str]:
    found = [(o, f) for o in outcomes for f in o.findings if f.verdict is verdict]
    lines = [
        f"- **{_cut(o.cell)}**: {f.gate} of {_cut(f.subject)}: {_cut(f.text)}" for o, f in found
    ]
    return ["", f"### {title}", "", *lines] if lines else []


def _cut(value: str) -> str:
    """A name or a sentence, of a length that leaves room for others."""
    return text(value[:MOST_TEXT])


# What XML 1.0 cannot carry, not even escaped.
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
MAX_TEXT = 10_000
_ELEMENTS = {Verdict.REGRESSION: "failure", Verdict.NOT_JUDGED: "skipped"}


def junit(outcomes: Iterable[CellOutcome]) -> bytes:
    """The XML document, UTF-8, with its declaration.

    A regression is a failure, a cell that could not run an error, and a gate that was not judged
    is skipped with its reason.
    """
    root = ElementTree.Element("testsuites", name="cook sweep")
    for outcome in outcomes:
        suite = ElementTree.SubElement(root, "testsuite", name=_text(outcome.cell))
        run = _case(suite, outcome, "run")
        run.set("time", f"{outcome.seconds:.1f}")
        if outcome.error is not None:
            error = ElementTree.SubElement(run, "error", message=_text(outcome.summary))
            error.text = _text(outcome.error)
        for finding in outcome.findings:
            case = _case(suite, outcome, f"{finding.gate} of {finding.subject}")
            if (element := _ELEMENTS.get(finding.verdict)) is not None:
                ElementTree.SubElement(case, element, message=_text(finding.text))
        suite.set("tests", str(1 + len(outcome.findings)))
        for kind in ("failure", "error", "skipped"):
            attribute = kind if kind == "skipped" else f"{kind}s"
            suite.set(attribute, str(len(suite.findall(f"./testcase/{kind}"))))
        suite.set("time", f"{outcome.seconds:.1f}")
    ElementTree.indent(root)
    document: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return document + b"\n"


def _case(suite: ElementTree.Element, outcome: CellOutcome, name: str) -> ElementTree.Element:
    return ElementTree.SubElement(
        suite, "testcase", classname=_text(outcome.cell), name=_text(name)
    )


def _text(text: str) -> str:
    return _FORBIDDEN.sub("\ufffd", text)[:MAX_TEXT]
