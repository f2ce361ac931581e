"""Gates: which changes between two nights are regressions that are real.

A change is a regression when it is worse than its tolerance (it matters) *and* more than noise
at the gate's share of the false alarms that a night may have (it is real). All gates of all
cells of a night spend one budget together, by Bonferroni: the picked candidate, which is the
one in use, gets half of each figure's share, the other candidates the other half.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from cook.nightly.changes import Change, GatedFigure, changes
from cook.nightly.night import Night, NightDraft
from cook.scoring.racing import student_quantile, student_upper
from cook.units import size

if TYPE_CHECKING:
    from cook.nightly.history import History

CONFIDENCE = 0.95
SHARED_TEXT = 0.2
"""Part of a perplexity's or KLD's standard error that two runs over one text do not share.

The error is that of the text's sample, which is the same both nights; only the engine's
arithmetic differs. Assumed, and large against it."""
LEAST_KLD = 1e-3
"""Nats. A KLD below this is as good as none, and its relative changes mean nothing."""
BUDGET = {
    GatedFigure.ACCEPTANCE: 0.30,
    GatedFigure.SPEED: 0.30,
    GatedFigure.CYCLE: 0.20,
    GatedFigure.NO_DRAFT: 0.10,
}
QUALITY_BUDGET = 0.10


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
    before: float | None
    now: float | None
    change: float | None
    low: float | None
    high: float | None
    p_value: float | None
    level: float | None
    text: str


@dataclass(frozen=True)
class Judgement:
    """Tonight against an earlier night; ``before`` None: there is nothing to compare with."""

    now: Night
    before: Night | None
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]

    @property
    def regressions(self) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if f.verdict is Verdict.REGRESSION)


def judge(
    now: Night, before: Night | None, policy: Policy, history: History | None = None
) -> Judgement:
    """Every gate of one cell."""
    if before is None:
        return Judgement(now, None, (), ("no good night of this series to compare with",))
    found, refused = changes(now, before, history)
    levels = _levels(found, before.pick, policy)
    findings = [_finding(c, levels[c.figure, c.candidate], policy) for c in found]
    findings += [_not_judged(str(r.figure), r.candidate, r.reason) for r in refused]
    findings += _quality(now, before, policy)
    return Judgement(now, before, tuple(findings), tuple(_notes(now, before)))


def _notes(now: Night, before: Night) -> Iterator[str]:
    for name, identity in now.engines.items():
        earlier = before.engines.get(name)
        if earlier is not None and earlier.digest != identity.digest:
            yield f"engine {name}: {earlier.build} then, {identity.build} now"
    if now.recipe_sha256 != before.recipe_sha256:
        yield "the recipe is not the same text as then"
    if now.pick != before.pick:
        yield f"pick: {before.pick or 'none'} then, {now.pick or 'none'} now"
    gone = [c.name for c in before.candidates if now.column(c.name) is None]
    if gone:
        yield f"not measured tonight: {', '.join(gone)}"


def _levels(
    found: Sequence[Change], pick: str | None, policy: Policy
) -> dict[tuple[GatedFigure, str], float]:
    levels: dict[tuple[GatedFigure, str], float] = {}
    budget = policy.false_alarms / policy.cells
    for figure, share in BUDGET.items():
        names = [c.candidate for c in found if c.figure is figure]
        others = [n for n in names if n != pick]
        for name in names:
            part = 1.0
            if pick in names and others:
                part = 0.5 if name == pick else 0.5 / len(others)
            elif name != pick:
                part = 1.0 / len(others)
            levels[figure, name] = budget * share * part
    return levels


def _tolerance(figure: GatedFigure, policy: Policy) -> float:
    """In the change's own units: a share for acceptance, a log ratio for the rest."""
    if figure is GatedFigure.ACCEPTANCE:
        return policy.acceptance_points / 100
    if figure is GatedFigure.NO_DRAFT:
        return -math.log1p(-policy.no_draft_percent / 100)
    return -math.log1p(-policy.speed_percent / 100)


def _finding(change: Change, level: float, policy: Policy) -> Finding:
    better = change.figure.sign * change.change
    freedom = change.freedom
    if change.error > 0:
        p_value = student_upper(abs(better) / change.error, freedom)
    else:
        p_value = 0.0 if better else 0.5
    if change.permutation is not None:
        p_value = max(p_value, change.permutation / 2)
    real = abs(better) >= _tolerance(change.figure, policy) and p_value <= level
    verdict = Verdict.SAME
    if real:
        verdict = Verdict.REGRESSION if better < 0 else Verdict.IMPROVEMENT
    elif not change.fires(level):
        verdict = Verdict.NOT_JUDGED
    reach = student_quantile((1 + CONFIDENCE) / 2, freedom) * change.error
    bounds = (change.change, change.change - reach, change.change + reach)
    points = change.figure is GatedFigure.ACCEPTANCE
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
        return f"{change.before:.3f}x to {change.now:.3f}x no draft"
    return f"{change.before:.2f} to {change.now:.2f} undrafted tokens a cycle"


def _quality(now: Night, before: Night, policy: Policy) -> list[Finding]:
    pairs = [
        (mine, theirs)
        for mine in now.drafts
        for theirs in before.drafts
        if mine.quant == theirs.quant
    ]
    if not pairs:
        return []
    level = policy.false_alarms / policy.cells * QUALITY_BUDGET / (2 * len(pairs))
    findings: list[Finding] = []
    for mine, theirs in pairs:
        findings += _perplexity(mine, theirs, policy, level)
        findings += _kld(mine, theirs, policy, level)
        findings += _size(mine, theirs, policy)
    return findings


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
        low=None,
        high=None,
        p_value=None,
        level=None,
        text=f"{size(theirs.file_bytes)} to {size(mine.file_bytes)}, {percent:+.2f} %",
    )


def _not_judged(gate: str, subject: str, reason: str) -> Finding:
    return Finding(
        gate, subject, Verdict.NOT_JUDGED, None, None, None, None, None, None, None, reason
    )
