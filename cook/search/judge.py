"""The verdict: finalists on prompts that neither imatrix nor search has seen, paired by prompt.

The recipe's own quants, the engine's mixtures of the size, and the allocations by KLD and by
perplexity alone stand next to what the search found. Whoever has the most of what is sought is
returned, of those that are shown not to be worse than the recipe's own: a trial of
non-inferiority, in which the whole interval of the difference lies above the margin (Piaggio et
al., JAMA 2012). Where nothing passes it the recipe's own stays.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cook.record.record import Interval
from cook.record.search_record import Effect, Family, Finalist, ReplayedMix, SearchVerdict
from cook.scoring.compare import FEWEST_PROMPTS, clustered_variance, student_quantile
from cook.scoring.fits import LogSpread
from cook.search.evaluate import Replies

CONFIDENCE = 0.95
MARGIN = 0.01
"""Share of an acceptance length below which a difference is no matter."""
METHOD = "linearized ratio of sums by category, paired by prompt"


@dataclass(frozen=True, eq=False)
class Contender:
    """A mix in the final: ``types`` of its tensors, and what it did on the prompts of the verdict.

    ``cycle_s``: what its cycles took, measured, where speed is sought.
    """

    name: str
    family: Family
    types: Mapping[str, str]
    size_bytes: int
    replies: Replies
    cycle_s: float | None = None


@dataclass(frozen=True)
class Judged:
    """By name: the ``best``, which is returned; the ``leader``, which has the most, shown or not;
    and the best of those ``given`` (None where none fits)."""

    best: str
    leader: str
    given: str | None
    verdict: SearchVerdict
    sentence: str
    finalists: tuple[Finalist, ...]


def judge(
    contenders: Sequence[Contender], confidence: float, timing: LogSpread | None = None
) -> Judged:
    """Who is returned, and whether that is known to be better than the recipe given.

    ``timing``: how far the logarithm of a measured cycle may be off, each contender's alone.
    Too few prompts for an interval show nothing: then the recipe's own is returned.
    """
    own = [c for c in contenders if c.family == "given"]
    given = max(own, key=_value, default=None)
    finalists = [_finalist(c, given, confidence, timing) for c in contenders]
    stays = given.name if given is not None else None
    least = -MARGIN * _value(given) if given is not None else 0.0
    passed = [f for f in finalists if given is None or f.name == stays or _least(f) >= least]
    best, leader = (
        max(some, key=lambda f: (f.value, f.name == stays)) for some in (passed, finalists)
    )
    verdict: SearchVerdict = "tie"
    if given is None or _least(best) > 0:
        verdict = "found"
    elif best.name == leader.name == stays:
        gains = [f.gain.interval for f in finalists if f.family == "found" and f.gain is not None]
        if any(gain is not None and gain.high < 0 for gain in gains):  # shown to be worse
            verdict = "given"
    own_finalist = next((f for f in finalists if f.name == stays), None)
    sentence = _sentence(verdict, best, leader, own_finalist)
    return Judged(best.name, leader.name, stays, verdict, sentence, tuple(finalists))


def _value(contender: Contender) -> float:
    """What is sought of it: tokens a cycle, or a second."""
    return contender.replies.acceptance_length / (contender.cycle_s or 1.0)


def _least(finalist: Finalist) -> float:
    """The least that it may have over the recipe given; -inf where that is not known."""
    gain = finalist.gain
    return -math.inf if gain is None or gain.interval is None else gain.interval.low


def _finalist(
    one: Contender, given: Contender | None, confidence: float, timing: LogSpread | None
) -> Finalist:
    other = given if given is not one else None
    length = ("tokens", "cycles")
    against = speed = None
    if other is not None:
        against = effect(one.replies, other.replies, length, confidence)
        if one.cycle_s is not None and other.cycle_s is not None:
            cycles = one.cycle_s, other.cycle_s
            speed = effect(one.replies, other.replies, length, confidence, cycles, timing)
    return Finalist(
        name=one.name,
        family=one.family,
        size_bytes=one.size_bytes,
        types=dict(Counter(one.types.values())),
        replayed=replayed_mix(one.replies),
        acceptance_length=effect(one.replies, None, length, confidence).interval,
        against_given=against,
        decode_speed=_value(one) if one.cycle_s is not None else None,
        perplexity=math.exp(one.replies.mean_nll),
        speed_against_given=speed,
    )


def replayed_mix(replies: Replies) -> ReplayedMix:
    """Sums over all replies."""
    return ReplayedMix(
        prompts=len(replies.ids),
        drafted=int(replies.drafted.sum()),
        accepted=int(replies.accepted.sum()),
        cycles=int(replies.cycles.sum()),
        positions=int(replies.tokens.sum()),
        mean_kld=replies.mean_kld,
    )


def effect(
    one: Replies,
    other: Replies | None,
    parts: tuple[str, str],
    confidence: float,
    per: tuple[float, float] = (1.0, 1.0),
    timing: LogSpread | None = None,
) -> Effect:
    """What ``one`` has more than ``other`` (None: at all) of the ratio of sums of two columns.

    Prompts are clusters, categories are strata, and both are on the same prompts (Cochran 1977,
    Sampling Techniques, 6.11). ``per`` divides the two ratios: seconds a cycle, of whose logarithm
    ``timing`` is the error.
    """
    value, each, timing_variance = 0.0, 0.0 * one.tokens, 0.0
    for sign, replies, seconds in ((1, one, per[0]), (-1, other, per[1])):
        if replies is not None:
            top, bottom = (np.asarray(getattr(replies, part)) for part in parts)
            ratio = top.sum() / bottom.sum() / seconds
            value += sign * ratio
            each += sign * (top / seconds - ratio * bottom) / bottom.sum()
            timing_variance += (timing.sd * ratio) ** 2 if timing is not None else 0.0
    if len(one.ids) < FEWEST_PROMPTS:
        return Effect(float(value))
    prompts_variance, freedom = clustered_variance(each.tolist(), one.categories)
    variance = prompts_variance + timing_variance
    if timing is not None and variance > 0:  # Welch and Satterthwaite
        parts_of = prompts_variance**2 / freedom + timing_variance**2 / timing.freedom
        freedom = max(1, int(variance**2 / parts_of))
    reach = student_quantile(0.5 + confidence / 2, freedom) * math.sqrt(variance)
    interval = Interval(float(value - reach), float(value + reach), confidence, METHOD)
    return Effect(float(value), interval)


def _sentence(
    verdict: SearchVerdict, best: Finalist, leader: Finalist, given: Finalist | None
) -> str:
    """The verdict in words."""
    unit = "tokens a cycle" if best.decode_speed is None else "tokens/s"
    if given is None:
        return f"{best.name}: {best.value:.3f} {unit}; no quant of the recipe is so small"
    stays = f"{given.name} stays, at {given.value:.3f} {unit}"
    if verdict == "given":
        return f"{stays}: what was found is worse"
    if leader is given:
        return f"tie: {stays}: nothing that was found has more"
    shown = leader if best is given else best
    gain = shown.gain
    assert gain is not None, "it is not the one given"
    text = f"{gain.value:+.3f} {unit} against {given.name} ({given.value:.3f})"
    if gain.interval is not None:
        text += f", {gain.interval.low:+.3f} to {gain.interval.high:+.3f}"
    if best is given:
        return f"tie: {given.name} stays: {shown.name} has {text}, and may be {MARGIN:.0%} worse"
    if verdict == "tie":
        return f"tie: {shown.name} has {text}, which may be chance"
    return f"{shown.name} is better: {text}"
