"""What a build prints at its end: the table, what was left out, and the pick."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from cook.output import Column, Mode, Output
from cook.report.record import Record, to_json
from cook.report.table import COLUMNS, rows, size

if TYPE_CHECKING:
    from cook.kitchen import Built


def show(built: Built, output: Output) -> None:
    """Print ``built``: a table and a sentence, or the whole record in json mode."""
    record = built.record
    if output.mode is Mode.JSON:
        output.emit({**to_json(record), "record": str(built.path), "ran": list(built.ran)})
        return
    if record.candidates:
        columns = [Column(c, "left" if c == "candidate" else "right") for c in COLUMNS]
        output.table(rows(record), columns)
    else:
        _show_drafts(record, output)
    for warning in record.warnings:
        output.warn(warning)
    if record.candidates:
        _show_pick(record, output)
    for failure in built.failures:
        output.warn(failure)
    if not built.ran:
        output.say("nothing had to run: everything was stored")
    output.say(f"record: {built.path}")


def _show_pick(record: Record, output: Output) -> None:
    output.data("")
    output.data(f"pick: {record.pick.sentence}")
    baseline = next((c for c in record.candidates if c.draft is None), None)
    for candidate in record.candidates:
        check = candidate.output
        if check is not None and check.identical < check.replies:
            output.say(
                f"{candidate.name}: {check.identical} of {check.replies} replies are token for "
                f"token those without a draft; {check.near_ties} differ at a near tie, "
                f"{check.material} at a larger gap, {check.unknown} unknown"
            )
    for excluded in record.pick.excluded:
        if baseline is None or excluded.candidate != baseline.name:
            output.say(f"cannot win: {excluded.candidate}: {excluded.reason}")
    winner = record.candidate(record.pick.candidate) if record.pick.candidate else None
    if winner is not None and winner.command:
        output.say("run it: " + shlex.join(_deployable(winner.command)))


def _deployable(command: tuple[str, ...]) -> list[str]:
    """The measured server command without cook's own port and key file."""
    kept: list[str] = []
    skip = False
    for word in command:
        if skip:
            skip = False
            continue
        if word in ("--port", "--api-key-file", "--host"):
            skip = True
            continue
        kept.append(word)
    return kept


def _show_drafts(record: Record, output: Output) -> None:
    output.table(
        [
            (
                draft.quant,
                size(draft.file_bytes),
                f"{draft.bpw:.2f}" if draft.bpw is not None else None,
                f"{draft.quality.perplexity:.4f} ± {draft.quality.perplexity_error:.4f}"
                if draft.quality
                else draft.quality_reason,
                f"{draft.quality.mean_kld:.4f}"
                if draft.quality and draft.quality.mean_kld is not None
                else None,
            )
            for draft in record.drafts
        ],
        ["quant", Column("size", "right"), Column("bpw", "right"), "PPL", Column("KLD", "right")],
    )
