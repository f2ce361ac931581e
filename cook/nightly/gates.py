"""Gates: which changes between two nights are regressions that are real.

A change is a regression when it is worse than its tolerance (it matters) *and* more than noise
at the gate's share of the false alarms that a night may have (it is real). All gates of all
cells of a night spend one budget together, by Bonferroni: the picked candidate, which is the
one in use, gets half of each figure's share, the other candidates the other half. What is
identical to the last digit cannot raise an alarm, spends nothing, and is told in one line.

Live figures exist of the finalists only, and these change from night to night. So every draft's
replayed acceptance is gated, too; three quarters of that share belong to the drafts that were
finalists on the night compared with, by which a draft that is lost from tonight's is judged.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from cook.nightly.causes import UNCHANGED, Cause, causes
from cook.nightly.changes import Change, GatedFigure, Incomparable, changes
from cook.nightly.night import Night, NightDraft
from cook.scoring.racing import student_quantile
from cook.units import plural, size

if TYPE_CHECKING:
    from cook.nightly.history import History

CONFIDENCE = 0.95
SHARED_TEXT = 0.2
"""Part of a perplexity's or KLD's standard error that two runs over one text do not share.

The error is that of the text's sample, which is the same both nights; only the engine's
arithmetic differs. Assumed, and large against it."""
LEAST_KLD = 1e-3
"""Nats. A KLD below this is as good as none, and its relative changes mean nothing."""
BUDGET: Mapping[GatedFigure, float] = {
    GatedFigure.ACCEPTANCE: 0.10,
    GatedFigure.REPLAYED: 0.40,
    GatedFigure.SPEED: 0.25,
    GatedFigure.CYCLE: 0.10,
    GatedFigure.NO_DRAFT: 0.05,
}
QUALITY_BUDGET = 0.10
IN_USE = 0.5
FINALISTS = 0.75
"""Part of a figure's share that belongs to the pick, and of the replays' to the finalists."""


@dataclass(frozen=True)
class Policy:
    """What counts as a regression. Points are of acceptance (62 % to 59 % is 3)."""

    false_alarms: float = 0.01
    """Share of nights with any false alarm, all gates of all ``cells`` together."""
    cells: int = 1
    acceptance_points: float = 1.0
    speed_percent: float = 2.0
    no_draft_percent: float = 4.0
    perplexity_percent: float = 1.0
    kld_percent: float = 10.0
    size_percent: float = 0.5


class Verdict(StrEnum):
    SAME = "same"
    REGRESSION = "regression"
    IMPROVEMENT = "improvement"
    NOT_JUDGED = "not judged"


@dataclass(frozen=True)
class Finding:
    """One gate on one candidate or quant.

    ``change`` is in points for acceptance and in per cent for the rest, with its interval at 95 %
    where there is one; ``p_value`` is one-sided, against ``level``, its share of the budget.
    """

    gate: str
    subject: str
    verdict: Verdict
    text: str
    before: float | None = None
    now: float | None = None
    change: float | None = None
    low: float | None = None
    high: float | None = None
    p_value: float | None = None
    level: float | None = None


@dataclass(frozen=True)
class Judgement:
    """Tonight against an earlier night; ``before`` None: there is nothing to compare with.

    ``causes``: what is not what it was that night.
    """

    now: Night
    before: Night | None
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    causes: tuple[Cause, ...] = ()

    @property
    def regressions(self) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if f.verdict is Verdict.REGRESSION)


def judge(
    now: Night, before: Night | None, policy: Policy, history: History | None = None
) -> Judgement:
    """Every gate of one cell."""
    if before is None:
        return _apart(now, history)
    found, refused = changes(now, before, history)
    moving = [c for c in found if not _stored(c)]
    alarms = _alarms(moving, now, before, policy)
    levels = _levels(moving, before, alarms)
    findings = [_finding(c, levels[c.figure, c.candidate], policy) for c in moving]
    findings += [_not_judged(str(r.figure), r.candidate, r.reason) for r in refused]
    quality, same = _quality(now, before, policy, alarms.get(None, 0.0))
    findings += [*quality, *_unqualified(now, before)]
    still = [(str(c.figure), c.candidate) for c in found if _stored(c)]
    findings += _identical([*still, *same])
    changed = causes(now, before)
    verdicts = {f.verdict for f in findings}
    moved = bool(verdicts & {Verdict.REGRESSION, Verdict.IMPROVEMENT})
    notes = (
        *_told(changed, moved),
        *_notes(now, before),
        *_lost(now, before, _by_draft(found, refused, findings)),
    )
    return Judgement(now, before, tuple(findings), notes, changed)


def _apart(now: Night, history: History | None) -> Judgement:
    """Without a night of this series; one of the cell's may tell what set them apart."""
    none = "no good night of this series to compare with"
    other = history.last_of_cell(now) if history is not None else None
    if other is None:
        return Judgement(now, None, (), (none,))
    changed = causes(now, other)
    why = [*_told(changed, moved=False)]
    if now.recipe_sha256 != other.recipe_sha256:
        why.append("the recipe is not the same text as then")
    since = f"{none}; the cell's last good night is of {other.created}"
    return Judgement(now, None, (), (since, *why), changed)


