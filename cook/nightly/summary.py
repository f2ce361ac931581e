"""A night in Markdown, for a CI job's summary: the verdicts first, and never over the limit."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from cook.nightly.cell_outcome import CellOutcome, CellStatus
from cook.nightly.gates import Verdict
from cook.report.markdown import fenced, head, row, text
from cook.units import plural

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
