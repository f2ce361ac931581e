"""The first screen of a report: the pick, why, how sure, how fast, and its command."""

from __future__ import annotations

import shlex

from cook.record.record import Candidate, Record, doubted
from cook.report.commands import server_command
from cook.report.compared import draft_of, finite, named, picked
from cook.report.document import Fact, Headline
from cook.report.plain import clipped
from cook.units import plural, size


def headline(record: Record) -> Headline:
    """From the record's pick alone."""
    winner = picked(record)
    warnings = len(record.warnings) + sum(step.error is not None for step in record.steps)
    if winner is None:
        title = "Nothing qualifies" if record.candidates else f"{len(record.drafts)} quants"
        why = record.pick.sentence if record.candidates else "This recipe scores no candidates."
        facts = (_candidates(record),) if record.candidates else ()
        return Headline(title, why, facts, None, "there is no pick to run", warnings)
    return Headline(
        title=winner.name if winner.draft else winner.name[:1].upper() + winner.name[1:],
        why=record.pick.sentence,
        facts=tuple(f for f in _facts(record, winner) if f is not None),
        command=shlex.join(server_command(winner.command)) if winner.command else None,
        command_absent=None if winner.command else "the pick did not run live",
        warnings=warnings,
    )


def _facts(record: Record, winner: Candidate) -> list[Fact | None]:
    return [
        _speedup(record, winner),
        _decode(record, winner),
        _confidence(record, winner),
        _acceptance(winner),
        _size(record, winner),
        _candidates(record),
    ]


def _speedup(record: Record, winner: Candidate) -> Fact | None:
    ratio = finite(winner.speedup)
    if winner.draft is None:
        return _best_draft(record)
    if ratio is None:
        return None
    interval = winner.speedup_interval
    note = "over no draft"
    if winner.live is not None:
        note += f", live on {plural(winner.live.requests, 'prompt')}, {winner.live.tokens:,} tokens"
    if interval is not None:
        note += f", {interval.confidence:.0%}: {interval.low:.2f} to {interval.high:.2f}"
    return Fact("end-to-end speedup", f"{ratio:.2f}x", note)


def _best_draft(record: Record) -> Fact | None:
    """What the best draft would have made of it, where none won."""
    end_to_end = record.pick.maximize == "end_to_end_speed"
    ratios = [
        (ratio, c.name)
        for c in record.candidates
        if c.draft and (ratio := finite(c.speedup if end_to_end else c.decode_speedup)) is not None
    ]
    if not ratios:
        return None
    ratio, name = max(ratios)
    what = "end-to-end" if end_to_end else "decode"
    return Fact("fastest draft", f"{ratio:.2f}x", f"{name}, {what} speedup over no draft")


def _decode(record: Record, winner: Candidate) -> Fact | None:
    live = winner.live
    found = live or (winner.predicted.figures if winner.predicted else None)
    decode = finite(found.decode_speed) if found else None
    whole = finite(found.end_to_end_speed) if found else None
    how = "" if live else "predicted"
    if record.pick.maximize == "end_to_end_speed":
        note = f"decode {decode:.2f}" if decode is not None else ""
        speed, label = whole, "end-to-end speed"
    else:
        ratio = finite(winner.decode_speedup)
        note = f"{ratio:.2f}x over no draft" if ratio is not None and winner.draft else ""
        speed, label = decode, "decode speed"
    if speed is None:
        return None
    return Fact(label, f"{speed:.2f} t/s", ", ".join(part for part in (how, note) if part))


def _confidence(record: Record, winner: Candidate) -> Fact | None:
    """The chance that the pick is within the margin of the best; "undecided" where that is less
    than was asked for. No chance is called sure that disturbed runs are the reason for."""
    found = record.pick.certainty
    if found is None:
        return None
    within = finite(found.within)
    if within is None:
        few = "too few prompts or rounds to say"
        return Fact("confidence", "undecided", few)
    sure = ">99%" if within > 0.99 else f"{within:.0%}"
    margin = f"{100 * found.margin:g}%"
    note = f"chance of being within {margin} of the best"
    if found.leader != winner.name:
        note += f", which is expected to be {clipped(found.leader, 60)}"
    tied = named((n for n in record.pick.ties if n != winner.name), 2)
    if not found.decided:
        note = f"{sure} {note}"
        note += f"; {tied} may be better" if tied else ""
        return Fact("confidence", "undecided", note)
    if (cause := doubted(found.objection)) is not None:
        return Fact("confidence", "not confirmed", f"by forecast, {sure} {note}; live {cause}")
    note += "" if found.objection is None else "; live runs do not confirm it"
    return Fact("confidence", sure, note)


def _acceptance(winner: Candidate) -> Fact | None:
    found = winner.live or (winner.predicted.figures if winner.predicted else None)
    rate = finite(found.acceptance_rate) if found else None
    if found is None or rate is None:
        return None
    length = finite(found.acceptance_length)
    note = f"{found.accepted}/{found.drafted}"
    note += f", {length:.2f} tokens a cycle" if length is not None else ""
    return Fact("acceptance", f"{rate:.1%}", note)


def _size(record: Record, winner: Candidate) -> Fact | None:
    draft = draft_of(record, winner)
    told = size(draft.file_bytes) if draft else None
    if draft is None or told is None:
        return None
    return Fact("draft file", told, f"{draft.bpw:.2f} bits a weight" if draft.bpw else "")


def _candidates(record: Record) -> Fact:
    live = sum(c.live is not None for c in record.candidates)
    predicted = sum(c.predicted is not None for c in record.candidates)
    note = f"{live} live" + (f", {predicted} predicted" if predicted else "")
    return Fact("candidates", str(len(record.candidates)), note)