def _told(changed: Sequence[Cause], moved: bool) -> Iterator[str]:
    """What changed, as notes; that nothing did, where a figure ``moved``."""
    yield from (f"changed since then: {cause}" for cause in changed)
    if moved and not changed:
        yield UNCHANGED


def _by_draft(
    found: Sequence[Change], refused: Sequence[Incomparable], findings: Sequence[Finding]
) -> dict[str | None, Finding | None]:
    """What its replays say of each draft, the worst of its KV types; None: the same as then."""
    drafts: dict[str, str | None] = {r.candidate: r.candidate for r in refused}
    drafts |= {c.candidate: c.draft for c in found if _is_replay(c)}
    said: dict[str | None, Finding | None] = {c.draft: None for c in found if _stored(c)}
    order = [Verdict.IMPROVEMENT, Verdict.SAME, Verdict.NOT_JUDGED, Verdict.REGRESSION]
    replays = [f for f in findings if f.gate == GatedFigure.REPLAYED]
    for finding in sorted(replays, key=lambda f: order.index(f.verdict)):
        said[drafts[finding.subject]] = finding
    return said


def _is_replay(change: Change) -> bool:
    return change.figure is GatedFigure.REPLAYED


def _stored(change: Change) -> bool:
    """Whether it is a stored result that serves both nights; what runs live is measured anew."""
    return _is_replay(change) and change.identical


def _identical(same: Sequence[tuple[str, str]]) -> Iterator[Finding]:
    """One line for everything of which nothing changed."""
    if not same:
        return
    gates = ", ".join(dict.fromkeys(gate for gate, _ in same))
    subjects = dict.fromkeys(subject for _, subject in same)
    yield Finding(
        gate=gates,
        subject=plural(len(subjects), "draft"),
        verdict=Verdict.SAME,
        change=0.0,
        text=f"identical to the last digit: {', '.join(subjects)}",
    )


def _unqualified(now: Night, before: Night) -> Iterator[Finding]:
    """Finalists of that night that may not win tonight. A recipe's limits are no matter of noise.

    Only of predicted nights: a live score also leaves out what its budget has no time for.
    """
    if not now.replays:
        return
    why = dict(now.excluded)
    for column in before.finalists:
        if column.name in why:
            yield Finding(
                gate="qualifies",
                subject=column.name,
                verdict=Verdict.REGRESSION,
                text=f"a finalist then; now {why[column.name]}",
            )


def _notes(now: Night, before: Night) -> Iterator[str]:
    if now.recipe_sha256 != before.recipe_sha256:
        yield "the recipe is not the same text as then"
    if now.pick != before.pick:
        yield f"pick: {before.pick or 'none'} then, {now.pick or 'none'} now"
    if now.replays and not before.replays:
        yield "that night kept no replayed acceptance: drafts are gated from the next night on"
    gone = [c.name for c in before.candidates if now.column(c.name) is None]
    if gone:
        yield f"not run live tonight: {', '.join(gone)}"


def _lost(now: Night, before: Night, replays: Mapping[str | None, Finding | None]) -> Iterator[str]:
    """Whether drafts that were finalists then, or the pick, and are not now, became worse."""
    if not (now.replays and before.replays):
        return
    live = {c.draft for c in now.finalists}
    picked = next((c.draft for c in before.finalists if c.name == before.pick), None)
    demoted = {picked} if now.pick != before.pick else set()
    drafts = dict.fromkeys(c.draft for c in before.finalists)
    for draft in (d for d in drafts if d not in live or d in demoted):
        what = "is no longer picked" if draft in demoted else "is no finalist tonight"
        found = replays.get(draft)
        if draft not in replays:
            told = "it was not replayed that night"
        elif found is None:
            told = "its replayed acceptance is what it was: it only moved in rank"
        elif found.verdict is Verdict.NOT_JUDGED:
            told = f"its replayed acceptance is not judged: {found.text}"
        elif found.verdict is Verdict.REGRESSION:
            told = f"its replayed acceptance fell: {found.text}"
        else:
            told = f"its replayed acceptance shows no fall: it only moved in rank ({found.text})"
        yield f"{draft} {what}: {told}"


