"""What a build prints at its end: the table, the pick, and what must be known beside them."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cook.output import Column, Mode, Output
from cook.report.commands import server_command

if TYPE_CHECKING:
    from cook.record.measured import NoiseFloor
    from cook.record.record import Candidate, Record

NOTHING_RAN = "nothing had to run: everything was stored"


@dataclass(frozen=True)
class Shown:
    """A record as text. Plain data, so that a receipt can keep it: see ``cook.build.receipt``.

    ``columns`` are (title, alignment); ``answers`` go to stdout, ``warnings`` and ``notes`` to
    stderr.
    """

    columns: tuple[tuple[str, str], ...]
    rows: tuple[tuple[str | None, ...], ...]
    answers: tuple[str, ...]
    warnings: tuple[str, ...]
    notes: tuple[str, ...]


def shown(record: Record) -> Shown:
    """``record`` as it is printed."""
    from cook.report.table import columns, draft_columns, draft_row, row, to_look_at

    scored = bool(record.candidates)
    marks = {True: "* ", False: "  "}
    rows = [
        (f"{marks[candidate.name == record.pick.candidate]}{name}", *cells)
        for candidate in to_look_at(record)
        for name, *cells in [row(record, candidate)]
    ]
    return Shown(
        columns=columns(record) if scored else draft_columns(),
        rows=tuple(rows if scored else map(draft_row, record.drafts)),
        answers=(f"pick: {record.pick.sentence}",) if scored else (),
        warnings=record.warnings,
        notes=tuple(_notes(record)) if scored else (),
    )


def show(what: Shown, output: Output) -> None:
    """Print it; in json mode nothing, for the record itself is the document."""
    if output.mode is Mode.JSON:
        return
    columns = [Column(t, "right" if a == "right" else "left") for t, a in what.columns]
    output.table(what.rows, columns)
    for warning in what.warnings:
        output.warn(warning)
    for answer in what.answers:
        output.data("")
        output.data(answer)
    for note in what.notes:
        output.say(note)


def _notes(record: Record) -> list[str]:
    notes = [note] if (note := _folded(record)) else []
    notes += _comparisons(record)
    notes += [note for c in record.candidates if (note := _forecast(c))]
    notes += [note for c in record.candidates if (note := counted(c))]
    notes += [note for c in record.candidates if (note := _other_rule(c))]
    notes += [noise_told(floor) for floor in record.noise]
    live = {c.name for c in record.candidates if c.live is not None}
    notes += [
        f"cannot win: {e.candidate}: {e.reason}"
        for e in record.pick.excluded
        if e.candidate in live
    ]
    winner = record.candidate(record.pick.candidate) if record.pick.candidate else None
    if winner is not None and winner.command:
        notes.append("run it: " + shlex.join(server_command(winner.command)))
    return notes


def _folded(record: Record) -> str | None:
    """How many candidates the printed table leaves out."""
    from cook.report.table import to_look_at

    more = len(record.candidates) - len(to_look_at(record))
    if not more:
        return None
    return f"{more} more settings of these drafts are in the record: `cook report` shows them all"


def _comparisons(record: Record) -> list[str]:
    """Candidates whose replies differ from the baseline's, those with the same figures together."""
    alike: dict[str, list[str]] = {}
    for candidate in record.candidates:
        check = candidate.output
        if check is None or check.identical == check.replies:
            continue
        text = (
            f"{check.identical} of {check.replies} replies are token for token those without a "
            f"draft; of the others {check.near_ties} part at a near tie "
            f"(gap up to {check.near_tie_gap:.3f}"
            f"{', measured without a draft' if check.gap_is_measured else ''}), "
            f"{check.material} at a larger gap, {check.unknown} unknown"
        )
        if check.without_draft_tried:
            text += (
                f"; {check.without_draft} of {check.without_draft_tried} part in the same way "
                "without any draft, at that batch width"
            )
        if check.not_controlled:
            text += f"; not controlled: {check.not_controlled}"
        alike.setdefault(text, []).append(candidate.name)
    return [f"{', '.join(names)}: {text}" for text, names in alike.items()]


def _forecast(candidate: Candidate) -> str | None:
    """How a prediction compares with the live run, where there are both."""
    found = candidate.predicted
    if found is None or candidate.live is None or found.off_by is None:
        return None
    text = (
        f"{candidate.name}: predicted {found.figures.end_to_end_speed:.2f} t/s end to end, "
        f"live {candidate.live.end_to_end_speed:.2f} ({found.off_by:+.1%})"
    )
    interval = found.off_by_interval
    if interval is not None and not interval.low <= 1 <= interval.high and abs(found.off_by) > 0.05:
        text += "; they disagree beyond the interval, trust the live figure"
        if found.off_by_tokens is not None:
            text += f": tokens a step differ by {found.off_by_tokens:+.1%}, the rest is time a step"
    return text


def _other_rule(candidate: Candidate) -> str | None:
    """What rejection sampling would make of a candidate that ran live."""
    found = candidate.predicted.rejection if candidate.predicted else None
    if found is None or candidate.live is None or not found.drafted or candidate.predicted is None:
        return None
    here = candidate.predicted.figures
    rate = f"{here.acceptance_rate:.1%}" if here.acceptance_rate is not None else "nothing"
    text = (
        f"{candidate.name}: by the server's rule {rate} of drafted tokens are accepted as "
        f"replayed, by rejection sampling {found.accepted / found.drafted:.1%} would be"
    )
    if found.decode_speed is not None:
        text += f": {found.decode_speed:.2f} t/s decode in place of {here.decode_speed:.2f}"
    return text


def counted(candidate: Candidate) -> str | None:
    """Whether a candidate's replayed counts are the server's."""
    found = candidate.counts
    if found is None:
        return None
    text = f"{candidate.name}: {found.exact} of {found.requests} live requests recounted exactly"
    if found.live_drafted and found.replay_drafted:
        live = found.live_accepted / found.live_drafted
        replay = found.replay_accepted / found.replay_drafted
        text += f"; one-pass replay counts {replay:.1%} accepted, the server {live:.1%}"
    if found.passed_over:
        text += f"; {found.passed_over} replies passed over, known only as text"
    return text


def noise_told(found: NoiseFloor) -> str:
    parts = []
    if found.speed is not None:
        parts.append(
            f"two timings of one file differ by up to {found.speed:.1%} ({found.confidence:.0%})"
        )
    if found.acceptance is not None:
        parts.append(
            f"one draft in two batch shapes by {abs(100 * found.acceptance):.2f} points of "
            "acceptance"
        )
    return f"noise floor on {found.engine}: {', '.join(parts) or 'not measured'}"
