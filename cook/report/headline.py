"""The first screen of a report: the pick, why, how sure, how fast, and its command."""

from __future__ import annotations

import shlex

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
        facts=tuple(f for f in _facts(record, winner) if f is not None),
        command=shlex.join(server_command(winner.command)) if winner.command else None,
        command_absent=None if winner.command else "the pick did not run live",
        warnings=warnings,
    )


def _facts(record: Record, winner: Candidate) -> list[Fact | None]:
    return [
        _speedup(record, winner),
        _speed(record, winner),
        _confidence(record.pick),
        _acceptance(winner),
        _size(record, winner),
        _candidates(record),
    ]


def _speedup(record: Record, winner: Candidate) -> Fact | None:
    if winner.draft is None:
        return _best_draft(record)
    found = speed_of(record, winner)
    if found is None or found.speedup is None:
        return None
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
    return Fact("end-to-end speedup", f"{found.speedup:.2f}x", note)


def _best_draft(record: Record) -> Fact | None:
    """What the best draft would have made of it, where none won."""
    objective = WHOLE if record.pick.maximize == WHOLE.value else DECODE
    speeds = ((speed_of(record, c, objective), c.name) for c in record.candidates if c.draft)
    ratios = [(s.speedup, name) for s, name in speeds if s is not None and s.speedup is not None]
    if not ratios:
        return None
    ratio, name = max(ratios)
    what = "end-to-end" if objective is WHOLE else "decode"
    return Fact("fastest draft", f"{ratio:.2f}x", f"{name}, {what} speedup over no draft")


def _speed(record: Record, winner: Candidate) -> Fact | None:
    whole, decode = (speed_of(record, winner, one) for one in (WHOLE, DECODE))
    parts = [] if winner.live is not None else ["predicted"]
    if record.pick.maximize == WHOLE.value:
        found, label = whole, "end-to-end speed"
        parts += [f"decode {tokens_per_s(decode.tokens_per_s)}"] if decode is not None else []
    else:
        found, label = decode, "decode speed"
        if found is not None and found.speedup is not None and winner.draft is not None:
            parts.append(f"{found.speedup:.2f}x over no draft")
    if found is None:
        return None
    return Fact(label, f"{tokens_per_s(found.tokens_per_s)} t/s", ", ".join(parts))


def _confidence(pick: Pick) -> Fact | None:
    """Decided, or the pair that is open, how it compares and what would decide it."""
    if pick.leader is None:
        return None
    sure = f"{pick.confidence:.0%}"
    rival = clipped(pick.rival, 50) if pick.rival is not None else None
    leader = clipped(pick.leader, 50)
    if not pick.decided:
        if rival is None or pick.rival_low is None or pick.rival_high is None:
            return Fact("confidence", "Undecided", "too little was measured")
        note = f"{rival}: {pick.rival_low - 1:+.1%} to {pick.rival_high - 1:+.1%} of {leader}"
        note += f" ({sure})"
        if pick.seconds_to_decide is not None:
            minutes = max(1, round(pick.seconds_to_decide / 60))
            note += f"; about {plural(minutes, 'minute')} more would decide"
        return Fact("confidence", "Undecided", note)
    margin = f"{100 * pick.margin:g}%"
    if pick.leader != pick.candidate:
        return Fact("confidence", "Decided", f"{sure}: within {margin} of {leader}, the best")
    note = f"{sure}: nothing is more than {margin} better"
    return Fact("confidence", "Decided", f"{note}; the nearest is {rival}" if rival else note)


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
    file = size(draft.file_bytes) if draft else None
    if draft is None or file is None:
        return None
    return Fact("draft file", file, f"{draft.bpw:.2f} bits a weight" if draft.bpw else "")


def _candidates(record: Record) -> Fact:
    live = sum(c.live is not None for c in record.candidates)
    predicted = sum(c.predicted is not None for c in record.candidates)
    note = f"{live} live" + (f", {predicted} predicted" if predicted else "")
    return Fact("candidates", str(len(record.candidates)), note)
