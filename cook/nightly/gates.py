"""Which changes since the accepted night, or another record, are regressions.

Counts, perplexity, KLD and sizes are exact: a regression is a change for the worse by more than its
tolerance. A speed is noisy: its interval must also exclude that nothing was lost. What was not
measured tonight, or is of other prompts or texts, is not judged, and says why.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from cook.errors import GateError, InputError
from cook.nightly.history import (
    History,
    Night,
    ReferenceNights,
    changed_since,
    conditions_changed,
    night_of,
    read_history,
)
from cook.nightly.pipeline import GatesSpec
from cook.nightly.speed import Sides, SpeedChange, speed_change, start_error
from cook.output import Output
from cook.record.record import (
    Candidate,
    Objective,
    PromptFigures,
    Record,
    ReplayedPrompts,
    read_record,
)
from cook.units import plural

LEAST_KLD = 1e-3
"""Nats. A KLD below this is as good as none, and its relative changes mean nothing."""
FEWEST_TEXTS = 10
"""Replies of the same text that a draft's acceptance is compared on, unless there are fewer."""
PICK, OTHERS = 0.75, 0.1
"""Of a night's false alarms, the shares of the accepted pick, which is in use, and of all others;
the rest is for comparing with two pools of nights."""


class Verdict(StrEnum):
    SAME = "same"
    REGRESSION = "regression"
    IMPROVEMENT = "improvement"
    NOT_JUDGED = "not judged"


@dataclass(frozen=True)
class Finding:
    """One gate on one candidate or quant. ``change`` is in points for acceptance, else in per cent;
    ``low`` and ``high`` bound that of a speed."""

    gate: str
    subject: str
    verdict: Verdict
    text: str
    before: float | None = None
    now: float | None = None
    change: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Judgement:
    """Tonight against the accepted night; ``accepted`` None: there is none yet.

    ``power``: what loss of speed a night like this finds, and the starts that the tolerance needs.
    """

    accepted: Night | None
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    power: str | None = None

    @property
    def regressions(self) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if f.verdict is Verdict.REGRESSION)

    @property
    def unjudged_pick(self) -> str | None:
        """Why no speed of the accepted pick was judged; None where one was."""
        pick = self.accepted.pick if self.accepted else None
        found = [f for f in self.findings if f.subject == pick and "speed" in f.gate]
        judged = not found or any(f.verdict is not Verdict.NOT_JUDGED for f in found)
        return None if judged else found[0].text


def judge(now: Night, reference: ReferenceNights | None, gates: GatesSpec) -> Judgement:
    """Every gate of one cell; without ``reference`` only what a reference engine build shows."""
    accepted = reference.accepted if reference else None
    speeds = _Speeds(now, reference, gates)
    findings = [*speeds.findings()]
    notes = ["no good night of this series to compare with"] if accepted is None else []
    if accepted is not None:
        tonight, then = now.record, accepted.record
        exact = [*_counts(tonight, then, gates.acceptance_points), *_files(tonight, then, gates)]
        same = [f for f in exact if f.now is not None and f.now == f.before]
        findings += [f for f in exact if f not in same]
        if same:  # one line for everything that is identical
            names = ", ".join(dict.fromkeys(f.gate for f in same))
            subjects = ", ".join(dict.fromkeys(f.subject for f in same))
            text = "identical to the last digit"
            findings.append(Finding(names, subjects, Verdict.SAME, text, change=0.0))
        notes += [f"changed since then: {change}" for change in changed_since(tonight, then)]
        if now.pick != accepted.pick:
            notes.append(f"pick: {accepted.pick or 'none'} then, {now.pick or 'none'} now")
    return Judgement(accepted, tuple(findings), tuple(notes), speeds.power)


def _skipped(gate: str, subject: str, reason: str) -> Finding:
    return Finding(gate, subject, Verdict.NOT_JUDGED, reason)


def _verdict(worse: float, tolerance: float) -> Verdict:
    if abs(worse) <= tolerance:
        return Verdict.SAME
    return Verdict.REGRESSION if worse > 0 else Verdict.IMPROVEMENT


