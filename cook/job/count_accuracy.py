"""Whose counts a replay does not give, and how far off those are that it gives: between shapes of a
batch, and of n-grams next to their live servers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from cook.formats.quant_types import Flavour
from cook.job.forecast import Forecaster
from cook.record.record import CandidateKey, PromptRun, RecountOutcome
from cook.scoring.ngram import NgramRequest, NgramServer
from cook.scoring.simulate import Simulation, simulate
from cook.steps.deal import Dealt
from cook.steps.head_replay import broken_head, guessed_without
from cook.steps.live import WARM_UP_TOKENS
from cook.steps.replay import ngram_request


def unfit(forecaster: Forecaster) -> dict[str, str]:
    """Drafts that are dropped, each with the reason: broken heads, and drafts whose own context
    does not hold every text with a draft behind it. There the engine drops the text's
    beginning, or its whole cache, which no replay of whole texts tells
    (docs/internals/engines.md#the-context-of-a-draft)."""
    found: dict[str, str] = {}
    heads = [(one, forecaster.outcomes.result(one.replay)) for one in forecaster.plan.heads]
    if any(outcome is not None for _, outcome in heads):
        guessed = guessed_without(r.tokens[: r.head.emitted] for r in forecaster.trace)
        for head, outcome in heads:
            if outcome and (why := broken_head(outcome.right, outcome.drafts, guessed)):
                found[head.draft.name] = why
    own = [d.draft for d in forecaster.plan.drafts if d.draft.context is not None]
    if not own:
        return found
    longest = max(forecaster.trace.heads, key=lambda head: head.prompt_tokens)
    drafted = max(settings.n_max for settings in forecaster.plan.settings)
    needed = longest.prompt_tokens + forecaster.plan.n_predict + drafted
    for draft in own:
        if draft.context is not None and draft.context < needed:
            found[draft.name] = (
                f"its context of {draft.context} tokens does not hold {longest.id} with its "
                f"reply and a draft, {needed} tokens: what it forgets only `method: live` tells"
            )
    return found


def acceptance_floor(forecaster: Forecaster, only: Collection[str]) -> float | None:
    """Standard deviation of the floor draft's acceptance between one pass and token by token.

    At the longest draft, on the prompts ``only`` (ids); None where it was not replayed twice.
    """
    plan, floor = forecaster.plan, forecaster.plan.floor
    if floor is None or forecaster.outcomes.result(floor.replay) is None:
        return None
    usual = next(d for d in plan.drafts if d.curve == floor.curve)
    both = [forecaster.texts(draft) for draft in (usual, floor)]
    longest = replace(max(plan.settings, key=lambda s: s.n_max), p_min=0.0)
    shapes = []
    for texts in both:
        shared = [texts[id] for id in only if all(id in each for each in both)]
        runs = [simulate(text, longest, plan.profile) for text in shared]
        shapes.append([(run.draft_n, run.draft_n_accepted) for run in runs])
    return acceptance_deviation(*shapes) if shapes[0] else None


def acceptance_deviation(
    usual: Sequence[tuple[int, int]], other: Sequence[tuple[int, int]]
) -> float | None:
    """Standard deviation of acceptance, a fraction, between two counts of the same requests.

    (drafted, accepted) by request, in one order. Near ties fall otherwise in another batch shape,
    here and there on every request: the root of the sum of squares of what each moves the rate by.
    None where nothing was drafted.
    """
    drafted, accepted = np.sum(usual, axis=0)
    if not drafted:
        return None
    more = np.array(other) - np.array(usual)
    moved = (more[:, 1] - more[:, 0] * accepted / drafted) / drafted
    return float(np.sqrt((moved**2).sum()))


def rival_counts(key: CandidateKey, dealt: Dealt, forecaster: Forecaster) -> RecountOutcome | None:
    """Whether the simulated counts of live requests are the server's.

    Requests are simulated in the order in which each server got them, its warm-up first; with a
    draft behind, those are counted whose reply is the trace's, since that is what the draft was
    replayed on. None where no server returned its tokens, as ik's does not, or none is so.
    """
    assert key.ngram is not None, "asked of n-grams only"
    rounds = list(dealt.outcomes(forecaster.outcomes.result))
    known = [r for r in rounds if r.warm_up is not None and all(run.tokens for run in r.runs)]
    if not known:
        return None
    plan, trace = forecaster.plan, forecaster.trace
    draft = next((d for d in plan.every if plan.is_of(d, key)), None)
    seen = forecaster.texts(draft) if draft is not None else {}
    limits = {"n_predict": plan.n_predict, "context": plan.context}
    eog = frozenset(trace.header.eog)
    pairs: list[tuple[PromptRun, Simulation]] = []
    for outcome in known:
        assert outcome.warm_up is not None, "chosen so"
        server = NgramServer(key.ngram, Flavour(plan.engine.flavour))
        prompt, reply = (np.array(ids, np.int32) for ids in outcome.warm_up)
        server.answer(NgramRequest(prompt, reply, len(reply), eog, WARM_UP_TOKENS, plan.context))
        for run in outcome.runs:
            recorded = trace.reply(run.id)
            tokens = np.array(run.tokens, np.int32)
            request = ngram_request(trace, recorded, **limits)
            same = np.array_equal(tokens, recorded.tokens[: recorded.head.emitted])
            if key.settings is not None and run.id in seen and same:
                pairs.append((run, server.answer(request, seen[run.id], key.settings)))
                continue
            # With a draft behind, it learns from the reply all the same.
            simulated = server.answer(replace(request, tokens=tokens, reply=len(tokens)))
            if key.settings is None:
                pairs.append((run, simulated))
    if not pairs:
        return None
    return RecountOutcome(
        requests=len(pairs),
        exact=sum(
            run.counted == (simulated.draft_n, simulated.draft_n_accepted)
            for run, simulated in pairs
        ),
        live_drafted=sum(run.counted[0] for run, _ in pairs),
        live_accepted=sum(run.counted[1] for run, _ in pairs),
        replay_drafted=sum(simulated.draft_n for _, simulated in pairs),
        replay_accepted=sum(simulated.draft_n_accepted for _, simulated in pairs),
        passed_over=sum(len(r.runs) for r in rounds) - len(pairs),
    )
