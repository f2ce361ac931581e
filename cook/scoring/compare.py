"""Comparing candidates that were dealt the same prompts at the same moment.

Two formulas. A candidate's figure is a ratio of sums over requests, tokens over seconds; against no
draft, on the requests that both had,

    m = ln(sum n / sum t) - ln(sum n0 / sum t0)                          (what is measured)

and where it was dealt only some of the prompts, m is moved by what its forecast says that all
prompts differ by from those. Its error on these prompts is that of timing alone, since counts are
exact: of K server starts, each with requests of its own,

    var(m) = s**2 / K,   s: deviation of a start's figure from what the machine did to all alike

with s known as :data:`START` before it shows (docs/internals/scoring.md#deciding). How a figure
would differ on *other* prompts of the kind is :func:`interval`, kept apart from this.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from cook.formats.arrays import Floats
from cook.record.measured import Interval
from cook.record.objective import Objective
from cook.record.prompt_runs import PromptRun
from cook.scoring.figures import figures
from cook.scoring.student import student_quantile

K = TypeVar("K", bound=Hashable)

START = 0.008
"""Standard deviation of the log speed between starts of one server, until it is measured: memory
lands elsewhere each time. Pairs of starts measured 0.5 to 1.2 % (docs/internals/scoring.md)."""
START_FREEDOM = 1
FITTED = 3
"""Numbers that are fitted to a candidate's requests where it has no forecast."""
FEWEST_STARTS = 3
"""Starts of a configuration from which on the data say what a start does."""
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

    ``value``: of every candidate, from live requests or else its forecast; ``chance`` of being the
    best; ``within`` of being at most the margin worse than the best. ``leader``: the best of those
    that ran. ``rival``: the candidate most likely to be more than the margin better than the
    leader, and ``low`` to ``high`` how it compares, a log ratio at the confidence asked for.
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


def log_ratio(
    a: Sequence[PromptRun],
    b: Sequence[PromptRun],
    objective: Objective,
    weights: Mapping[str, float] | None = None,
) -> float | None:
    """Log of the figure of ``a`` over that of ``b``; None where either has none."""
    if not a or not b:
        return None
    mine, theirs = (objective.of(figures(runs, weights)) for runs in (a, b))
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
    pairs = common(a, b)
    if not pairs:
        return None
    mine, theirs = [x for x, _ in pairs], [y for _, y in pairs]
    ratio = log_ratio(mine, theirs, objective, weights)
    shares, others = (_shares(runs, objective, weights) for runs in (mine, theirs))
    if ratio is None or shares is None or others is None:
        return None
    each: dict[str, float] = {}
    stratum: dict[str, str] = {}
    for run, one, other in zip(mine, shares, others, strict=True):
        each[run.id] = each.get(run.id, 0.0) + one - other
        stratum[run.id] = run.category
    if len(each) < FEWEST_PROMPTS:
        return None
    variance, freedom = clustered_variance(list(each.values()), list(stratum.values()))
    if objective.timed:
        variance += 2 * START**2 / len({run.block for run in mine})
    reach = student_quantile(0.5 + confidence / 2, freedom) * math.sqrt(variance)
    ratio = ratio if about is None else about
    return Interval(math.exp(ratio - reach), math.exp(ratio + reach), confidence, METHOD)


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