def _counts(now: Record, then: Record, points: float) -> Iterator[Finding]:
    """Replayed acceptance of every draft, live acceptance of those without a replay, limits."""
    replays = {(r.engine, r.draft, r.cache_type, r.n_max): r for r in now.replayed}
    several = len({r.cache_type for r in then.replayed}) > 1
    for old in then.replayed:
        name = f"{old.draft} kv={old.cache_type}" if several else old.draft
        new = replays.get((old.engine, old.draft, old.cache_type, old.n_max))
        reason = conditions_changed(now, then) if new else "not replayed tonight at that n_max"
        same = _same_build(now, then, old.engine)
        yield _acceptance("replayed acceptance", name, (old, new), same, reason, points)
    for one in then.candidates:
        mine = now.candidate(one.name)
        if one.draft is None or one.prompts is None:
            continue
        if now.replayed and (over := _excluded(now, one.name)) is not None:
            yield Finding("qualifies", one.name, Verdict.REGRESSION, f"ran live then; now {over}")
        if one.draft not in {r.draft for r in then.replayed}:
            reason = conditions_changed(now, then) if mine else _why_not_live(now, one.name)
            pair = (one.prompts, mine.prompts if mine else None)
            same = _same_build(now, then, one.engine)
            yield _acceptance("acceptance", one.name, pair, same, reason, points)


def _same_build(now: Record, then: Record, engine: str) -> bool:
    mine, theirs = now.engines.get(engine), then.engines.get(engine)
    return mine is not None and theirs is not None and mine.digest == theirs.digest


def _excluded(now: Record, name: str) -> str | None:
    return next((e.reason for e in now.pick.excluded if e.candidate == name), None)


def _why_not_live(now: Record, name: str) -> str:
    return f"not run live tonight: {_excluded(now, name) or 'it was no finalist'}"


_Counts = PromptFigures | ReplayedPrompts


def _acceptance(
    gate: str,
    name: str,
    pair: tuple[_Counts, _Counts | None],
    same_build: bool,
    reason: str | None,
    tolerance: float,
) -> Finding:
    """Accepted over drafted tokens, sums over the prompts whose replies are the same text: those of
    one digest, where digests were kept; else all, if one build wrote them."""
    old, new = pair
    if new is None or reason is not None:
        return _skipped(gate, name, reason or "not run tonight")
    digests = [one.texts if isinstance(one, ReplayedPrompts) else () for one in pair]
    replies = []
    for one, texts in zip((old, new), digests, strict=True):
        names = zip(one.ids, texts, strict=True) if all(digests) else one.ids
        replies.append(dict(zip(names, zip(one.drafted, one.accepted, strict=True), strict=True)))
    before, after = replies
    alike = [key for key in before if key in after] if all(digests) or same_build else []
    if len(alike) < min(FEWEST_TEXTS, len(before)):
        known = f"{len(alike)} of {len(before)} replies are known to be the same text"
        return _skipped(gate, name, f"{known}, {FEWEST_TEXTS} are needed")
    rates = []
    for counts in replies:
        drafted, accepted = (sum(counts[key][part] or 0 for key in alike) for part in (0, 1))
        if not drafted:
            return _skipped(gate, name, "a night without a drafted token")
        rates.append(accepted / drafted)
    then, now = rates
    points = 100 * (now - then)
    text = f"{then:.1%} to {now:.1%}, {points:+.1f} points ({len(alike)} prompts)"
    return Finding(gate, name, _verdict(-points, tolerance), text, then, now, points)


