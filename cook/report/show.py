"""What a build prints at its end: the table, the pick, and what a reader asks next."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cook.output import Column, Mode, Output
from cook.units import plural, size

if TYPE_CHECKING:
    from cook.record.measured import Figures, NoiseFloor
    from cook.record.record import Candidate, Record

NOTHING_RAN = "nothing had to run: everything was stored"
LENGTHS = 6
"""Other draft lengths that are told of at most."""
NAMED = 3
DRIFTED = 1.03
"""Ratio of a machine's own speed between live rounds from which it is told."""


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
        warnings=(*record.warnings, *_drift(record)),
        notes=tuple(_notes(record)),
    )


def _drift(record: Record) -> Iterator[str]:
    """Where speeds and speedups of one row do not fit: runs of different hours."""
    live = [
        (c, c.live.end_to_end_speed, c.speedup)
        for c in record.candidates
        if c.live is not None and c.live.end_to_end_speed and c.speedup
    ]
    # What each says that no draft's speed was.
    bare = [speed / speedup for _, speed, speedup in live]
    if bare and max(bare) > DRIFTED * min(bare):
        yield (
            f"the machine's own speed changed by {max(bare) / min(bare) - 1:.0%} between live "
            "rounds: speedups compare runs of the same round, t/s do not"
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
    yield f"pick: {record.pick.sentence}"
    winner = record.candidate(record.pick.candidate) if record.pick.candidate else None
    if winner is not None:
        if (output := _output(record, winner)) is not None:
            yield f"output: {output}"
        if (memory := _memory(record, winner)) is not None:
            yield f"memory: {memory}"
        if (lengths := _lengths(record, winner)) is not None:
            yield lengths
    yield from _chains(record)
    if (left := _left_out(record, few)) is not None:
        yield f"left out: {left}"
    if winner is not None:
        command = f"cook serve {shlex.quote(record.recipe)}"
        yield f"run it: {command if winner.command else 'the pick has to run live first'}"


def _output(record: Record, winner: Candidate) -> str | None:
    """Whether drafts change the output."""
    from cook.report.compared import partings

    check = winner.output
    name = winner.name
    if check is None:  # it did not run live: what is known of those that did
        known = [c for c in record.candidates if c.output is not None]
        if not known:
            return None
        check, name = known[0].output, known[0].name
    assert check is not None, "looked up"
    text = f"{check.identical} of {check.replies} replies of {name} are token for token those"
    text += " without a draft"
    told = ", ".join(partings(check))
    return f"{text}; {told}" if told else text


def _memory(record: Record, winner: Candidate) -> str | None:
    """What the pick's draft takes beside the target."""
    from cook.report.compared import draft_of

    draft = draft_of(record, winner)
    parts = []
    if draft is not None and draft.memory_bytes is not None:
        at = f" at a context of {winner.serving.context}" if winner.serving else ""
        parts.append(f"the draft takes {size(draft.memory_bytes)}{at}")
    parts.append(f"the target's file is {size(record.target_bytes)}")
    if winner.server_peak_rss_bytes:
        parts.append(f"the server's peak was {size(winner.server_peak_rss_bytes)}")
    return ", ".join(parts)


def _lengths(record: Record, winner: Candidate) -> str | None:
    """What other draft lengths would do, all by one kind of figure."""
    alike = [
        c
        for c in record.candidates
        if c.settings is not None
        and winner.settings is not None
        and (c.engine, c.draft, c.cache_type) == (winner.engine, winner.draft, winner.cache_type)
        and (c.settings.n_min, c.settings.p_min) == (winner.settings.n_min, winner.settings.p_min)
    ]
    live = [(c, c.live) for c in alike if c.live is not None]
    guessed = [(c, c.predicted.figures) for c in alike if c.predicted is not None]
    kind, every = ("live", live) if len(live) >= len(guessed) else ("predicted", guessed)
    if len(every) < 2 or winner.settings is None:
        return None
    own = winner.settings.n_max

    def told(candidate: Candidate, figures: Figures) -> str:
        assert candidate.settings is not None, "of drafting candidates"
        speed = figures.end_to_end_speed
        return f"{candidate.settings.n_max} ({speed:.1f})" if speed is not None else ""

    def distance(pair: tuple[Candidate, Figures]) -> int:
        assert pair[0].settings is not None, "of drafting candidates"
        return abs(pair[0].settings.n_max - own)

    near = {c.name for c, _ in sorted(every, key=distance)[: LENGTHS + 1]}
    every.sort(key=lambda pair: pair[0].settings.n_max if pair[0].settings else 0)
    ordered = [told(c, f) for c, f in every if c.name in near]
    return (
        f"draft length of {winner.draft}, {kind} end-to-end t/s: {', '.join(filter(None, ordered))}"
    )


def _chains(record: Record) -> Iterator[str]:
    """What pays under the sampling chains beside the deployed one, a line each."""
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
    live = {c.name for c in record.candidates if c.live is not None}
    over = [e for e in record.pick.excluded if e.candidate in live or not record.pick.choice]
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
    chosen = record.pick.choice
    if chosen is not None and chosen.candidate not in (None, record.pick.candidate):
        notes.append(f"by forecast alone {chosen.candidate} would have been picked")
    notes += [note for c in record.candidates if (note := _forecast(c))]
    notes += [note for c in record.candidates if (note := counted(c))]
    notes += [note for c in record.candidates if (note := _other_rule(c))]
    notes += [noise_told(floor) for floor in record.noise]
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
    """How a prediction compares with the live run, where there are both."""
    from cook.report.speedups import TRIFLE, contradicted

    found = candidate.predicted
    if found is None or candidate.live is None or found.off_by is None:
        return None
    said, lived = found.figures.end_to_end_speed, candidate.live.end_to_end_speed
    if said is None or lived is None:
        return None
    text = (
        f"{candidate.name}: predicted {said:.2f} t/s end to end, "
        f"live {lived:.2f} ({found.off_by:+.1%})"
    )
    if contradicted(candidate):
        text += "; they disagree beyond the interval, trust the live figure"
        if found.off_by_tokens is not None:
            text += f": tokens a step differ by {found.off_by_tokens:+.1%}, the rest is time a step"
            if abs(found.off_by_tokens) > TRIFLE:
                text += _other_text(candidate)
    return text


def _other_text(candidate: Candidate) -> str:
    """What may be behind an acceptance that is not the trace's."""
    check = candidate.output
    if check is None or check.identical == check.replies:
        return ""
    return (
        f"; {check.replies - check.identical} of {check.replies} replies are other texts than "
        "without a draft, which a trace has unless `score.batch_width` is 2"
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


def noise_told(found: NoiseFloor) -> str:
    parts = []
    if found.speed is not None:
        parts.append(
            f"two timings of one file differ by up to {found.speed:.1%} ({found.confidence:.0%})"
        )
    if found.acceptance is not None:
        parts.append(
            f"one draft in two batch shapes by up to {100 * found.acceptance:.2f} points of "
            "acceptance"
        )
    return f"noise floor on {found.engine}: {', '.join(parts) or 'not measured'}"
