"""What a reader asks beside the pick, a line each: over what, on which machine, with which output
and memory, which other draft length would do, what lost, what was left out."""

from __future__ import annotations

from cook.record.record import Candidate, Record
from cook.report.compared import Basis, draft_of, finite, named, partings, picked
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
        _output(winner),
        _memory(record, winner),
        _length(record, winner),
        _others(record, winner),
        _losers(record, winner),
        _left_out(record),
    )
    return tuple(fact for fact in found if fact is not None)


def _over_what(record: Record, winner: Candidate | None) -> Fact:
    """Prompts and tokens of the pick's figures, how they were sampled, against which target."""
    live = winner.live if winner else None
    guess = winner.predicted.figures if winner and winner.predicted else None
    figures = live or guess
    parts = []
    if figures is not None:
        how = "live" if live else "predicted"
        prompts = plural(figures.requests, "prompt")
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
    noise = [s for floor in record.noise if (s := finite(floor.speed)) is not None]
    if noise:
        state += f"; two timings of one file differ by up to {max(noise):.1%}"
    return Fact("machine", f"{machine.processor}, {where}; {state}")


def _output(winner: Candidate | None) -> Fact | None:
    if winner is None or winner.draft is None:
        return None
    check = winner.output
    if check is None:
        return Fact("output", "not compared with that without a draft")
    replies = plural(check.replies, "reply", "replies")
    if check.identical == check.replies:
        return Fact("output", f"the same: {replies} token for token as without")
    same = f"{check.identical} of {replies} token for token as without a draft"
    return Fact("output", "; ".join([same, *partings(check)]))


def _memory(record: Record, winner: Candidate | None) -> Fact | None:
    if winner is None:
        return None
    draft = draft_of(record, winner) if winner.draft is not None else None
    parts = []
    if draft is not None and draft.memory_bytes is not None:
        parts.append(f"{size(draft.memory_bytes)} for the draft with its cache")
    elif draft is not None and draft.file_bytes is not None:
        parts.append(f"{size(draft.file_bytes)} for the draft's weights")
    if winner.server_peak_rss_bytes is not None:
        parts.append(f"{size(winner.server_peak_rss_bytes)} of main memory for the whole server")
    return Fact("memory", "; ".join(parts)) if parts else None


def _length(record: Record, winner: Candidate | None) -> Fact | None:
    if winner is None or winner.settings is None:
        return None
    mine = winner.settings.n_max
    found = lengths_that_would_do(record)
    if found is None:
        return Fact("draft length", f"{mine}")
    others = [str(n) for n in found if n != mine]
    if not others:
        return Fact("draft length", f"{mine}; every other one is slower beyond the noise")
    return Fact("draft length", f"{mine}; within the noise also {named(others, 8)}")


def _others(record: Record, winner: Candidate | None) -> Fact | None:
    """What the other drafts come to at their best, fastest first."""
    rows = drafts_at_their_best(record)
    others = [row for row in rows if winner is None or row.candidate.draft != winner.draft]
    told = [
        f"{clipped(row.draft, 40)} {row.best:.2f}x{'' if row.live else ' predicted'}"
        for row in others
    ]
    return Fact("other drafts", named(told, 3)) if told else None


def _losers(record: Record, winner: Candidate | None) -> Fact | None:
    """Where the pick loses: categories on which it is slower than no draft."""
    if winner is None or winner.draft is None:
        return None
    kind: Basis = "live" if winner.live is not None else "predicted"
    gains = speedups_by_category(record, winner, kind)
    slow = [f"{name} {s.ratio:.2f}x" for name, (s, _) in gains.items() if s.ratio < 1]
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