def _files(now: Record, then: Record, gates: GatesSpec) -> Iterator[Finding]:
    """Perplexity, KLD and size of every quant of both nights: less is better."""
    earlier = {draft.quant: draft for draft in then.drafts}
    for mine in now.drafts:
        if (theirs := earlier.get(mine.quant)) is None:
            continue
        new, old = mine.quality, theirs.quality
        figures: list[tuple[str, float | None, float | None, float, float]] = []
        if new is not None and old is not None:
            if (new.chunks, new.context) != (old.chunks, old.context):
                yield _skipped("perplexity, KLD", mine.quant, "another amount of text")
            else:
                figures += [
                    ("perplexity", old.perplexity, new.perplexity, gates.perplexity_percent, 0.0),
                    ("KLD", old.mean_kld, new.mean_kld, gates.kld_percent, LEAST_KLD),
                ]
        figures.append(("size", theirs.file_bytes, mine.file_bytes, gates.size_percent, 0.0))
        for gate, before, after, tolerance, least in figures:
            if before and after:
                change = 100 * (max(after, least) / max(before, least) - 1)
                text = f"{before:.10g} to {after:.10g}, {change:+.2f} %"
                verdict = _verdict(change, tolerance)
                yield Finding(gate, mine.quant, verdict, text, before, after, change)


class _Speeds:
    """The speed of every live candidate: over the reference build, or over earlier nights."""

    def __init__(self, now: Night, reference: ReferenceNights | None, gates: GatesSpec) -> None:
        self.now, self.reference, self.gates = now, reference, gates
        whole = now.record.pick.maximize == Objective.END_TO_END_SPEED
        self.time = (Objective.END_TO_END_SPEED if whole else Objective.DECODE_SPEED).columns[1]
        self.noise = start_error(reference.noise if reference else (), self.time)
        self.pick = reference.accepted.pick if reference else now.pick
        self.power: str | None = None

    def findings(self) -> Iterator[Finding]:
        for one in self.now.live:
            if one.prompts is not None and one.reference is not None:
                found = speed_change((one.prompts, one.reference), (), self.noise, self.time)
                gate, tolerance = "speed over the reference build", self.gates.speed_percent
                yield self._finding(gate, one, found, tolerance, (one.prompts,))
            elif self.reference is not None:
                yield from self._over_nights(one, self.reference)
        if self.reference is not None:
            nights = (self.reference.accepted, *self.reference.last[-1:])
            for name in dict.fromkeys(c.name for night in nights for c in night.live):
                if self.now.candidate(name) is None:
                    yield _skipped("speed", name, _why_not_live(self.now.record, name))

    def _over_nights(self, one: Candidate, reference: ReferenceNights) -> Iterator[Finding]:
        gate = "no-draft speed" if one.draft is None else "speed"
        noise, tolerance = self.noise, self.gates.speed_percent
        if one.draft is None:
            noise = start_error(reference.noise, self.time, one.engine)
            tolerance = self.gates.no_draft_percent
        mine = _sides(self.now, one.name)
        now, then = self.now.record, reference.accepted.record
        faults = (
            (now.machine.digest != then.machine.digest, "the machine is another"),
            (now.disturbed > 0, f"other programs disturbed {now.disturbed} timings"),
            (not (one.draft or noise.nights), "what nights differ by is known after three"),
            (not mine, f"{one.engine} was not run live without a draft"),
        )
        reason = conditions_changed(now, then) or next((why for bad, why in faults if bad), None)
        if reason is not None:
            yield _skipped(gate, one.name, reason)
            return
        pools = {"the last good nights": reference.last, "the accepted nights": reference.first}
        if reference.first == reference.last:
            pools.popitem()
        for label, nights in pools.items():
            alike = [n for n in nights if conditions_changed(now, n.record) is None]
            earlier = [sides for n in alike if (sides := _sides(n, one.name))]
            if earlier:
                found = speed_change(mine, earlier, noise, self.time)
                yield self._finding(f"{gate} over {label}", one, found, tolerance, mine)
            else:
                yield _skipped(f"{gate} over {label}", one.name, "it did not run live then")

    def _finding(
        self,
        gate: str,
        one: Candidate,
        found: SpeedChange | None,
        tolerance: float,
        sides: Sides,
    ) -> Finding:
        """``found`` is the change of the figure that ``sides`` give tonight."""
        tonight = speed_change(sides, (), self.noise, self.time)
        if found is None or tonight is None:
            return _skipped(gate, one.name, "fewer than two requests in common")
        others = sum(c.name != self.pick for c in self.now.live)
        level = 1 - self.gates.confidence
        level *= PICK if one.name == self.pick else OTHERS / others
        limit, reach = -math.log1p(-tolerance / 100), found.reach(level) * found.error
        verdict = Verdict.SAME
        if abs(found.change) > max(limit, reach):
            verdict = _verdict(-found.change, 0.0)
        if one.name == self.pick and self.power is None:
            self.power = f"{gate} of {one.name}: {found.power_text(level, limit)}"
        values = [found.change, found.change - reach, found.change + reach]
        change, low, high = (100 * math.expm1(value) for value in values)
        unit, scale = ("x over no draft", 1.0) if len(sides) > 1 else (" t/s", 1000.0)
        before, now = (scale * math.exp(tonight.change - c) for c in (found.change, 0.0))
        text = (
            f"{before:.4g} to {now:.4g}{unit}, {change:+.1f} % ({1 - 2 * level:.1%}: {low:+.1f} to "
            f"{high:+.1f}; {found.requests} requests)"
        )
        return Finding(gate, one.name, verdict, text, before, now, change, low, high)


