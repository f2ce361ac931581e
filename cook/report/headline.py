"""The first screen of a report: the pick, why, how sure, how fast, and its command; and what a
reader asks next to it, a line each."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from cook.record.record import Candidate, Record
from cook.report.commands import server_command
from cook.report.compared import draft_of, picked
from cook.report.document import Fact, Headline
from cook.report.sections.conditions import chain_answers
from cook.report.speedups import (
    DECODE,
    WHOLE,
    drafts_at_their_best,
    speed_notes,
    speed_of,
    speedups_by_category,
)
from cook.report.texts import clipped, named, tokens_per_s
from cook.units import plural, size


def headline(record: Record) -> Headline:
    """The first screen; without a score nothing but how many quants there are."""
    warnings = len(record.warnings) + sum(step.error is not None for step in record.steps)
    winner, no_pick = picked(record), "there is no pick to run"
    if not record.candidates:
        title = f"{len(record.drafts)} quants"
        return Headline(title, "This recipe scores no candidates.", (), None, no_pick, warnings)
    left_out = "; ".join(_reasons(record)) or "nothing: every setting ran live"
    shown = Headline(
        title="Nothing qualifies",
        why=record.pick.sentence,
        facts=(_candidates(record),),
        command=None,
        command_absent=no_pick,
        warnings=warnings,
        evidence=(*_evidence(record, winner),),
        answers=(*_use(record), *_what_lost(record, winner), Fact("left out", left_out)),
    )
    if winner is None:
        return shown
    return replace(
        shown,
        title=winner.name if winner.draft else winner.name[:1].upper() + winner.name[1:],
        facts=(*_facts(record, winner), _candidates(record)),
        command=shlex.join(server_command(winner.command)) if winner.command else None,
        command_absent=None if winner.command else "the pick did not run live",
    )


def printed_answers(record: Record, rows: int) -> Iterator[str]:
    """What a build prints below its table of ``rows``: the pick first, how to run it last."""
    yield f"pick: {record.pick.sentence}"
    if notes := [*speed_notes(record)]:
        yield f"figures: {'. '.join(notes)}"
    yield from (f"{fact.label}: {fact.value}" for fact in _use(record))
    yield from chain_answers(record)
    more = len(record.candidates) - rows
    parts = [f"{plural(more, 'more setting')} of these drafts (`cook report`)"] if more else []
    if parts := [*parts, *_reasons(record)]:
        yield f"left out: {'; '.join(parts)}"
    winner = picked(record)
    if winner is not None:
        command = shlex.join(["cook", "serve", record.recipe, *_options(record, winner)])
        yield f"run it: {command if winner.command else 'the pick has to run live first'}"


def _options(record: Record, winner: Candidate) -> list[str]:
    """What the build said and serving has to say again: no record holds an engine's directory."""
    words = record.command
    asked = [spec for option, spec in pairwise(words) if option == "--engine"]
    asked += [word.removeprefix("--engine=") for word in words if word.startswith("--engine=")]
    options = [unsafe] if (unsafe := "--allow-unsafe-args") in words else []
    if len(asked) == len(record.engines):
        spec = asked[[*record.engines].index(winner.engine)]
        options += ["--engine", spec] if "/" in spec else []
    return options


def _facts(record: Record, winner: Candidate) -> Iterator[Fact]:
    best = speed_of(record, winner)
    if winner.draft is None:  # what the best draft would have made of it
        objective = WHOLE if record.pick.maximize == WHOLE.value else DECODE
        drafts = [c for c in record.candidates if c.key.is_file]
        drafts = [c for c in drafts if c.live is not None] or drafts
        speeds = ((speed_of(record, c, objective), c) for c in drafts)
        ratios = [(s.speedup, c) for s, c in speeds if s is not None and s.speedup is not None]
        if ratios:
            ratio, best_draft = max(ratios, key=lambda one: one[0])
            what = "end-to-end" if objective is WHOLE else "decode"
            how = "" if best_draft.live is not None else ", predicted"
            note = f"{best_draft.name}, {what} speedup over no draft{how}"
            yield Fact("fastest draft", f"{ratio:.2f}x", note)
    elif best is not None and best.speedup is not None:
        note = "over no draft, predicted"
        if winner.live is not None:
            note = f"over no draft, live on {plural(winner.live.requests, 'request')}"
            note += f", {winner.live.tokens:,} tokens"
        if (sure := best.interval) is not None:
            note += f"; {sure.low:.2f} to {sure.high:.2f} on other such prompts"
            note += f" ({sure.confidence:.0%})"
        yield Fact("end-to-end speedup", f"{best.speedup:.2f}x", note)
    whole, decode = (speed_of(record, winner, one) for one in (WHOLE, DECODE))
    parts = [] if winner.live is not None else ["predicted"]
    if record.pick.maximize == WHOLE.value:
        own, label = whole, "end-to-end speed"
        parts += [f"decode {tokens_per_s(decode.tokens_per_s)}"] if decode is not None else []
    else:
        own, label = decode, "decode speed"
        if own is not None and own.speedup is not None and winner.draft is not None:
            parts.append(f"{own.speedup:.2f}x over no draft")
    if own is not None:
        yield Fact(label, f"{tokens_per_s(own.tokens_per_s)} t/s", ", ".join(parts))
    yield from _confidence(record)
    found = winner.live or (winner.predicted.figures if winner.predicted else None)
    if found is not None and (rate := found.acceptance_rate) is not None:
        note = f"{found.accepted}/{found.drafted}"
        if found.acceptance_length is not None:
            note += f", {found.acceptance_length:.2f} tokens a cycle"
        yield Fact("acceptance", f"{rate:.1%}", note)
    draft = draft_of(record, winner)
    if draft is not None and (file := size(draft.file_bytes)) is not None:
        yield Fact("draft file", file, f"{draft.bpw:.2f} bits a weight" if draft.bpw else "")


