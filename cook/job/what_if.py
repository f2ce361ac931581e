"""What else a replay says: other sampling chains, rejection sampling, n-grams before a draft, and
drafting in parallel. None of it decides anything."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from cook.engines.worker.messages import Replay
from cook.errors import InputError
from cook.formats.sampling import Sampling
from cook.formats.trace_file import Reply
from cook.job.forecast import Forecaster
from cook.job.layout import DraftForecast, Rival
from cook.record.record import CandidateKey, ChainFigures, Rejection, SampledChain
from cook.scoring.compare import by_prompt, figures
from cook.scoring.parallel import ParallelSpeed, dsi, pearl
from cook.scoring.price import Forecast
from cook.scoring.sampled import SampledPrediction, predict_sampled
from cook.steps.replay import expected_reply, replayed, sampled_reply
from cook.steps.trace import TraceStep


@dataclass(frozen=True)
class ChainExpectation:
    """A draft of ``n_max`` tokens under a sampling chain, on the text of the trace.

    (lower, upper) end of what was stored, by the engine's rule and by rejection sampling.
    """

    sampling: Sampling
    n_max: int
    engine: tuple[SampledPrediction, SampledPrediction]
    rejection: tuple[SampledPrediction, SampledPrediction]


def chain_forecast(
    forecaster: Forecaster,
    chain: TraceStep,
    ids: Collection[str],
    weights: Mapping[str, float] | None,
) -> SampledChain:
    """No draft and every draft, at its best setting, on what the target wrote under ``chain``, on
    the prompts ``ids``. Empty, with the reason, where there is no forecast."""
    engine = forecaster.plan.engine.name
    there = replace(forecaster, plan=forecaster.plan.on(chain))
    try:
        best: dict[tuple[str | None, str | None], Forecast] = {}
        for one in there.forecasts(ids):
            file = (one.key.draft, one.key.cache_type)
            if file not in best or _speed(one) > _speed(best[file]):
                best[file] = one
        drawn = rejection(there, ids)
    except InputError as error:  # its replies go on farther than anything was timed
        return SampledChain(engine, chain.sampling, (), error.message)
    if not best:
        return SampledChain(engine, chain.sampling, (), "nothing could be replayed")
    found = tuple(
        ChainFigures(
            one.name,
            one.key,
            figures(one.runs, weights),
            by_prompt(one.runs),
            drawn.get(one.key),
        )
        for one in best.values()
    )
    return SampledChain(engine, chain.sampling, found)


def _speed(one: Forecast) -> float:
    return one.figures.end_to_end_speed or 0.0


def rejection(
    forecaster: Forecaster, only: Collection[str] | None = None
) -> dict[CandidateKey, Rejection]:
    """Every setting without p_min and n_min, were it verified by rejection sampling.

    Empty for a greedy trace, where the two rules are one.
    """
    plain = [s for s in forecaster.plan.settings if not s.p_min and not s.n_min]
    return {
        forecaster.plan.key(draft, settings): Rejection(
            one.draft_n, one.draft_n_accepted, one.cycles, one.decode_tokens_per_s
        )
        for draft in forecaster.plan.drafts
        if draft.draft.after is None and forecaster.timings(draft) is not None
        for settings, one in zip(
            plain, sampled_speeds(forecaster, draft, [s.n_max for s in plain], only), strict=False
        )
    }


def _seen(forecaster: Forecaster, draft: DraftForecast) -> Iterator[tuple[Reply, Replay]]:
    """Every reply of the trace with the replay of ``draft``; none where that has not run."""
    if forecaster.outcomes.result(draft.replay) is not None:
        artifact = forecaster.outcomes.artifact(draft.replay)
        yield from replayed(draft.replay, forecaster.trace, artifact)


def sampled_speeds(
    forecaster: Forecaster,
    draft: DraftForecast,
    lengths: Sequence[int],
    only: Collection[str] | None = None,
) -> list[SampledPrediction]:
    """``draft`` at every one of ``lengths``, verified by rejection sampling; none where the
    trace is greedy or nothing was replayed by a worker."""
    trace = forecaster.trace
    if not trace.header.sampler.temperature:
        return []
    chances = [
        chance
        for reply, seen in _seen(forecaster, draft)
        if only is None or reply.head.id in only
        if (chance := sampled_reply(trace, reply, seen)) is not None
    ]
    timings = forecaster.timings(draft) if forecaster.priced else None
    profile = forecaster.plan.profile
    return [predict_sampled(chances, n, timings, profile) for n in lengths if chances]


def chain_expectations(
    forecaster: Forecaster, draft: DraftForecast, sampling: Sampling, lengths: Sequence[int]
) -> list[ChainExpectation]:
    """``draft`` at every one of ``lengths`` under ``sampling``, by what was stored of the
    trace's own text; none where too little was stored."""
    trace = forecaster.trace
    found = [
        one
        for reply, seen in _seen(forecaster, draft)
        if (one := expected_reply(trace, reply, seen, sampling.applied())) is not None
    ]
    timings = forecaster.timings(draft) if forecaster.priced else None
    profile = forecaster.plan.profile

    def ends(n_max: int, rule: str) -> tuple[SampledPrediction, SampledPrediction]:
        low, high = (
            predict_sampled(replies, n_max, timings, profile)
            for replies in zip(*(getattr(one, rule) for one in found), strict=True)
        )
        return low, high

    return [
        ChainExpectation(sampling, n, ends(n, "engine"), ends(n, "rejection"))
        for n in lengths
        if found
    ]


def forecasts_after(forecaster: Forecaster, draft: DraftForecast, rival: Rival) -> list[Forecast]:
    """``rival`` first and ``draft`` wherever that has nothing, under every setting; of one
    server that answers the whole trace. None without the draft's times."""
    if forecaster.timings(draft) is None or len(forecaster.texts(draft)) < len(forecaster.trace):
        return []
    return [forecaster.of_draft(draft, s, after=rival) for s in forecaster.plan.settings]


def parallel_speeds(
    forecaster: Forecaster, draft: DraftForecast, lengths: Sequence[int]
) -> tuple[ParallelSpeed, ...]:
    """PEARL and DSI with ``draft``; none where no times are known."""
    timings, texts = forecaster.timings(draft), forecaster.texts(draft)
    if not forecaster.priced or timings is None:
        return ()
    weights = [head.weight for head in forecaster.trace.heads if head.id in texts]
    replies = list(texts.values())
    return pearl(replies, weights, lengths, timings), dsi(replies, weights, timings)