def _sides(night: Night, name: str) -> Sides:
    """The candidate's requests, then no draft's where it has a draft; empty if one is missing."""
    one = night.candidate(name)
    if one is None or one.prompts is None:
        return ()
    if one.draft is None:
        return (one.prompts,)
    plain = night.no_draft(one.engine)
    return (one.prompts, plain.prompts) if plain is not None and plain.prompts is not None else ()


def compare(record: Record, against: Path) -> Judgement:
    """Every gate of ``record`` against ``against``: a history (.jsonl) or another record.

    InputError where there is nothing to compare with.
    """
    night = night_of(record)
    if against.suffix != ".jsonl":
        other = night_of(read_record(against))
        return judge(night, ReferenceNights(other, (other,), (other,), (other,)), GatesSpec())
    if not against.is_file():
        raise InputError(f"{against}: no such history", hint="`cook sweep PIPELINE` writes one")
    # A record does not know which cell of a pipeline it was; what it measured says so.
    earlier = tuple(
        n
        for n in read_history(against).nights
        if n.series[1:] == night.series[1:] and n.created < night.created
    )
    found = History(against, earlier).reference(earlier[-1].series) if earlier else None
    if found is None:
        raise InputError(
            f"{against}: no earlier good night of {record.recipe} with this text, these engines "
            "and this machine",
            hint="compare with a record of your choice: --against RECORD",
        )
    return judge(night, found, GatesSpec())


def as_document(judgement: Judgement | None) -> dict[str, object] | None:
    """The judgement for ``--json``, without the nights' own columns."""
    if judgement is None:
        return None
    before = judgement.accepted.created if judgement.accepted else None
    return {"before": before, "findings": judgement.findings, "notes": judgement.notes}


def show(judgement: Judgement, output: Output) -> None:
    """The findings as a table, what is worse first; notes on stderr."""
    order = [Verdict.REGRESSION, Verdict.IMPROVEMENT, Verdict.SAME, Verdict.NOT_JUDGED]
    found = sorted(judgement.findings, key=lambda f: order.index(f.verdict))
    rows = [(f.verdict, f.gate, f.subject, f.text) for f in found]
    output.table(rows, ["verdict", "gate", "of", "then and now"])
    if judgement.accepted is not None:
        output.say(f"compared with {judgement.accepted.created}")
    for note in judgement.notes:
        output.say(note)


def raise_for(judgement: Judgement) -> None:
    """GateError (exit 4) where something is worse for certain."""
    if worse := judgement.regressions:
        named = ", ".join(f"{f.gate} of {f.subject}" for f in worse[:3])
        raise GateError(f"{plural(len(worse), 'regression')}: {named}")
