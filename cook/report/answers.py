"""What a reader asks next to the pick, a line each: over what, on which machine, with which output
and memory, which other draft length would do, what lost, what was left out."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from cook.record.record import Candidate, Record
from cook.report.compared import draft_of, named, picked
from cook.report.document import Fact
from cook.report.plain import clipped
from cook.report.sections.lengths import lengths_that_would_do
from cook.report.sections.other_chains import chain_answers
from cook.report.speedups import drafts_at_their_best, speed_notes, speedups_by_category
from cook.units import plural, size

NAMED = 3


def evidence(record: Record) -> tuple[Fact, ...]:
    """What the pick's figures rest on: prompts and tokens, what the target's file says of itself,
    and the state of the machine."""
    if not record.candidates:
        return ()
    said = record.target_description
    target = (Fact("target", clipped(said, 300)),) if said else ()
    return (_over_what(record), *target, _machine(record))


def answers(record: Record) -> tuple[Fact, ...]:
    """Those that the record has an answer to; none where nothing was scored."""
    if not record.candidates:
        return ()
    left_out = Fact("left out", _left_out(record) or "nothing: every setting ran live")
    return (*_use(record), *_what_lost(record), left_out)


def printed_answers(record: Record, rows: int) -> Iterator[str]:
    """What a build prints below its table of ``rows``: the pick first, how to run it last."""
    yield f"pick: {record.pick.sentence}"
    if notes := [*speed_notes(record)]:
        yield f"figures: {'. '.join(notes)}"
    yield from (f"{fact.label}: {fact.value}" for fact in _use(record))
    yield from chain_answers(record)
    more = len(record.candidates) - rows
    settings = f"{plural(more, 'more setting')} of these drafts (`cook report`)" if more else ""
    if left := "; ".join(part for part in (settings, _left_out(record)) if part):
        yield f"left out: {left}"
    winner = picked(record)
    if winner is not None:
        command = f"cook serve {shlex.quote(record.recipe)}"
        yield f"run it: {command if winner.command else 'the pick has to run live first'}"


def _over_what(record: Record) -> Fact:
    """Prompts and tokens of the pick's figures, how they were sampled."""
    winner = picked(record)
    live = winner.live if winner else None
    figures = live or (winner.predicted.figures if winner and winner.predicted else None)
    parts = [
        f"replies of at most {record.max_tokens} tokens",
        f"temperature {record.temperature:g}",
    ]
    if winner is not None and figures is not None:
        over = f"{plural(figures.requests, 'request')} and {figures.tokens:,} tokens, "
        over += "live" if live else "predicted"
        if live and winner.categories:
            over += f" ({named(winner.categories, 6)})"
        parts.insert(0, over)
    return Fact("measured over", "; ".join(parts))


def _machine(record: Record) -> Fact:
    machine = record.machine
    where = ", ".join(machine.accelerators) or plural(machine.cores, "core")
    if record.disturbed:
        state = f"disturbed: other programs ran during {plural(record.disturbed, 'timing')}"
    else:
        state = "quiet: nothing else ran during the timings"
    if record.together is not None:
        state += "; servers " + ("alive at once" if record.together else "in turns")
    if record.pick.start_sd is not None:
        state += f"; two starts of one server differ by about {2**0.5 * record.pick.start_sd:.1%}"
    return Fact("machine", f"{machine.processor}, {where}; {state}")


def _use(record: Record) -> Iterator[Fact]:
    """What there is to know before the pick is used: output, memory, other draft lengths."""
    winner = picked(record)
    if winner is None:
        return
    if winner.draft is not None:
        yield _output(record, winner)
    yield _memory(record, winner)
    if winner.settings is not None:
        length = f"{winner.settings.n_max}"
        if record.pick.within:
            others = [str(n) for n in lengths_that_would_do(record, winner)]
            which = f"{named(others, 8)} may also be" if others else "no other length is"
            length += f"; {which} within {100 * record.pick.margin:g}% of the best"
        yield Fact("draft length", length)


def _output(record: Record, winner: Candidate) -> Fact:
    """Whether drafts change the output: of the pick, or of another where the pick did not run."""
    for one in (winner, *record.candidates):
        check = one.output
        if check is None:
            continue
        of = "" if one is winner else f" of {clipped(one.name, 60)}"
        same = f"{check.identical} of {check.replies} replies{of} are token for token those without"
        kinds = (
            (check.near_ties, "part at a near tie"),
            (check.material, "at a larger gap"),
            (check.unknown, "unknown"),
        )
        differ = [f"{count} {what}" for count, what in kinds if count]
        return Fact("output", "; ".join([f"{same} a draft", *differ]))
    return Fact("output", "not compared with that without a draft")


def _memory(record: Record, winner: Candidate) -> Fact:
    draft = draft_of(record, winner) if winner.draft is not None else None
    parts = []
    if draft is not None and draft.memory_bytes is not None:
        at = f" at a context of {winner.serving.context}" if winner.serving else ""
        on = f", {size(draft.device_bytes)} of it on devices" if draft.device_bytes else ""
        parts.append(f"the draft takes {size(draft.memory_bytes)}{at}{on}")
    elif draft is not None and draft.file_bytes is not None:
        parts.append(f"the draft's weights are {size(draft.file_bytes)}")
    parts.append(f"the target's file is {size(record.target_bytes)}")
    if winner.server_peak_rss_bytes is not None:
        peak = size(winner.server_peak_rss_bytes)
        parts.append(f"the server's peak was {peak} of main memory")
    return Fact("memory", "; ".join(parts))


def _what_lost(record: Record) -> Iterator[Fact]:
    """The other drafts at their best, fastest first, and categories on which the pick loses."""
    winner = picked(record)
    others = [
        f"{clipped(row.name, 40)} {row.ratio:.2f}x{'' if row.live else ' predicted'}"
        for row in drafts_at_their_best(record)
        if winner is None or row.candidate.draft != winner.draft
    ]
    if others:
        yield Fact("other drafts", named(others, 3))
    if winner is None or winner.draft is None:
        return
    gains = speedups_by_category(record, winner)
    slow = [f"{one.name} {one.ratio:.2f}x" for one in gains if one.ratio < 1]
    if slow:
        yield Fact("where it loses", f"slower than no draft on {named(slow)}")
    elif gains:
        yield Fact("where it loses", "on no category of these prompts")


def _left_out(record: Record) -> str:
    """Settings without a live run, what cannot win and what did not run, with the reasons."""
    drafting = [c for c in record.candidates if c.draft is not None]
    predicted = sum(c.live is None and c.predicted is not None for c in drafting)
    neither = sum(c.live is None and c.predicted is None for c in drafting)
    parts = []
    if predicted:
        parts.append(f"{predicted} of {len(drafting)} settings are predicted only")
    if neither:
        parts.append(f"{neither} have no figure")
    for what, left in (
        (f"{len(record.pick.excluded)} that cannot win", record.pick.excluded),
        (plural(len(record.left_out), "live run"), record.left_out),
    ):
        if left:
            reasons = (f"{e.candidate}: {e.reason.removeprefix('left out: ')}" for e in left)
            parts.append(f"{what} ({named(reasons, NAMED, 300)})")
    return "; ".join(parts)
