"""What a reader asks next to the pick, a line each: over what, on which machine, with which output
and memory, which other draft length would do, what lost, what was left out."""

from __future__ import annotations

from cook.record.record import Candidate, Record
from cook.report.compared import draft_of, named, partings, picked
from cook.report.document import Fact
from cook.report.plain import clipped
from cook.report.sections.lengths import lengths_that_would_do
from cook.report.speedups import drafts_at_their_best, speedups_by_category
from cook.units import plural, size


def evidence(record: Record) -> tuple[Fact, ...]:
    """What the pick's figures rest on: prompts and tokens, what the target's file says of itself,
    and the state of the machine."""
    if not record.candidates:
        return ()
    found = (_over_what(record, picked(record)), _target(record), _machine(record))
    return tuple(fact for fact in found if fact is not None)


def answers(record: Record) -> tuple[Fact, ...]:
    """Those that the record has an answer to; none where nothing was scored."""
    if not record.candidates:
        return ()
    winner = picked(record)
    found = (
        *use(record),
        _others(record, winner),
        _losers(record, winner),
        _left_out(record),
    )
    return tuple(fact for fact in found if fact is not None)


def use(record: Record) -> tuple[Fact, ...]:
    """What there is to know before the pick is used: output, memory, other draft lengths."""
    winner = picked(record)
    found = (_output(record, winner), _memory(record, winner), _length(record, winner))
    return tuple(fact for fact in found if fact is not None)


def _over_what(record: Record, winner: Candidate | None) -> Fact:
    """Prompts and tokens of the pick's figures, how they were sampled, against which target."""
    live = winner.live if winner else None
    guess = winner.predicted.figures if winner and winner.predicted else None
    figures = live or guess
    parts = []
    if figures is not None:
        how = "live" if live else "predicted"
        prompts = plural(figures.requests, "request")
        parts.append(f"{prompts} and {figures.tokens:,} tokens, {how}")
        categories = list(winner.categories if winner and live else ())
        if categories:
            parts[0] += f" ({named(categories, 6)})"
    parts.append(f"replies of at most {record.max_tokens} tokens")
    parts.append(f"temperature {record.temperature:g}")
    return Fact("measured over", "; ".join(parts))


def _target(record: Record) -> Fact | None:
    said = record.target_description
    return Fact("target", clipped(said, 300)) if said else None


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


def _output(record: Record, winner: Candidate | None) -> Fact | None:
    """Whether drafts change the output: of the pick, or of another where the pick did not run."""
    if winner is None or winner.draft is None:
        return None
    known = [c for c in (winner, *record.candidates) if c.output is not None]
    if not known or known[0].output is None:
        return Fact("output", "not compared with that without a draft")
    one, check = known[0], known[0].output
    of = "" if one is winner else f" of {clipped(one.name, 60)}"
    same = f"{check.identical} of {check.replies} replies{of} are token for token those without a"
    return Fact("output", "; ".join([f"{same} draft", *partings(check)]))


def _memory(record: Record, winner: Candidate | None) -> Fact | None:
    if winner is None:
        return None
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


def _length(record: Record, winner: Candidate | None) -> Fact | None:
    if winner is None or winner.settings is None:
        return None
    mine = winner.settings.n_max
    if not record.pick.within:
        return Fact("draft length", f"{mine}")
    others = [str(n) for n in lengths_that_would_do(record, winner)]
    near = f"within {100 * record.pick.margin:g}% of the best"
    which = f"{named(others, 8)} may also be {near}" if others else f"no other length is {near}"
    return Fact("draft length", f"{mine}; {which}")


def _others(record: Record, winner: Candidate | None) -> Fact | None:
    """What the other drafts come to at their best, fastest first."""
    rows = drafts_at_their_best(record)
    others = [row for row in rows if winner is None or row.candidate.draft != winner.draft]
    texts = [
        f"{clipped(row.draft, 40)} {row.ratio:.2f}x{'' if row.speed.live else ' predicted'}"
        for row in others
    ]
    return Fact("other drafts", named(texts, 3)) if texts else None


def _losers(record: Record, winner: Candidate | None) -> Fact | None:
    """Where the pick loses: categories on which it is slower than no draft."""
    if winner is None or winner.draft is None:
        return None
    gains = speedups_by_category(record, winner)
    slow = [f"{name} {s.ratio:.2f}x" for name, s in gains.items() if s.ratio < 1]
    if slow:
        return Fact("where it loses", f"slower than no draft on {named(slow)}")
    return Fact("where it loses", "on no category of these prompts") if gains else None


def _left_out(record: Record) -> Fact:
    drafting = [c for c in record.candidates if c.draft is not None]
    guessed = sum(c.live is None and c.predicted is not None for c in drafting)
    neither = sum(c.live is None and c.predicted is None for c in drafting)
    parts = []
    if guessed:
        parts.append(f"{guessed} of {len(drafting)} settings are predicted only")
    if neither:
        parts.append(f"{neither} have no figure")
    if record.left_out:
        names = dict.fromkeys(e.candidate for e in record.left_out)
        parts.append(f"not run: {named(names, 2)}")
    return Fact("left out", "; ".join(parts) or "nothing: every setting ran live")
