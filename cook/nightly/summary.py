"""A night in Markdown, for a CI job's summary: the verdicts first, and never over the limit."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cook.nightly.gates import Finding, Verdict
from cook.report.markdown import fenced, text
from cook.units import plural

if TYPE_CHECKING:
    from cook.nightly.outcome import CellOutcome

MAX_BYTES = 1 << 20
"""What GitHub shows of one step's summary (1 MiB); a longer one is refused as a whole."""
ENVIRONMENT = "GITHUB_STEP_SUMMARY"
_CUT = "\n\n_The rest did not fit; it is in the artifacts._\n"
MARK = {"ok": "✅", "regression": "❌", "failed": "⚠️", "fresh": "💤"}


def markdown(title: str, outcomes: Sequence[CellOutcome], limit_bytes: int = MAX_BYTES) -> str:
    """The summary, at most ``limit_bytes`` of UTF-8.

    Order is importance: the table of cells, what got worse, what failed, what got better, then
    each cell's figures; it is cut between two parts, and says so.
    """
    outcomes = tuple(outcomes)
    parts = [f"## {_short(title)}\n", _verdict(outcomes), *_table(outcomes)]
    parts += _listed("Got worse", outcomes, Verdict.REGRESSION)
    parts += [
        f"\n### {_short(o.cell)} failed\n\n{fenced((o.error or o.summary)[:20_000], 'text')}\n"
        for o in outcomes
        if o.error is not None
    ]
    parts += _listed("Got better", outcomes, Verdict.IMPROVEMENT)
    parts += ["".join(_details(outcome)) for outcome in outcomes]
    return _fitted(parts, limit_bytes)


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
        stream.write(_fitted(text.splitlines(keepends=True), max(room, 0)))
    return path


def _fitted(parts: Iterable[str], limit_bytes: int) -> str:
    kept: list[str] = []
    parts = list(parts)
    total = sum(len(part.encode()) for part in parts)
    if total <= limit_bytes:
        return "".join(parts)
    room = limit_bytes - len(_CUT.encode())
    for part in parts:
        size = len(part.encode())
        if size > room:
            break
        kept.append(part)
        room -= size
    return "".join([*kept, _CUT]) if room >= 0 else ""


def _verdict(outcomes: Sequence[CellOutcome]) -> str:
    worse = sum(o.status == "regression" for o in outcomes)
    failed = sum(o.status == "failed" for o in outcomes)
    told = [f"{plural(worse, 'cell')} got worse"] if worse else []
    told += [f"{plural(failed, 'cell')} failed"] if failed else []
    return f"\n{plural(len(outcomes), 'cell')}: {', '.join(told) or 'nothing got worse'}.\n"


def _table(outcomes: Sequence[CellOutcome]) -> Iterable[str]:
    yield "\n| | recipe | engine | tonight |\n|---|---|---|---|\n"
    for o in outcomes:
        mark = MARK.get(o.status, "")
        yield f"| {mark} | {_short(o.recipe)} | {_short(o.engine)} | {_short(o.summary)} |\n"


def _listed(title: str, outcomes: Sequence[CellOutcome], verdict: Verdict) -> Iterable[str]:
    found = [(o, f) for o in outcomes for f in o.findings if f.verdict is verdict]
    if found:
        yield f"\n### {title}\n\n"
    for outcome, finding in found:
        what = f"{finding.gate} of {_short(finding.subject)}"
        yield f"- **{_short(outcome.cell)}**: {what}: {_told(finding)}\n"


def _details(outcome: CellOutcome) -> Iterable[str]:
    yield f"\n<details><summary>{_short(outcome.cell)}</summary>\n\n"
    against = outcome.against or "nothing: there is no earlier good night"
    yield f"Compared with {_short(against)}.\n\n"
    for note in outcome.notes:
        yield f"- {_short(note)}\n"
    if outcome.findings:
        yield "\n| gate | of | verdict | figures |\n|---|---|---|---|\n"
    for f in outcome.findings:
        yield f"| {f.gate} | {_short(f.subject)} | {f.verdict} | {_short(f.text)} |\n"
    yield "\n</details>\n"


def _told(finding: Finding) -> str:
    told = _short(finding.text)
    if finding.p_value is not None and finding.level is not None:
        told += f" (p = {finding.p_value:.1g}, alarm from {finding.level:.1g})"
    return told


def _short(value: str) -> str:
    """Plain words of a name or a finding, which are not ours, of bounded length."""
    return text(value[:2_000])