def _shares(
    runs: Sequence[PromptRun], objective: Objective, weights: Mapping[str, float] | None
) -> list[float] | None:
    """What each request adds to the log figure: its numerator's share less its denominator's."""
    parts = [objective.parts(run) for run in runs]
    if any(part is None for part in parts):
        return None
    tokens: dict[str, float] = {}
    for run in runs:
        tokens[run.category] = tokens.get(run.category, 0.0) + run.predicted_n - 1
    weight = [
        1.0 if weights is None else weights.get(r.category, 1.0) / max(tokens[r.category], 1.0)
        for r in runs
    ]
    top = [w * part[0] for w, part in zip(weight, parts, strict=True) if part is not None]
    bottom = [w * part[1] for w, part in zip(weight, parts, strict=True) if part is not None]
    if sum(top) <= 0 or sum(bottom) <= 0:
        return None
    return [t / sum(top) - b / sum(bottom) for t, b in zip(top, bottom, strict=True)]


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
    noise = (
        _Noise.of(rows, zero, objective)
        if objective.timed
        else _Noise(acceptance_sd, 60, counts=True)
    )
    measured = {
        row.key: found
        for row in rows
        if objective.timed and row.live
        if (found := _measured(row, zero, objective, weights, noise)) is not None
    }
    forecast = {
        row.key: said
        for row in rows
        if (said := _forecast(row, zero, objective, weights)) is not None
    }
    rng = np.random.default_rng(SEED)
    value, draws = _guesses(rows, base, measured, forecast, noise, rng)
    if not value:
        return None
    keys = list(value)
    logs = np.array([draws[key] for key in keys])
    best = logs.max(axis=0)
    ran = [key for key in keys if key in measured] or keys
    leader = max(ran, key=lambda key: value[key])
    lead = logs[keys.index(leader)]
    within = (logs >= best - math.log1p(margin)).mean(axis=1)
    chance = np.bincount(logs.argmax(axis=0), minlength=len(keys)) / logs.shape[1]
    ahead = (logs - lead > math.log1p(margin)).mean(axis=1)
    others = [i for i, key in enumerate(keys) if key != leader]
    rival = max(others, key=lambda i: (ahead[i], value[keys[i]]), default=None)
    low = high = 0.0
    if rival is not None:
        tail = (1 - confidence) / 2
        low, high = (float(q) for q in np.quantile(logs[rival] - lead, [tail, 1 - tail]))
    return Standings(
        leader=leader,
        value=value,
        chance={key: float(p) for key, p in zip(keys, chance, strict=True)},
        within={key: float(p) for key, p in zip(keys, within, strict=True)},
        rival=keys[rival] if rival is not None else None,
        low=low,
        high=high,
        start_sd=noise.start_sd,
    )


def paired(
    row: Row[K], base: Row[K], objective: Objective, weights: Mapping[str, float] | None = None
) -> float | None:
    """Log of a candidate's live figure over no draft's on the same requests, moved to all prompts
    that no draft was dealt by what the forecast says that they differ by from those of the
    candidate; None where either has no such figure."""
    pairs = common(row.live, base.live)
    mine, theirs = [x for x, _ in pairs], [y for _, y in pairs]
    found = log_ratio(mine, theirs, objective, weights)
    if found is None:
        return None
    said = []
    for ids in ({run.id for run in mine}, {run.id for run in base.live}):
        one, other = ([run for run in r.forecast if run.id in ids] for r in (row, base))
        said.append(log_ratio(one, other, objective, weights))
    there, whole = said
    return found + whole - there if there is not None and whole is not None else found


def _measured(
    row: Row[K],
    base: Row[K],
    objective: Objective,
    weights: Mapping[str, float] | None,
    noise: _Noise,
) -> tuple[float, float] | None:
    """(log figure over no draft's, its standard deviation on these prompts)."""
    found = paired(row, base, objective, weights)
    if found is None:
        return None
    pairs = common(row.live, base.live)
    variance = noise.start_sd**2 / len({mine.block for mine, _ in pairs})
    if row.key != base.key:
        variance += _text_variance(pairs, objective)
    return found, math.sqrt(variance)


def _off_forecast(row: Row[K], base: Row[K], objective: Objective) -> Floats | None:
    """By pair of requests, log of the time ratio to no draft's over that forecast; None where
    either has no forecast of some prompt."""
    pairs = common(row.live, base.live)
    said = [{run.id: objective.parts(run) for run in one.forecast} for one in (row, base)]
    errors = []
    for mine, other in pairs:
        four = [objective.parts(mine), objective.parts(other)]
        four += [each.get(mine.id) for each in said]
        times = [part[1] for part in four if part is not None and part[1] > 0]
        if len(times) < 4:
            return None
        errors.append(math.log(times[0] / times[1]) - math.log(times[2] / times[3]))
    return np.array(errors)


def _text_variance(pairs: Sequence[tuple[PromptRun, PromptRun]], objective: Objective) -> float:
    """Of a log ratio, by requests whose two replies differ: there the text is chance as well."""
    parts = [(objective.parts(a), objective.parts(b)) for a, b in pairs]
    known = [(one, other) for one, other in parts if one is not None and other is not None]
    if len(known) < len(pairs):
        return 0.0
    a, b = (np.array(side) for side in zip(*known, strict=True))
    if (a <= 0).any() or (b <= 0).any():
        return 0.0
    logs = np.log(a[:, 0] / a[:, 1]) - np.log(b[:, 0] / b[:, 1])
    share = b[:, 1] / b[:, 1].sum()
    apart = np.array([_text(x) != _text(y) for x, y in pairs])
    return float((apart * (share * (logs - share @ logs)) ** 2).sum())


