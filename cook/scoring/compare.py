"""Figures of requests, and candidates compared that were dealt the same prompts at the same moment.

Two formulas. A candidate's figure is a ratio of sums over requests, tokens over seconds; against no
draft, on the requests that both had,

    m = ln(sum n / sum t) - ln(sum n0 / sum t0)                          (what is measured)

and where it was dealt only some of the prompts, m is moved by what its forecast says that all
prompts differ by from those. Its error on these prompts is that of timing alone, since counts are
exact: of K server starts, each with requests of its own,

    var(m) = s**2 / K,   s: deviation of a start's figure from what the machine did to all alike

with s as in :func:`known_start` before it shows (docs/internals/scoring.md#deciding). How a figure
would differ on *other* prompts of the kind is :func:`interval`, kept apart from this.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Generic, TypeVar

import numpy as np

from cook.errors import InternalError
from cook.formats.arrays import Floats
from cook.record.record import Figures, Interval, Objective, PromptFigures, PromptRun

K = TypeVar("K", bound=Hashable)

START, APART, TURN = 0.005, 0.008, 0.022
"""Standard deviation of the log speed between starts of one server, until it is measured: alive at
once, in several turns or nights, and in one turn each (docs/internals/scoring.md#deciding)."""
START_FREEDOM = 1
FITTED = 3
"""Numbers that are fitted to a candidate's requests where it has no forecast."""
FORECAST = 0.02
"""Standard deviation of a forecast's log speedup between drafts, until live runs show it."""
SETTING = 0.01
"""The same between settings of one draft, which are priced by the same curves, over a trend:"""
LENGTH = 0.05
"""Standard deviation of what such errors grow by with ln(1 + drafted tokens a cycle), of all drafts
alike: between lengths 5 and 12 forecasts of the demo were 2 to 7 % off (bench/results)."""
FORECAST_FREEDOM = 4
DRAWS = 8_000
FEWEST_PROMPTS = 8
"""Below this many prompts nothing is said of how sure a figure is."""
SEED = 20_260_101
METHOD = "linearized ratio of sums by category, with server starts"


@dataclass(frozen=True)
class Row(Generic[K]):
    """One candidate: its forecast requests on all prompts and the live ones that it was dealt.

    ``file`` names what settings of one draft share. Either of both may be empty.
    """

    key: K
    file: Hashable
    forecast: tuple[PromptRun, ...] = ()
    live: tuple[PromptRun, ...] = ()


@dataclass(frozen=True)
class Standings(Generic[K]):
    """Who is fastest on these prompts, by log figures over no draft's.

    ``value``: of every candidate, from live requests (moved to all prompts where no draft was dealt
    some only) or else its forecast; ``chance`` of being the best; ``within`` of being at most the
    margin worse than the best. ``leader``: the best of those that ran. ``rival``: the candidate
    most likely to be more than the margin better than the leader, and ``low`` to ``high`` how it
    compares, a log ratio at the confidence asked for.
    ``start_sd``: of one start's log figure, its requests included.
    """

    leader: K
    value: dict[K, float]
    chance: dict[K, float]
    within: dict[K, float]
    rival: K | None
    low: float
    high: float
    start_sd: float

    def decided(self, confidence: float) -> bool:
        """Whether no other candidate is better than the leader by more than the margin."""
        return self.within[self.leader] >= confidence


def common(a: Sequence[PromptRun], b: Sequence[PromptRun]) -> list[tuple[PromptRun, PromptRun]]:
    """Requests of both on the same prompt in the same block."""
    other = {(run.id, run.block): run for run in b}
    return [(run, other[run.id, run.block]) for run in a if (run.id, run.block) in other]


def sides(pairs: Sequence[tuple[PromptRun, PromptRun]]) -> tuple[list[PromptRun], list[PromptRun]]:
    """The first of each pair, and the second."""
    return [one for one, _ in pairs], [other for _, other in pairs]


def log_ratio(
    a: Sequence[PromptRun],
    b: Sequence[PromptRun],
    objective: Objective,
    weights: Mapping[str, float] | None = None,
) -> float | None:
    """Log of the figure of ``a`` over that of ``b``; None where either has none."""
    mine, theirs = (ratio(side, objective, weights) for side in (a, b))
    return math.log(mine / theirs) if mine and theirs else None


def interval(
    a: Sequence[PromptRun],
    b: Sequence[PromptRun],
    objective: Objective,
    weights: Mapping[str, float] | None,
    confidence: float,
    about: float | None = None,
) -> Interval | None:
    """Of the figure of ``a`` over that of ``b`` on other prompts of the kind: 1.05 is 5 % better.

    ``about``: the log ratio that it surrounds, where :func:`paired` moved it to other prompts.

    Prompts are clusters and categories are strata (Cochran 1977, Sampling Techniques, 6.11, for a
    ratio of two such ratios); server starts come on top. None with too few prompts.
    """
    mine, theirs = sides(pairs := common(a, b))
    log = about if about is not None else log_ratio(mine, theirs, objective, weights)
    if log is None:
        return None
    each: dict[str, float] = {}
    shares = (_shares(runs, objective, weights) for runs in (mine, theirs))
    for run, one, other in zip(mine, *shares, strict=True):
        each[run.id] = each.get(run.id, 0.0) + one - other
    if len(each) < FEWEST_PROMPTS:
        return None
    categories = {run.id: run.category for run in mine}
    variance, freedom = clustered_variance(list(each.values()), [categories[id] for id in each])
    if objective.timed:
        variance += 2 * known_start(pairs) ** 2 / len({run.block for run in mine})
    reach = student_quantile(0.5 + confidence / 2, freedom) * math.sqrt(variance)
    return Interval(math.exp(log - reach), math.exp(log + reach), confidence, METHOD)


def known_start(pairs: Sequence[tuple[PromptRun, PromptRun]]) -> float:
    """:data:`START`, or where one came after the other in every block, the one for turns."""
    orders: dict[int, list[tuple[int, int]]] = {}
    for one, other in pairs:
        orders.setdefault(one.block, []).append((one.order, other.order))
    blocks = [zip(*each, strict=True) for each in orders.values()]
    if not blocks or not all(max(a) < min(b) or max(b) < min(a) for a, b in blocks):
        return START
    return TURN if len(blocks) == 1 else APART


def _shares(
    runs: Sequence[PromptRun], objective: Objective, weights: Mapping[str, float] | None
) -> Floats:
    """What each request adds to the log figure: its numerator's share less its denominator's."""
    parts = _parts(runs, objective) * np.array(request_weights(runs, weights))[:, None]
    return np.asarray((parts / parts.sum(axis=0)) @ [1.0, -1.0])


def _parts(runs: Sequence[PromptRun], objective: Objective) -> Floats:
    """(numerator, denominator) of requests that have them [n, 2]."""
    return np.array([p for run in runs if (p := objective.parts(run)) is not None]).reshape(-1, 2)


def clustered_variance(values: Sequence[float], categories: Sequence[str]) -> tuple[float, int]:
    """Of the sum of ``values``, one a prompt, and its degrees of freedom: prompts are clusters,
    categories are strata, which are taken as one where one of them has a single prompt."""
    counts = Counter(categories)
    pooled = min(counts.values()) < 2
    groups: dict[str, list[float]] = {}
    for value, category in zip(values, categories, strict=True):
        groups.setdefault("" if pooled else category, []).append(value)
    variance = sum(len(g) * float(np.var(g, ddof=1)) for g in groups.values())
    return variance, len(values) - len(groups)


def standings(
    rows: Sequence[Row[K]],
    base: K,
    objective: Objective,
    *,
    weights: Mapping[str, float] | None = None,
    margin: float = 0.01,
    confidence: float = 0.95,
    acceptance_sd: float = 0.0,
) -> Standings[K] | None:
    """Who is best of ``rows``, judged against every one of them; None where no row has a figure.

    ``base``: no draft, which has a row. ``acceptance_sd``: of a count's logarithm between batch
    shapes, for objectives that are counts, which live runs do not change.
    """
    zero = next(row for row in rows if row.key == base)
    measured: dict[K, tuple[float, float]] = {}
    dealt = {run.id for run in zero.live}
    asked = [*zero.live, *(run for run in zero.forecast if run.id not in dealt)]
    if objective.timed:
        start_sd, freedom = _start_noise(rows, zero, objective)
        for row in rows:
            log = paired(row, zero, objective, weights, asked)
            if log is not None:
                measured[row.key] = log, math.sqrt(_live_variance(row, zero, objective, start_sd))
        value, draws = _guesses(rows, zero, measured, freedom, objective, weights, asked)
    else:
        start_sd, rng = acceptance_sd, np.random.default_rng(SEED)
        counted = {row.key: row.forecast or row.live for row in rows}
        each = {k: objective.of(figures(runs, weights)) for k, runs in counted.items() if runs}
        value = {key: math.log(found) for key, found in each.items() if found}
        draws = {key: v + start_sd * rng.normal(size=DRAWS) for key, v in value.items()}
    if not value:
        return None
    keys = list(value)
    logs = np.array([draws[key] for key in keys])
    leader = max([key for key in keys if key in measured] or keys, key=lambda key: value[key])
    gain = logs - logs[keys.index(leader)]
    within = (logs >= logs.max(axis=0) - math.log1p(margin)).mean(axis=1)
    chance = np.bincount(logs.argmax(axis=0), minlength=len(keys)) / DRAWS
    ahead = (gain > math.log1p(margin)).mean(axis=1)
    others = [i for i, key in enumerate(keys) if key != leader]
    rival = max(others, key=lambda i: (ahead[i], value[keys[i]]), default=None)
    low = high = 0.0
    if rival is not None:
        tail = (1 - confidence) / 2
        low, high = (float(q) for q in np.quantile(gain[rival], [tail, 1 - tail]))
    return Standings(
        leader=leader,
        value=value,
        chance=dict(zip(keys, chance.tolist(), strict=True)),
        within=dict(zip(keys, within.tolist(), strict=True)),
        rival=keys[rival] if rival is not None else None,
        low=low,
        high=high,
        start_sd=start_sd,
    )


def paired(
    row: Row[K],
    base: Row[K],
    objective: Objective,
    weights: Mapping[str, float] | None = None,
    asked: Sequence[PromptRun] | None = None,
) -> float | None:
    """Log of a candidate's live figure over no draft's on the same requests, moved to requests as
    ``asked`` (None: all of no draft) by what the forecast says that they differ by from the
    candidate's; None where either has no such figure."""
    mine, theirs = sides(common(row.live, base.live))
    found = log_ratio(mine, theirs, objective, weights)
    there, whole = (
        forecast_of(row, base, runs, objective, weights)
        for runs in (mine, base.live if asked is None else asked)
    )
    if found is None or there is None or whole is None:
        return found
    return found + whole - there


def forecast_of(
    row: Row[K],
    base: Row[K],
    asked: Sequence[PromptRun],
    objective: Objective,
    weights: Mapping[str, float] | None = None,
) -> float | None:
    """Log of a candidate's forecast figure over no draft's on requests as ``asked``, where a prompt
    that was dealt twice counts twice; None where either has none."""
    said, bare = ({run.id: run for run in one.forecast} for one in (row, base))
    ids = [run.id for run in asked if run.id in said and run.id in bare]
    return log_ratio([said[id] for id in ids], [bare[id] for id in ids], objective, weights)


def _live_variance(row: Row[K], base: Row[K], objective: Objective, start_sd: float) -> float:
    """Of a log figure over no draft's, on these prompts: by server starts, and by requests whose
    two replies differ, since there the text is chance as well."""
    mine, theirs = sides(common(row.live, base.live))
    variance = start_sd**2 / len({run.block for run in mine})
    a, b = _parts(mine, objective), _parts(theirs, objective)
    if (a <= 0).any() or (b <= 0).any():
        return variance
    logs = np.log(a[:, 0] / a[:, 1]) - np.log(b[:, 0] / b[:, 1])
    share = b[:, 1] / b[:, 1].sum()
    texts = ([run.tokens or run.text for run in side] for side in (mine, theirs))
    apart = np.array([one != other for one, other in zip(*texts, strict=True)])
    return variance + float((apart * (share * (logs - share @ logs)) ** 2).sum())


def _guesses(
    rows: Sequence[Row[K]],
    base: Row[K],
    measured: Mapping[K, tuple[float, float]],
    freedom: int,
    objective: Objective,
    weights: Mapping[str, float] | None,
    asked: Sequence[PromptRun],
) -> tuple[dict[K, float], dict[K, Floats]]:
    """(log figure over no draft's, draws of what it may be) of every candidate that has one.

    A candidate that did not run is its forecast, moved by what the forecasts of other settings of
    its file were off by, or else of all drafts, and as uncertain as these were; so is the trend of
    these errors with the length of drafts (least squares, with :data:`LENGTH` known before).
    """
    rng = np.random.default_rng(SEED)
    forecast: dict[K, float] = {}
    lengths = {row.key: _log_length(row.forecast) for row in rows}
    errors: dict[Hashable, list[tuple[float, float]]] = {}
    for row in rows:
        log = forecast_of(row, base, asked, objective, weights)
        if log is not None:
            forecast[row.key] = log
            if row.key in measured and row is not base:
                error = measured[row.key][0] - log, lengths[row.key]
                errors.setdefault(row.file, []).append(error)
    means: dict[Hashable, Floats] = {f: np.mean(each, axis=0) for f, each in errors.items()}
    apart = [np.subtract(each, means[file]) for file, each in errors.items()]
    inner, longer = np.concatenate([np.zeros((0, 2)), *apart]).T
    known = float(longer @ longer) + (SETTING / LENGTH) ** 2
    trend = float(longer @ inner) / known
    setting = _pooled(SETTING, inner - trend * longer, len(inner) - len(means))
    trends = setting / math.sqrt(known) * rng.standard_t(FORECAST_FREEDOM, DRAWS)
    usual = np.array([0.0, fmean(lengths.values())])
    if means:
        usual = np.mean(list(means.values()), axis=0)
    between = np.array([mean[0] - usual[0] for mean in means.values()])
    of_file: dict[Hashable, Floats] = dict.fromkeys(means, np.zeros(DRAWS))
    value: dict[K, float] = {}
    draws: dict[K, Floats] = {}
    for row in rows:
        key = row.key
        if key in measured:
            value[key], sd = measured[key]
            draws[key] = value[key] + sd * rng.standard_t(freedom, DRAWS)
        elif key in forecast and row is base:
            value[key], draws[key] = forecast[key], np.full(DRAWS, forecast[key])
        elif key in forecast:
            error, length = means.get(row.file, usual)
            longer = lengths[key] - length
            value[key] = forecast[key] + error + trend * longer
            draws[key] = value[key] + setting * rng.standard_t(FORECAST_FREEDOM, DRAWS)
            if row.file not in of_file:
                file_sd = _pooled(FORECAST, between, len(means) - 1)
                of_file[row.file] = file_sd * rng.standard_t(FORECAST_FREEDOM, DRAWS)
            draws[key] += trends * longer + of_file[row.file]
    return value, draws


def _log_length(runs: Sequence[PromptRun]) -> float:
    """ln(1 + drafted tokens a cycle); 0 of no draft."""
    cycles = sum(run.cycles or 0 for run in runs)
    return math.log1p(sum(run.draft_n or 0 for run in runs) / cycles) if cycles else 0.0


def _pooled(known: float, errors: Floats, freedom: int) -> float:
    """Standard deviation by ``errors`` and by what is ``known`` before."""
    squares = FORECAST_FREEDOM * known**2 + float(errors @ errors)
    return math.sqrt(squares / (FORECAST_FREEDOM + max(freedom, 0)))


def _start_noise(rows: Sequence[Row[K]], base: Row[K], objective: Objective) -> tuple[float, int]:
    """(standard deviation of one start's log figure, its degrees of freedom), by what requests took
    beyond what their counts explain, next to no draft's on the same prompt, less what all
    candidates of the prompt have in common. Starts that differ by more than known count alone."""
    ran = [row for row in rows if row.live]
    enough = [row for row in ran if len(row.live) >= FEWEST_PROMPTS]
    # In a few requests noise cannot be separated from what they ask.
    each = [_unexplained(row, base, objective) for row in (enough if len(enough) > 1 else ran)]
    places = sorted({place for one in each for place in one})
    errors = np.array([[one.get(place, np.nan) for place in places] for one in each])
    shared = np.isfinite(errors).sum(axis=0) > 1 if places else np.zeros(0, bool)
    if not shared.any():
        return START, START_FREEDOM
    errors, blocks = errors[:, shared], np.array([block for _, block in places])[shared]
    errors = errors - np.nanmean(errors, axis=0)
    requests_freedom = np.isfinite(errors).sum() - len(blocks) - FITTED * (len(each) - 1)
    requests = float(np.nansum(errors**2) / max(requests_freedom, 1))
    known = max(known_start(common(row.live, base.live)) for row in ran)
    expected = known**2 + requests / (len(blocks) / len(set(blocks.tolist())))
    squares, freedom = 0.0, 1 - len(each)
    for block in set(blocks.tolist()):
        cells = errors[:, blocks == block]
        means = np.nanmean(cells[np.isfinite(cells).any(axis=1)], axis=1)
        squares, freedom = squares + float(means @ means), freedom + len(means) - 1
    if freedom < 1:  # one start each, which says nothing of others
        return math.sqrt(expected), 60
    variance = (START_FREEDOM * expected + squares) / (START_FREEDOM + freedom)
    return math.sqrt(max(variance, squares / freedom)), START_FREEDOM + freedom


def _unexplained(row: Row[K], base: Row[K], objective: Objective) -> dict[tuple[str, int], float]:
    """By prompt and block, the log of a request's time over no draft's, less what their counts
    explain: by the forecasts of both where there are such, or else least squares of that ratio on
    steps, drafted tokens and 1. The mean over requests is taken out."""
    mine, theirs = sides(common(row.live, base.live))
    times, other = (_parts(side, objective)[:, 1] for side in (mine, theirs))
    if not mine or (times <= 0).any() or (other <= 0).any():
        return {}
    said = [{run.id: run for run in one.forecast} for one in (row, base)]
    known = [_parts([one[r.id] for r in mine if r.id in one], objective)[:, 1] for one in said]
    ratios, explained = times / other, np.ones(len(mine))
    if all(len(one) == len(mine) and (one > 0).all() for one in known):
        explained = known[0] / known[1]
    elif len(mine) >= 2 * FITTED + 2:
        plain = np.array([max(run.predicted_n - 1, 1) for run in theirs])
        steps = np.array([a.predicted_n - 1 if a.cycles is None else a.cycles for a in mine])
        drafted = np.array([run.draft_n or 0 for run in mine])
        design = np.array([steps / plain, drafted / plain, np.ones(len(mine))]).T
        solution, *_ = np.linalg.lstsq(design, ratios, rcond=None)
        explained = np.maximum(design @ solution, 0.05)
    errors = np.log(ratios / explained)
    centred = (errors - errors.mean()).tolist()
    return {(run.id, run.block): error for run, error in zip(mine, centred, strict=True)}


@functools.cache
def student_quantile(p: float, freedom: int) -> float:
    """Quantile of Student's t for p in (0.5, 1), by bisection of the exact distribution."""
    low, high = 0.0, math.pi / 2  # of the angle whose tangent is t / sqrt(freedom)
    for _ in range(60):
        middle = (low + high) / 2
        # P(-t < T < t), t = sqrt(freedom) tan(angle): Abramowitz and Stegun 26.7.3 and 26.7.4.
        sine, cosine = math.sin(middle), math.cos(middle)
        odd = freedom % 2
        term, total = (cosine if odd else 1.0), 0.0
        for k in range(2 + odd, freedom + 1, 2):
            total += term
            term *= cosine**2 * (k - 1) / k
        if (1 + ((middle + sine * total) * 2 / math.pi if odd else sine * total)) / 2 < p:
            low = middle
        else:
            high = middle
    return math.sqrt(freedom) * math.tan(high)


def request_weights(runs: Sequence[PromptRun], weights: Mapping[str, float] | None) -> list[float]:
    """What each request counts for: 1, or its category's weight over the tokens of that category,
    so that a speed is the harmonic mean of the categories' (0 where these have no tokens)."""
    if not weights:
        return [1.0] * len(runs)
    tokens: Counter[str] = Counter()
    for run in runs:
        tokens[run.category] += run.predicted_n - 1
    share = {name: weights.get(name, 1.0) / count for name, count in tokens.items() if count}
    return [share.get(run.category, 0.0) for run in runs]


def ratio(
    runs: Sequence[PromptRun], objective: Objective, weights: Mapping[str, float] | None = None
) -> float | None:
    """``objective`` of ``runs``, a speed in tokens a millisecond: a ratio of sums over requests.
    None where a request has no such figure (no draft has no acceptance), or nothing counts."""
    top = bottom = 0.0
    for run, weight in zip(runs, request_weights(runs, weights), strict=True):
        part = objective.parts(run)
        if part is None:
            return None
        top, bottom = top + weight * part[0], bottom + weight * part[1]
    return top / bottom if bottom > 0 else None


def figures(runs: Sequence[PromptRun], weights: Mapping[str, float] | None = None) -> Figures:
    """Figures over ``runs``; ratios weighted by category where ``weights`` are given."""
    if not runs:
        raise InternalError("figures over no requests")
    tokens = sum(r.predicted_n - 1 for r in runs)
    drafting = [r for r in runs if r.draft_n is not None]
    moved = [r.draft_prompt_ms for r in runs if r.draft_prompt_ms is not None]
    accepted = sum(r.draft_n_accepted or 0 for r in drafting) if drafting else None
    speeds = [ratio(runs, o, weights) for o in (Objective.DECODE_SPEED, Objective.END_TO_END_SPEED)]
    decode, whole = (1000 * speed if speed else None for speed in speeds)
    counts = [
        ratio(drafting, o, weights) if weights else None
        for o in (Objective.ACCEPTANCE, Objective.ACCEPTANCE_LENGTH)
    ]
    return Figures(
        requests=len(runs),
        prompt_tokens=sum(r.prompt_n for r in runs),
        tokens=tokens,
        decode_ms=sum(r.predicted_ms for r in runs),
        wall_ms=sum(r.wall_ms for r in runs),
        drafted=sum(r.draft_n or 0 for r in drafting) if drafting else None,
        accepted=accepted,
        cycles=tokens - accepted if accepted is not None else None,
        decode_speed=decode,
        end_to_end_speed=whole,
        weighted_acceptance_rate=counts[0],
        weighted_acceptance_length=counts[1],
        prompt_ms=sum(r.prompt_ms for r in runs),
        draft_prompt_ms=sum(moved) if moved else None,
    )


def by_category(runs: Sequence[PromptRun]) -> dict[str, Figures]:
    """Figures of each category, in the order of first appearance."""
    groups: dict[str, list[PromptRun]] = {}
    for run in runs:
        groups.setdefault(run.category, []).append(run)
    return {category: figures(group) for category, group in groups.items()}


def by_prompt(runs: Sequence[PromptRun], *, live: bool = False) -> PromptFigures:
    """The counts and times of each request, times to the microsecond; ``live`` ones with their
    block, their order in it, and their server's start."""
    starts = {block: place for place, block in enumerate(dict.fromkeys(r.block for r in runs))}
    return PromptFigures(
        ids=tuple(r.id for r in runs),
        categories=tuple(r.category for r in runs),
        tokens=tuple(r.predicted_n - 1 for r in runs),
        decode_ms=tuple(round(r.predicted_ms, 3) for r in runs),
        wall_ms=tuple(round(r.wall_ms, 3) for r in runs),
        drafted=tuple(r.draft_n for r in runs),
        accepted=tuple(r.draft_n_accepted for r in runs),
        prompt_ms=tuple(round(r.prompt_ms, 3) for r in runs),
        block=tuple(r.block for r in runs) if live else (),
        order=tuple(r.order for r in runs) if live else (),
        start=tuple(starts[r.block] for r in runs) if live else (),
    )
