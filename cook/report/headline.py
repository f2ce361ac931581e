"""The first screen of a report: the pick, why, how sure, how fast, and its command."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from cook.record.record import Candidate, Pick, Record
from cook.report.commands import server_command
from cook.report.compared import draft_of, finite, picked
from cook.report.document import Fact, Headline
from cook.report.numbers import tokens_per_s
from cook.report.plain import clipped
from cook.report.speedups import DECODE, WHOLE, speed_of
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
        facts=tuple(_facts(record, winner)),
        command=shlex.join(server_command(winner.command)) if winner.command else None,
        command_absent=None if winner.command else "the pick did not run live",
        warnings=warnings,
    )


def _facts(record: Record, winner: Candidate) -> Iterator[Fact]:
    yield from _speedup(record, winner) if winner.draft is not None else _best_draft(record)
    yield from _speed(record, winner)
    yield from _confidence(record.pick)
    found = winner.live or (winner.predicted.figures if winner.predicted else None)
    if found is not None and (rate := finite(found.acceptance_rate)) is not None:
        length = finite(found.acceptance_length)
        note = f"{found.accepted}/{found.drafted}"
        note += f", {length:.2f} tokens a cycle" if length is not None else ""
        yield Fact("acceptance", f"{rate:.1%}", note)
    draft = draft_of(record, winner)
    if draft is not None and (file := size(draft.file_bytes)) is not None:
        yield Fact("draft file", file, f"{draft.bpw:.2f} bits a weight" if draft.bpw else "")
    yield _candidates(record)


def _speedup(record: Record, winner: Candidate) -> Iterator[Fact]:
    found = speed_of(record, winner)
    if found is None or found.speedup is None:
        return
    note = "over no draft"
    if winner.live is not None:
        note += f", live on {plural(winner.live.requests, 'request')}"
        note += f", {winner.live.tokens:,} tokens"
    else:
        note += ", predicted"
    if found.interval is not None:
        low, high = found.interval.low, found.interval.high
        note += f"; {low:.2f} to {high:.2f} on other such prompts"
        note += f" ({found.interval.confidence:.0%})"
    yield Fact("end-to-end speedup", f"{found.speedup:.2f}x", note)


def _best_draft(record: Record) -> Iterator[Fact]:
    """What the best draft would have made of it, where none won."""
    objective = WHOLE if record.pick.maximize == WHOLE.value else DECODE
    speeds = ((speed_of(record, c, objective), c.name) for c in record.candidates if c.draft)
    ratios = [(s.speedup, name) for s, name in speeds if s is not None and s.speedup is not None]
    if ratios:
        ratio, name = max(ratios)
        what = "end-to-end" if objective is WHOLE else "decode"
        yield Fact("fastest draft", f"{ratio:.2f}x", f"{name}, {what} speedup over no draft")


def _speed(record: Record, winner: Candidate) -> Iterator[Fact]:
    whole, decode = (speed_of(record, winner, one) for one in (WHOLE, DECODE))
    parts = [] if winner.live is not None else ["predicted"]
    if record.pick.maximize == WHOLE.value:
        found, label = whole, "end-to-end speed"
        parts += [f"decode {tokens_per_s(decode.tokens_per_s)}"] if decode is not None else []
    else:
        found, label = decode, "decode speed"
        if found is not None and found.speedup is not None and winner.draft is not None:
            parts.append(f"{found.speedup:.2f}x over no draft")
    if found is not None:
        yield Fact(label, f"{tokens_per_s(found.tokens_per_s)} t/s", ", ".join(parts))


def _confidence(pick: Pick) -> Iterator[Fact]:
    """Decided, or the pair that is open, how it compares and what would decide it."""
    if pick.leader is None:
        return
    sure, margin = f"{pick.confidence:.0%}", f"{100 * pick.margin:g}%"
    rival = clipped(pick.rival, 50) if pick.rival is not None else None
    leader = clipped(pick.leader, 50)
    if pick.decided and pick.leader != pick.candidate:
        note = f"{sure}: within {margin} of {leader}, the best"
    elif pick.decided:
        note = f"{sure}: nothing is more than {margin} better"
        note += f"; the nearest is {rival}" if rival else ""
    elif rival is None or pick.rival_low is None or pick.rival_high is None:
        note = "too little was measured"
    else:
        note = f"{rival}: {pick.rival_low - 1:+.1%} to {pick.rival_high - 1:+.1%} of {leader}"
        note += f" ({sure})"
        if pick.seconds_to_decide is not None:
            minutes = max(1, round(pick.seconds_to_decide / 60))
            note += f"; about {plural(minutes, 'minute')} more would decide"
    yield Fact("confidence", "Decided" if pick.decided else "Undecided", note)


def _candidates(record: Record) -> Fact:
    live = sum(c.live is not None for c in record.candidates)
    predicted = sum(c.predicted is not None for c in record.candidates)
    note = f"{live} live" + (f", {predicted} predicted" if predicted else "")
    return Fact("candidates", str(len(record.candidates)), note)
