"""Counts for the record: what drafts accept in replay, and what n-grams' servers counted next to
what is simulated from their own tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from hashlib import sha256

import numpy as np

from cook.engines.base import DraftSettings
from cook.formats.quant_types import Flavour
from cook.graph.execute import Outcomes
from cook.job.forecast import Forecaster
from cook.job.layout import ForecastPlan
from cook.record.measured import ReplayedPrompts
from cook.record.outcomes import SelfCheckOutcome
from cook.record.prompt_runs import PromptRun
from cook.record.record import CandidateKey
from cook.scoring.ngram import NgramRequest, NgramServer
from cook.scoring.simulate import Simulation, simulate
from cook.steps.deal import Dealt
from cook.steps.live import WARM_UP_TOKENS, LiveOutcome
from cook.steps.replay import ngram_request

DIGITS = 16
"""Of a reply's SHA-256: enough to tell two texts of one prompt apart."""


def replayed(plans: Sequence[ForecastPlan], outcomes: Outcomes) -> Iterator[ReplayedPrompts]:
    """Every draft of which anything was replayed."""
    for plan in plans:
        forecaster = Forecaster(plan, outcomes)
        settings = DraftSettings(_length(plan))
        texts: dict[str, str] = {}
        for draft in plan.drafts:
            found = [
                (head, simulate(text, settings, plan.profile))
                for head, text in forecaster.texts(draft)
            ]
            if found and draft.draft.after is None:
                texts = texts or {
                    reply.head.id: sha256(reply.tokens.tobytes()).hexdigest()[:DIGITS]
                    for reply in forecaster.trace
                }
                yield ReplayedPrompts(
                    engine=plan.engine.name,
                    draft=draft.draft.name,
                    cache_type=draft.cache_type,
                    n_max=settings.n_max,
                    ids=tuple(head.id for head, _ in found),
                    categories=tuple(head.category for head, _ in found),
                    drafted=tuple(run.draft_n for _, run in found),
                    accepted=tuple(run.draft_n_accepted for _, run in found),
                    texts=tuple(texts[head.id] for head, _ in found),
                )


def _length(plan: ForecastPlan) -> int:
    """The middle one of the recipe's lengths."""
    lengths = sorted({settings.n_max for settings in plan.settings})
    return lengths[len(lengths) // 2]


def rival_counts(
    key: CandidateKey, dealt: Dealt, forecaster: Forecaster
) -> SelfCheckOutcome | None:
    """Whether the simulated counts of live requests are the server's.

    Requests are simulated in the order in which each server got them, its warm-up first; with a
    draft behind, those are counted whose reply is the trace's, since that is what the draft was
    replayed on. None where no server returned its tokens, as ik's does not, or none is so.
    """
    rounds = list(dealt.outcomes(forecaster.outcomes.result))
    known = [r for r in rounds if r.warm_up is not None and all(run.tokens for run in r.runs)]
    pairs = [pair for outcome in known for pair in _recounted(key, forecaster, outcome)]
    if not pairs:
        return None
    return SelfCheckOutcome(
        requests=len(pairs),
        exact=sum(
            (run.draft_n or 0, run.draft_n_accepted or 0)
            == (simulated.draft_n, simulated.draft_n_accepted)
            for run, simulated in pairs
        ),
        live_drafted=sum(run.draft_n or 0 for run, _ in pairs),
        live_accepted=sum(run.draft_n_accepted or 0 for run, _ in pairs),
        replay_drafted=sum(simulated.draft_n for _, simulated in pairs),
        replay_accepted=sum(simulated.draft_n_accepted for _, simulated in pairs),
        passed_over=sum(len(r.runs) for r in rounds) - len(pairs),
    )


def _recounted(
    key: CandidateKey, forecaster: Forecaster, outcome: LiveOutcome
) -> Iterator[tuple[PromptRun, Simulation]]:
    plan, trace = forecaster.plan, forecaster.trace
    assert key.ngram is not None, "asked of n-grams only"
    assert outcome.warm_up is not None, "chosen so"
    draft = next((d for d in plan.drafts if plan.is_of(d, key)), None)
    seen = {head.id: text for head, text in forecaster.texts(draft)} if draft else {}
    server = NgramServer(key.ngram, Flavour(plan.engine.flavour))
    prompt, reply = (np.array(ids, np.int32) for ids in outcome.warm_up)
    eog = frozenset(trace.header.eog)
    server.answer(NgramRequest(prompt, reply, len(reply), eog, WARM_UP_TOKENS, plan.context))
    for run in outcome.runs:
        recorded = trace.reply(run.id)
        tokens = np.array(run.tokens, np.int32)
        request = ngram_request(trace, recorded, n_predict=plan.n_predict, context=plan.context)
        if key.settings is None:
            yield run, server.answer(replace(request, tokens=tokens, reply=len(tokens)))
        elif run.id in seen and np.array_equal(tokens, recorded.tokens[: recorded.head.emitted]):
            yield run, server.answer(request, seen[run.id], key.settings)
        else:  # it learns from the reply all the same
            server.answer(replace(request, tokens=tokens, reply=len(tokens)))