def _text(run: PromptRun) -> object:
    return run.tokens if run.tokens is not None else run.text


def _forecast(
    row: Row[K], base: Row[K], objective: Objective, weights: Mapping[str, float] | None
) -> float | None:
    """Log figure over no draft's, on the prompts that no draft was dealt, if any; of counts, which
    no draft has none of, the log figure itself."""
    if objective.timed:
        dealt = {run.id for run in base.live}
        mine, theirs = (
            [run for run in one.forecast if not dealt or run.id in dealt] for one in (row, base)
        )
        return log_ratio(mine, theirs, objective, weights)
    runs = row.forecast or row.live
    value = objective.of(figures(runs, weights)) if runs else None
    return math.log(value) if value else None


def _guesses(
    rows: Sequence[Row[K]],
    base: K,
    measured: Mapping[K, tuple[float, float]],
    forecast: Mapping[K, float],
    noise: _Noise,
    rng: np.random.Generator,
) -> tuple[dict[K, float], dict[K, Floats]]:
    """(log figure, draws of what it may be) of every candidate that has one.

    A candidate that did not run is its forecast, moved by what the forecasts of other settings of
    its file were off by, or else of all drafts, and as uncertain as these were; so is the trend of
    these errors with the length of drafts (least squares, with :data:`LENGTH` known before).
    """
    sizes = {row.key: _log_length(row.forecast) for row in rows}
    off = {key: m - forecast[key] for key, (m, _) in measured.items() if key in forecast}
    of_file: dict[Hashable, list[float]] = {}
    lengths: dict[Hashable, list[float]] = {}
    for row in rows:
        if row.key in off and row.key != base:
            of_file.setdefault(row.file, []).append(off[row.key])
            lengths.setdefault(row.file, []).append(sizes[row.key])
    means = {file: float(np.mean(each)) for file, each in of_file.items()}
    usual = {file: float(np.mean(each)) for file, each in lengths.items()}
    apart = np.array([x - usual[file] for file, each in lengths.items() for x in each])
    inner = np.array([x - means[file] for file, each in of_file.items() for x in each])
    known = float(apart @ apart) + (SETTING / LENGTH) ** 2
    trend = float(apart @ inner) / known if len(inner) else 0.0
    setting = _pooled(SETTING, list(inner - trend * apart), len(inner) - len(means))
    trends = trend + setting / math.sqrt(known) * rng.standard_t(FORECAST_FREEDOM, DRAWS)
    middle_size = float(np.mean([*usual.values()] or [*sizes.values()]))
    middle = float(np.mean(list(means.values()))) if means else 0.0
    between = _pooled(FORECAST, [m - middle for m in means.values()], len(means) - 1)
    shared: dict[Hashable, Floats] = {}
    value: dict[K, float] = {}
    draws: dict[K, Floats] = {}
    for row in rows:
        if row.key in measured:
            value[row.key], sd = measured[row.key]
            draws[row.key] = value[row.key] + sd * rng.standard_t(noise.freedom, DRAWS)
        elif row.key in forecast:
            value[row.key] = forecast[row.key]
            if not measured and noise.start_sd and not off and row.key == base:
                draws[row.key] = np.full(DRAWS, value[row.key])
                continue
            if noise.counts:
                draws[row.key] = value[row.key] + noise.start_sd * rng.normal(size=DRAWS)
                continue
            beyond = sizes[row.key] - usual.get(row.file, middle_size) if row.key != base else 0.0
            value[row.key] += means.get(row.file, middle) + trend * beyond
            error = setting * rng.standard_t(FORECAST_FREEDOM, DRAWS) + (trends - trend) * beyond
            if row.file not in means:
                if row.file not in shared:
                    shared[row.file] = between * rng.standard_t(FORECAST_FREEDOM, DRAWS)
                error = error + shared[row.file]
            draws[row.key] = value[row.key] + error
    return value, draws


def _log_length(runs: Sequence[PromptRun]) -> float:
    """ln(1 + drafted tokens a cycle); 0 of no draft."""
    cycles = sum(run.cycles or 0 for run in runs)
    return math.log1p(sum(run.draft_n or 0 for run in runs) / cycles) if cycles else 0.0


