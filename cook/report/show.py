"""What a build prints at its end: the table, the pick, and what a reader asks next."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cook.output import Column, Mode, Output
from cook.units import plural

if TYPE_CHECKING:
    from cook.record.measured import NoiseFloor
    from cook.record.record import Candidate, Record

NOTHING_RAN = "nothing had to run: everything was stored"
NAMED = 3


@dataclass(frozen=True)
class PrintedTable:
    """A table: ``columns`` are (title, alignment)."""

    columns: tuple[tuple[str, str], ...]
    rows: tuple[tuple[str | None, ...], ...]
    picked: int | None
    """The row of the pick."""


@dataclass(frozen=True)
class Shown:
    """A record as text. Plain data, so that a receipt can keep it: see ``cook.build.receipt``.

    ``table`` is what fits a terminal, ``wide`` all there is. ``answers`` go to stdout, ``warnings``
    and, with the wide table, ``notes`` to stderr.
    """

    table: PrintedTable
    wide: PrintedTable
    answers: tuple[str, ...]
    warnings: tuple[str, ...]
    notes: tuple[str, ...]


def shown(record: Record) -> Shown:
    """``record`` as it is printed."""
    from cook.report import table

    if not record.candidates:
        rows = tuple(map(table.draft_row, record.drafts))
        quants = PrintedTable(table.draft_columns(), rows, None)
        return Shown(quants, quants, (), record.warnings, ())
    few, many = table.in_short(record), table.to_look_at(record)
    return Shown(
        table=PrintedTable(
            table.short_columns(record),
            tuple(table.short_row(record, c) for c in few),
            _place(record, few),
        ),
        wide=PrintedTable(
            table.columns(record), tuple(table.row(record, c) for c in many), _place(record, many)
        ),
        answers=tuple(_answers(record, few)),
        warnings=record.warnings,
        notes=tuple(_notes(record)),
    )


def _place(record: Record, candidates: list[Candidate]) -> int | None:
    names = [c.name for c in candidates]
    return names.index(record.pick.candidate) if record.pick.candidate in names else None


def show(what: Shown, output: Output, *, wide: bool = False) -> None:
    """Print it; in json mode nothing, for the record itself is the document.

    Quiet mode prints the table's rows alone, before each ``*`` or nothing: the pick or another.
    """
    if output.mode is Mode.JSON:
        return
    for warning in what.warnings:
        output.warn(warning)
    for note in what.notes if wide else ():
        output.say(note)
    sheet = what.wide if wide else what.table
    columns = [Column(t, "right" if a == "right" else "left") for t, a in sheet.columns]
    if output.mode is Mode.QUIET:
        marked = [("*" if i == sheet.picked else "", *row) for i, row in enumerate(sheet.rows)]
        output.table(marked, ["pick", *columns] if what.answers else columns)
        return
    marks = ("* ", "  ") if sheet.picked is not None else ("", "")
    output.table(
        [
            (f"{marks[i != sheet.picked]}{name}", *rest)
            for i, (name, *rest) in enumerate(sheet.rows)
        ],
        columns,
    )
    if what.answers:
        output.data("")
    for answer in what.answers:
        output.data(answer)


def _answers(record: Record, few: list[Candidate]) -> Iterator[str]:
    """What a reader asks, a line each: the pick first, how to run it last."""
    from cook.report.answers import use
    from cook.report.speedups import speed_notes

    yield f"pick: {record.pick.sentence}"
    if notes := [*speed_notes(record)]:
        yield f"figures: {'. '.join(notes)}"
    winner = record.candidate(record.pick.candidate) if record.pick.candidate else None
    yield from (f"{fact.label}: {fact.value}" for fact in use(record))
    yield from _chains(record)
    if (left := _left_out(record, few)) is not None:
        yield f"left out: {left}"
    if winner is not None:
        command = f"cook serve {shlex.quote(record.recipe)}"
        yield f"run it: {command if winner.command else 'the pick has to run live first'}"


def _chains(record: Record) -> Iterator[str]:
    """What pays under the sampling chains other than the deployed one, a line each."""
    from cook.report.sections.other_chains import best, speedup

    several = len(record.engines) > 1
    for chain in record.chains:
        at = f"at {chain.sampling.chain}{f' on {chain.engine}' if several else ''}"
        one = best(chain)
        gain = speedup(one, chain) if one is not None else None
        if one is None or gain is None:
            yield f"{at}: not forecast: {chain.reason or 'no draft was replayed'}"
            continue
        rate = one.figures.acceptance_rate
        other = one.rejection
        yield (
            f"{at}: {'' if gain > 1 else 'not worth it: '}{one.name} {gain:.2f}x no draft end to "
            "end, predicted"
            + (f"; {rate:.1%} accepted" if rate is not None else "")
            + (f", {other.accepted / other.drafted:.1%} by rejection sampling" if other else "")
        )


def _left_out(record: Record, few: list[Candidate]) -> str | None:
    """What the table leaves out, and what did not run, with the reasons."""
    parts = []
    if more := len(record.candidates) - len(few):
        parts.append(f"{plural(more, 'more setting')} of these drafts (`cook report`)")
    over = record.pick.excluded
    if over:
        named = "; ".join(f"{e.candidate}: {e.reason}" for e in over[:NAMED])
        rest = f" and {len(over) - NAMED} more" if len(over) > NAMED else ""
        parts.append(f"{len(over)} that cannot win ({named}{rest})")
    if record.left_out:
        first = record.left_out[0]
        named = f"{first.candidate}: {first.reason.removeprefix('left out: ')}"
        rest = f" and {len(record.left_out) - 1} more" if len(record.left_out) > 1 else ""
        runs = plural(len(record.left_out), "live run")
        parts.append(f"{runs} ({named}{rest})")
    return "; ".join(parts) or None


def _notes(record: Record) -> list[str]:
    notes = _comparisons(record)
    notes += [note for c in record.candidates if (note := _forecast(c))]
    notes += [note for c in record.candidates if (note := counted(c))]
    notes += [note for c in record.candidates if (note := _other_rule(c))]
    notes += [noise_text(floor) for floor in record.noise]
    return notes


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
    """How a forecast compares with the live run on the same requests, where there are both."""
    from cook.report.numbers import tokens_per_s
    from cook.report.speedups import forecast_check

    found = forecast_check(candidate)
    if found is None:
        return None
    return (
        f"{candidate.name}: predicted {tokens_per_s(found.predicted)} t/s end to end, "
        f"live {tokens_per_s(found.live)} ({found.off_by:+.1%}) on the same requests"
    )


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


def noise_text(found: NoiseFloor) -> str:
    """What one draft's acceptance differs by without any cause."""
    return (
        f"noise floor on {found.engine}: one draft's acceptance differs by up to "
        f"{found.acceptance:.2%} between two batch shapes ({found.confidence:.0%})"
    )