def _confidence(record: Record) -> Iterator[Fact]:
    """Decided, or the pair that is open, how it compares and what would decide it."""
    pick = record.pick
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


def _evidence(record: Record, winner: Candidate | None) -> Iterator[Fact]:
    """What the pick's figures rest on: prompts and tokens, what the target's file says of itself,
    and the state of the machine."""
    parts = [
        f"replies of at most {record.max_tokens} tokens",
        f"temperature {record.temperature:g}",
    ]
    live = winner.live if winner else None
    figures = live or (winner.predicted.figures if winner and winner.predicted else None)
    if winner is not None and figures is not None:
        over = f"{plural(figures.requests, 'request')} and {figures.tokens:,} tokens, "
        over += "live" if live else "predicted"
        if live and winner.categories:
            over += f" ({named(winner.categories, 6)})"
        parts.insert(0, over)
    yield Fact("measured over", "; ".join(parts))
    if record.target_description:
        yield Fact("target", clipped(record.target_description, 300))
    machine = record.machine
    where = ", ".join(machine.accelerators) or plural(machine.cores, "core")
    state = "quiet: nothing else ran during the timings"
    if record.disturbed:
        state = f"disturbed: other programs ran during {plural(record.disturbed, 'timing')}"
    if record.together is not None:
        state += "; servers " + ("alive at once" if record.together else "in turns")
    if record.pick.start_sd is not None:
        state += f"; two starts of one server differ by about {2**0.5 * record.pick.start_sd:.1%}"
    yield Fact("machine", f"{machine.processor}, {where}; {state}")


def _use(record: Record) -> Iterator[Fact]:
    """What there is to know before the pick is used: output, memory, other draft lengths."""
    winner = picked(record)
    if winner is None:
        return
    if winner.draft is not None:
        yield _output(record, winner)
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
    yield Fact("memory", "; ".join(parts))
    if winner.settings is not None:
        length = f"{winner.settings.n_max}"
        if record.pick.within:
            others = [str(n) for n in lengths_that_would_do(record, winner)]
            which = f"{named(others, 8)} may also be" if others else "no other length is"
            length += f"; {which} within {100 * record.pick.margin:g}% of the best"
        yield Fact("draft length", length)


def lengths_that_would_do(record: Record, winner: Candidate) -> tuple[int, ...]:
    """Other lengths of the pick's draft that may be within the margin of the best."""
    if winner.settings is None:
        return ()
    return tuple(
        one.settings.n_max
        for one in sorted(record.candidates, key=lambda c: c.settings.n_max if c.settings else 0)
        if one.settings is not None
        and one.name != winner.name
        and replace(one.key, settings=winner.settings) == winner.key
        and replace(one.settings, n_max=winner.settings.n_max) == winner.settings
        and record.pick.within.get(one.name, 0.0) > 1 - record.pick.confidence
    )


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


def _what_lost(record: Record, winner: Candidate | None) -> Iterator[Fact]:
    """The other drafts at their best, fastest first, and categories on which the pick loses."""
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


def _reasons(record: Record) -> Iterator[str]:
    """Settings without a live run, what cannot win and what did not run, with the reasons."""
    drafting = [c for c in record.candidates if c.draft is not None]
    predicted = sum(c.live is None and c.predicted is not None for c in drafting)
    neither = sum(c.live is None and c.predicted is None for c in drafting)
    if predicted:
        yield f"{predicted} of {len(drafting)} settings are predicted only"
    if neither:
        yield f"{neither} have no figure"
    for what, left in (
        (f"{len(record.pick.excluded)} that cannot win", record.pick.excluded),
        (plural(len(record.left_out), "live run"), record.left_out),
    ):
        if left:
            reasons = (f"{e.candidate}: {e.reason.removeprefix('left out: ')}" for e in left)
            yield f"{what} ({named(reasons, 3, 300)})"