def _pooled(known: float, errors: Sequence[float], freedom: int) -> float:
    """Standard deviation by ``errors`` and by what is ``known`` before."""
    squares = FORECAST_FREEDOM * known**2 + sum(e * e for e in errors)
    return math.sqrt(squares / (FORECAST_FREEDOM + max(freedom, 0)))


@dataclass(frozen=True)
class _Noise:
    """``start_sd`` of one start's log figure, by ``freedom`` degrees of freedom; ``counts``: of an
    objective that no clock measures."""

    start_sd: float
    freedom: int
    counts: bool = False

    @classmethod
    def of(cls, rows: Sequence[Row[K]], base: Row[K], objective: Objective) -> _Noise:
        """By what requests took beyond what their counts explain, next to no draft's on the same
        prompt, less what all candidates of the prompt have in common."""
        ran = [row for row in rows if row.live]
        errors = {row.key: _unexplained(row, base, objective) for row in ran}
        fitted = {row.key: errors[row.key] for row in ran if len(row.live) >= FEWEST_PROMPTS}
        if len(fitted) > 1:  # in a few requests noise cannot be separated from what they ask
            errors = fitted
        cells: dict[tuple[str, int], dict[K, float]] = {}
        for key, each in errors.items():
            for place, error in each.items():
                cells.setdefault(place, {})[key] = error
        blocks: dict[int, list[dict[K, float]]] = {}
        requests, request_freedom = 0.0, 0.0
        for (_, block), cell in cells.items():
            if len(cell) < 2:
                continue
            mean = sum(cell.values()) / len(cell)
            blocks.setdefault(block, []).append({k: e - mean for k, e in cell.items()})
            requests += sum((e - mean) ** 2 for e in cell.values())
            request_freedom += len(cell) - 1
        if not blocks:
            return cls(START, START_FREEDOM)
        request_freedom = max(request_freedom - FITTED * (len(errors) - 1), 1.0)
        size = float(np.mean([len(each) for each in blocks.values()]))
        expected = START**2 + requests / request_freedom / size
        if len(blocks) < FEWEST_STARTS:
            return cls(math.sqrt(expected), 60)
        squares, freedom = 0.0, 0
        for block_cells in blocks.values():
            keys = {key for one in block_cells for key in one}
            means = [np.mean([one[key] for one in block_cells if key in one]) for key in keys]
            squares += float(np.sum(np.square(means)))
            freedom += len(keys) - 1
        freedom = max(freedom - (len(errors) - 1), 1)
        variance = (START_FREEDOM * expected + squares) / (START_FREEDOM + freedom)
        if squares / freedom > variance:  # starts differ by more than is known: they have the word
            return cls(math.sqrt(squares / freedom), freedom + 1)
        return cls(math.sqrt(variance), START_FREEDOM + freedom)


def _unexplained(row: Row[K], base: Row[K], objective: Objective) -> dict[tuple[str, int], float]:
    """By prompt and block, the log of a request's time over no draft's, less what their counts
    explain: by the forecasts of both where there are such, or else least squares of that ratio on
    steps, drafted tokens and 1. The mean over requests is taken out."""
    pairs = common(row.live, base.live)
    error = _off_forecast(row, base, objective)
    if error is None:
        times = [(objective.parts(a), objective.parts(b)) for a, b in pairs]
        known = [(a[1], b[1]) for a, b in times if a is not None and b is not None]
        if not pairs or len(known) < len(pairs) or any(a <= 0 or b <= 0 for a, b in known):
            return {}
        ratio = np.array([a / b for a, b in known])
        plain = np.array([max(b.predicted_n - 1, 1) for _, b in pairs], dtype=np.float64)
        steps = np.array([a.predicted_n - 1 if a.cycles is None else a.cycles for a, _ in pairs])
        drafted = np.array([a.draft_n or 0 for a, _ in pairs])
        design = np.array([steps / plain, drafted / plain, np.ones(len(pairs))]).T
        explained = np.ones(len(pairs))
        if len(pairs) >= 2 * FITTED + 2:
            solution, *_ = np.linalg.lstsq(design, ratio, rcond=None)
            explained = np.maximum(design @ solution, 0.05)
        error = np.log(ratio) - np.log(explained)
    if not len(pairs):
        return {}
    error = error - error.mean()
    return {(run.id, run.block): float(e) for (run, _), e in zip(pairs, error, strict=True)}