def _alarms(
    found: Sequence[Change], now: Night, before: Night, policy: Policy
) -> dict[GatedFigure | None, float]:
    """Chance of a false alarm that each figure may spend, quality by None.

    What both nights do not have, or nothing of which has changed, leaves its share to the rest.
    """
    figures = {change.figure for change in found}
    shares: dict[GatedFigure | None, float] = {f: s for f, s in BUDGET.items() if f in figures}
    if any(_measured_pairs(now, before)):
        shares[None] = QUALITY_BUDGET
    whole = sum(shares.values())
    return {f: policy.false_alarms / policy.cells * s / whole for f, s in shares.items()}


def _levels(
    found: Sequence[Change], before: Night, alarms: Mapping[GatedFigure | None, float]
) -> dict[tuple[GatedFigure, str], float]:
    """Each figure's share, divided between what was in use and all others."""
    levels: dict[tuple[GatedFigure, str], float] = {}
    finalists = {c.draft for c in before.finalists}
    for figure in GatedFigure:
        mine = [c for c in found if c.figure is figure]
        if figure is GatedFigure.REPLAYED:
            first = [c.candidate for c in mine if c.draft in finalists]
        else:
            first = [c.candidate for c in mine if c.candidate == before.pick]
        others = [c.candidate for c in mine if c.candidate not in first]
        part = FINALISTS if figure is GatedFigure.REPLAYED else IN_USE
        if not (first and others):
            part = 1.0 if first else 0.0
        for names, share in ((first, part), (others, 1.0 - part)):
            for name in names:
                levels[figure, name] = alarms[figure] * share / len(names)
    return levels


def _tolerance(figure: GatedFigure, policy: Policy) -> float:
    """In the change's own units: a share for acceptance, a log ratio for the rest."""
    if figure.in_points:
        return policy.acceptance_points / 100
    if figure is GatedFigure.NO_DRAFT:
        return -math.log1p(-policy.no_draft_percent / 100)
    return -math.log1p(-policy.speed_percent / 100)


def _finding(change: Change, level: float, policy: Policy) -> Finding:
    better = change.figure.sign * change.change
    freedom = change.freedom
    p_value = change.p_value(level)
    real = abs(better) >= _tolerance(change.figure, policy) and p_value <= level
    verdict = Verdict.SAME
    if real:
        verdict = Verdict.REGRESSION if better < 0 else Verdict.IMPROVEMENT
    elif not change.fires(level):
        verdict = Verdict.NOT_JUDGED
    reach = student_quantile((1 + CONFIDENCE) / 2, freedom) * change.error
    bounds = (change.change, change.change - reach, change.change + reach)
    points = change.figure.in_points
    middle, low, high = (100 * (b if points else math.expm1(b)) for b in bounds)
    unit = "points" if points else "%"
    shown = f"{change.before:.1%} to {change.now:.1%}" if points else _pair(change)
    text = (
        f"{shown}, {middle:+.1f} {unit} "
        f"({CONFIDENCE:.0%}: {low:+.1f} to {high:+.1f}; {change.prompts} prompts)"
    )
    if verdict is Verdict.NOT_JUDGED:
        text += (
            f"; so few cannot show that any change is more than noise: "
            f"{change.prompts_needed(level)} are needed"
        )
    return Finding(
        gate=str(change.figure),
        subject=change.candidate,
        verdict=verdict,
        before=change.before,
        now=change.now,
        change=middle,
        low=low,
        high=high,
        p_value=p_value,
        level=level,
        text=text,
    )


def _pair(change: Change) -> str:
    if change.figure is GatedFigure.NO_DRAFT:
        return f"{1000 * change.before:.2f} to {1000 * change.now:.2f} t/s"
    if change.figure is GatedFigure.SPEED:
        return f"{change.before:.3f}x to {change.now:.3f}x over no draft"
    return f"{change.before:.2f} to {change.now:.2f} undrafted tokens a cycle"


def _measured_pairs(now: Night, before: Night) -> Iterator[tuple[NightDraft, NightDraft]]:
    """Quants whose perplexity or KLD is not the number that it was."""
    for mine, theirs in _drafts(now, before):
        figures = (mine.perplexity, mine.mean_kld), (theirs.perplexity, theirs.mean_kld)
        if figures[0] != figures[1]:
            yield mine, theirs


def _drafts(now: Night, before: Night) -> Iterator[tuple[NightDraft, NightDraft]]:
    """The same quant, tonight and then."""
    for mine in now.drafts:
        yield from ((mine, theirs) for theirs in before.drafts if mine.quant == theirs.quant)


def _quality(
    now: Night, before: Night, policy: Policy, alarms: float
) -> tuple[list[Finding], list[tuple[str, str]]]:
    """Findings, and (gate, quant) of what is the same number as that night."""
    level = alarms / (2 * max(len(list(_measured_pairs(now, before))), 1))
    found = [
        finding
        for mine, theirs in _drafts(now, before)
        for finding in (
            *_perplexity(mine, theirs, policy, level),
            *_kld(mine, theirs, policy, level),
            *_size(mine, theirs, policy),
        )
    ]
    same = [(f.gate, f.subject) for f in found if f.now is not None and f.now == f.before]
    return [f for f in found if f.now is None or f.now != f.before], same


def _perplexity(
    mine: NightDraft, theirs: NightDraft, policy: Policy, level: float
) -> Iterator[Finding]:
    if mine.perplexity is None or theirs.perplexity is None:
        return
    if (mine.chunks, mine.context) != (theirs.chunks, theirs.context):
        yield _not_judged("perplexity", mine.quant, "another amount of text")
        return
    error = SHARED_TEXT * math.hypot(
        (mine.perplexity_error or 0) / mine.perplexity,
        (theirs.perplexity_error or 0) / theirs.perplexity,
    )
    change = math.log(mine.perplexity / theirs.perplexity)
    limit = math.log1p(policy.perplexity_percent / 100)
    numbers = (theirs.perplexity, mine.perplexity)
    text = f"{theirs.perplexity:.4f} to {mine.perplexity:.4f}"
    yield _measured("perplexity", mine.quant, numbers, change, error, limit, level, text)


def _kld(mine: NightDraft, theirs: NightDraft, policy: Policy, level: float) -> Iterator[Finding]:
    if mine.mean_kld is None or theirs.mean_kld is None:
        return
    if (mine.chunks, mine.context) != (theirs.chunks, theirs.context):
        yield _not_judged("KLD", mine.quant, "another amount of text")
        return
    ours, before = max(mine.mean_kld, LEAST_KLD), max(theirs.mean_kld, LEAST_KLD)
    error = SHARED_TEXT * math.hypot(
        (mine.mean_kld_error or 0) / ours, (theirs.mean_kld_error or 0) / before
    )
    limit = math.log1p(policy.kld_percent / 100)
    numbers = (theirs.mean_kld, mine.mean_kld)
    text = f"{theirs.mean_kld:.4f} to {mine.mean_kld:.4f} nats"
    change = math.log(ours / before)
    yield _measured("KLD", mine.quant, numbers, change, error, limit, level, text)


def _measured(
    gate: str,
    quant: str,
    numbers: tuple[float, float],
    change: float,
    error: float,
    limit: float,
    level: float,
    text: str,
) -> Finding:
    """A finding of a log ratio where less is better, its error taken for normal."""
    p_value = 0.5 * math.erfc(abs(change) / error / math.sqrt(2)) if error > 0 else 0.0
    real = abs(change) >= limit and p_value <= level
    verdict = Verdict.SAME
    if real:
        verdict = Verdict.REGRESSION if change > 0 else Verdict.IMPROVEMENT
    low, high = change - 1.959964 * error, change + 1.959964 * error
    percent = [100 * math.expm1(v) for v in (change, low, high)]
    return Finding(
        gate=gate,
        subject=quant,
        verdict=verdict,
        before=numbers[0],
        now=numbers[1],
        change=percent[0],
        low=percent[1],
        high=percent[2],
        p_value=p_value,
        level=level,
        text=f"{text}, {percent[0]:+.1f} % ({CONFIDENCE:.0%}: {percent[1]:+.1f} to "
        f"{percent[2]:+.1f})",
    )


def _size(mine: NightDraft, theirs: NightDraft, policy: Policy) -> Iterator[Finding]:
    if not mine.file_bytes or not theirs.file_bytes:
        return
    percent = 100 * (mine.file_bytes / theirs.file_bytes - 1)
    verdict = Verdict.SAME
    if abs(percent) > policy.size_percent:
        verdict = Verdict.REGRESSION if percent > 0 else Verdict.IMPROVEMENT
    yield Finding(
        gate="size",
        subject=mine.quant,
        verdict=verdict,
        before=float(theirs.file_bytes),
        now=float(mine.file_bytes),
        change=percent,
        text=f"{size(theirs.file_bytes)} to {size(mine.file_bytes)}, {percent:+.2f} %",
    )


def _not_judged(gate: str, subject: str, reason: str) -> Finding:
    return Finding(gate, subject, Verdict.NOT_JUDGED, reason)
