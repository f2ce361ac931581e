"""Replays and measured times made into forecasts: arithmetic over artifacts, nothing is run.

One forecaster serves `cook build`, `cook score` and `cook predict`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from cook.build.layout import DraftForecast, ForecastPlan, Rival, rival_key
from cook.engines.base import UBATCH, DraftSettings
from cook.formats.quant_types import Flavour
from cook.formats.trace_file import ReplyHead, TraceFile
from cook.graph.execute import Outcomes
from cook.record.prompt_runs import PromptRun
from cook.record.record import CandidateKey
from cook.scoring.link import Link, behind
from cook.scoring.ngram import NgramServer
from cook.scoring.price import (
    BatchCurve,
    PricedReplies,
    SimulatedReply,
    Timings,
    counted_alike,
    predict,
    priced,
)
from cook.scoring.simulate import Positions, Simulation, plain_steps, simulate
from cook.steps.curve import CurveOutcome, CurveStep
from cook.steps.replay import (
    ReplayStep,
    ngram_request,
    replies,
)
from cook.steps.trace import TRACE_FILE

ReplayedReply = tuple[ReplyHead, Positions]
RivalReply = tuple[ReplyHead, Simulation]
NO_DRAFT = DraftSettings(0)
UNPRICED = Timings(
    verify=BatchCurve((0,), (1,), ((1.0,),), typed=True),
    draft=BatchCurve((0,), (1,), ((1e-9,),), typed=True),
)
"""Every target step costs the same and drafting nothing: ranks by acceptance length alone."""


@dataclass(frozen=True)
class Forecast:
    """One candidate, predicted. ``runs`` are per prompt, in the same form as live requests.

    ``by_depth``: (drafted, accepted) at each place of a draft, from 1 on, over all replies.
    ``name`` is for people.
    """

    key: CandidateKey
    name: str
    priced: PricedReplies
    runs: tuple[PromptRun, ...]
    by_depth: tuple[tuple[int, int], ...] = ()

    @property
    def decode_speed(self) -> float:
        """Tokens after the first a second, over all replies."""
        tokens = sum(run.predicted_n - 1 for run in self.runs)
        return 1000 * tokens / sum(run.predicted_ms for run in self.runs)

    @property
    def end_to_end_speed(self) -> float:
        """The same tokens with the reading of the prompts."""
        tokens = sum(run.predicted_n - 1 for run in self.runs)
        return 1000 * tokens / sum(run.wall_ms for run in self.runs)


@dataclass(frozen=True)
class Forecaster:
    """Outcomes of a plan's steps turned into forecasts.

    ``verify`` and ``draft`` are times that were typed in the place of measured ones. ``link``: the
    drafts are on the other end of it, although they were timed here.
    """

    plan: ForecastPlan
    outcomes: Outcomes
    verify: BatchCurve | None = None
    draft: BatchCurve | None = None
    link: Link | None = None
    read: dict[str, list[ReplayedReply]] = field(default_factory=dict)
    """Replays read so far, by key: every forecast looks at all of them again."""
    rivals: dict[Rival, list[RivalReply]] = field(default_factory=dict)
    """What rivals would have drafted, for the same reason."""
    behind: dict[tuple[str, Rival, DraftSettings, int], list[RivalReply]] = field(
        default_factory=dict
    )
    """What drafts would have drafted behind n-grams, likewise, over so many replies."""

    @property
    def priced(self) -> bool:
        """Whether times are known, or asked for: without them forecasts only count."""
        return self.verify is not None or bool(self.plan.verify)

    def too_short(self) -> dict[str, str]:
        """Drafts whose own context does not hold every text with a draft behind it, each with the
        reason: there the engine drops the text's beginning, or its whole cache, which no replay of
        whole texts tells (docs/internals/engines.md#the-context-of-a-draft)."""
        own = [d.draft for d in self.plan.drafts if d.draft.context is not None]
        if not own:
            return {}
        longest = max(self.trace.heads, key=lambda head: head.prompt_tokens)
        drafted = max(settings.n_max for settings in self.plan.settings)
        needed = longest.prompt_tokens + self.plan.n_predict + drafted
        return {
            draft.name: f"its context of {draft.context} tokens does not hold {longest.id} with "
            f"its reply and a draft, {needed} tokens: what it forgets only `method: live` tells"
            for draft in own
            if draft.context is not None and draft.context < needed
        }

    @property
    def trace(self) -> TraceFile:
        return TraceFile(self.outcomes.artifact(self.plan.trace).file(TRACE_FILE))

    def forecasts(self, only: Collection[str] | None = None) -> list[Forecast]:
        """No draft, then every draft that was replayed and timed under every setting, then every
        rival; ``only`` on the prompts of these ids."""
        wanted = None if only is None else set(only)
        plan = self.plan
        forecasts: list[Forecast] = []
        alone = self.alone()
        if alone is None:
            return forecasts
        for draft in plan.drafts:
            timings = self.timings(draft)
            if timings is None:
                continue
            for settings in plan.settings:
                texts = self.texts(draft, wanted)
                if not texts or (wanted and len(texts) < len(wanted)):
                    break  # it failed
                if not forecasts:
                    bare = CandidateKey(plan.engine.name)
                    forecasts.append(self._forecast(bare, plan.no_draft, NO_DRAFT, texts, alone))
                key = plan.key(draft, settings)
                name = plan.name(draft, settings)
                first = draft.draft.after
                if first is None:
                    forecasts.append(self._forecast(key, name, settings, texts, timings))
                    continue
                shown = {head.id for head, _ in texts}
                behind = [r for r in self.behind_ngrams(draft, first, settings) if r[0].id in shown]
                longest = max(first.settings.longest, settings.n_max)
                forecasts.append(self.priced_replies(key, name, behind, longest, timings))
        if plan.rivals and not plan.drafts:
            forecasts.append(self._no_draft(wanted, alone))
        if forecasts:  # without no draft there is nothing to be compared with
            forecasts += [self._rival(rival, wanted, alone) for rival in plan.rivals]
        return forecasts

    def behind_ngrams(
        self, draft: DraftForecast, rival: Rival, settings: DraftSettings
    ) -> list[RivalReply]:
        """``draft`` behind ``rival``, of one server that answers all that was replayed so far."""
        plan, trace = self.plan, self.trace
        texts = {head.id: text for head, text in self.texts(draft)}
        key = draft.replays[0].key, rival, settings, len(texts)
        if key not in self.behind:
            server = NgramServer(rival.settings, Flavour(plan.engine.flavour))
            self.behind[key] = [
                (
                    reply.head,
                    server.answer(
                        ngram_request(trace, reply, n_predict=plan.n_predict, context=plan.context),
                        texts[reply.head.id],
                        settings,
                    ),
                )
                for reply in trace
                if reply.head.id in texts
            ]
        return self.behind[key]

    def acceptance_floor(self, only: Collection[str]) -> float | None:
        """Standard deviation of the floor draft's acceptance between two batch shapes, a fraction.

        At the longest draft; None where it was not replayed twice.
        """
        if self.plan.floor is None:
            return None
        draft, other = self.plan.floor
        shared = {name for name in only if other.wants(name)}
        if self.outcomes.result(other) is None:
            return None
        longest = replace(max(self.plan.settings, key=lambda s: s.n_max), p_min=0.0)
        shapes = []
        for replays in (draft.replays, (other,)):
            texts = self.texts(replace(draft, replays=replays), shared)
            runs = [simulate(p, longest, self.plan.profile) for _, p in texts]
            shapes.append([(r.draft_n, r.draft_n_accepted) for r in runs])
        return acceptance_deviation(*shapes)

    def counted_alike(self, key: CandidateKey, live: Sequence[PromptRun]) -> tuple[PromptRun, ...]:
        """The live requests of a candidate, as requests of every engine are counted."""
        draft = next((d for d in self.plan.drafts if self.plan.is_of(d, key)), None)
        timings = self.timings(draft) if draft is not None else None
        return tuple(counted_alike(run, timings, self.plan.profile) for run in live)

    def timings(self, draft: DraftForecast) -> Timings | None:
        """What steps with ``draft`` cost; None where it could not be timed. :data:`UNPRICED` where
        no times are asked for."""
        if not self.priced:
            return UNPRICED
        target = self.curve(self.plan.verify)
        mine = self.curve(draft.curves)
        verify = target.batches if target is not None else self.verify
        batches = mine.batches if mine is not None else self.draft
        if verify is None or batches is None:
            return None
        prefill = mine.prompts(_ubatch(draft.curves)) if mine else None
        return Timings(
            verify=verify,
            draft=self.afar(batches),
            target_sample_s=target.sample_s if target else 0.0,
            draft_sample_s=mine.sample_s if mine else 0.0,
            target_prefill=target.prompts(_ubatch(self.plan.verify)) if target else None,
            draft_prefill=self.afar(prefill) if prefill else None,
        )

    def afar(self, curve: BatchCurve, rows: int = 1) -> BatchCurve:
        """``curve`` of a draft's batches behind the link, if there is one; ``rows`` of logits."""
        if self.link is None:
            return curve
        return behind(curve, self.link, self.trace.header.vocabulary_size, rows)

    def alone(self) -> Timings | None:
        """What steps without a draft cost, with the arguments of no draft; None where they could
        not be timed."""
        if not self.priced:
            return UNPRICED.without_draft()
        mine = self.curve(self.plan.plain)
        verify = mine.batches if mine is not None else self.verify
        if verify is None:
            return None
        return Timings(
            verify=verify,
            target_sample_s=mine.sample_s if mine else 0.0,
            target_prefill=mine.prompts(_ubatch(self.plan.plain)) if mine else None,
        )

    def curve(self, timed: Sequence[CurveStep]) -> CurveOutcome | None:
        """What was timed, if it was."""
        return next((r for step in timed if (r := self.outcomes.result(step)) is not None), None)

    def texts(
        self, draft: DraftForecast, wanted: Collection[str] | None = None
    ) -> list[ReplayedReply]:
        """The replies as ``draft`` sees them, for drafts of every length."""
        return [
            text
            for replay in draft.replays
            for text in self._replayed(replay)
            if wanted is None or text[0].id in wanted
        ]

    def _replayed(self, replay: ReplayStep) -> list[ReplayedReply]:
        """All that ``replay`` holds; nothing where it has not run."""
        if replay.key not in self.read and self.outcomes.result(replay) is not None:
            self.read[replay.key] = list(
                replies(
                    replay,
                    self.outcomes.artifact(self.plan.trace),
                    self.outcomes.artifact(replay),
                    n_predict=self.plan.n_predict,
                    context=self.plan.context,
                )
            )
        return self.read.get(replay.key, [])

    def _forecast(
        self,
        key: CandidateKey,
        name: str,
        settings: DraftSettings,
        texts: Sequence[ReplayedReply],
        timings: Timings,
    ) -> Forecast:
        profile = self.plan.profile
        cost = predict(
            [p for _, p in texts],
            settings,
            timings,
            profile,
            categories=[head.category for head, _ in texts],
            weights=[head.weight for head, _ in texts],
        )
        replies = [(head, simulate(p, settings, profile)) for head, p in texts]
        return _forecast_of(key, name, cost, replies, settings.n_max)

    def _no_draft(self, wanted: Collection[str] | None, prices: Timings) -> Forecast:
        """No draft on the prompts ``wanted``, where no draft was replayed on them."""
        plan = self.plan
        replies = [
            (head, plain_steps(head.emitted))
            for head in self.trace.heads
            if wanted is None or head.id in wanted
        ]
        return self.priced_replies(
            CandidateKey(plan.engine.name), plan.no_draft, replies, 0, prices
        )

    def _rival(self, rival: Rival, wanted: Collection[str] | None, prices: Timings) -> Forecast:
        """A rival on the prompts ``wanted``, of one server that answers the whole trace."""
        replies = [
            (head, run)
            for head, run in self._simulated(rival)
            if wanted is None or head.id in wanted
        ]
        key = rival_key(self.plan.engine, rival)
        return self.priced_replies(key, rival.name, replies, rival.settings.longest, prices)

    def priced_replies(
        self,
        key: CandidateKey,
        name: str,
        replies: Sequence[RivalReply],
        longest: int,
        prices: Timings,
    ) -> Forecast:
        cost = priced(
            [SimulatedReply(run, head.prompt_tokens, head.emitted) for head, run in replies],
            DraftSettings(longest),
            prices,
            self.plan.profile,
            [head.category for head, _ in replies],
            [head.weight for head, _ in replies],
        )
        return _forecast_of(key, name, cost, replies, longest)

    def _simulated(self, rival: Rival) -> list[RivalReply]:
        if rival not in self.rivals:
            plan, trace = self.plan, self.trace
            server = NgramServer(rival.settings, Flavour(plan.engine.flavour))
            self.rivals[rival] = [
                (
                    reply.head,
                    server.answer(
                        ngram_request(trace, reply, n_predict=plan.n_predict, context=plan.context)
                    ),
                )
                for reply in trace
            ]
        return self.rivals[rival]


def _forecast_of(
    key: CandidateKey,
    name: str,
    cost: PricedReplies,
    replies: Sequence[RivalReply],
    longest: int,
) -> Forecast:
    """Simulated and priced replies in the form of live requests; ``longest`` 0: no draft."""
    runs = []
    depths = np.zeros((2, longest), dtype=np.int64)
    for (head, run), seconds, prefill in zip(replies, cost.per_reply_s, cost.prompt_s, strict=True):
        depths += np.array(run.by_depth(longest))
        runs.append(
            PromptRun(
                id=head.id,
                category=head.category,
                prompt_n=head.prompt_tokens,
                prompt_ms=prefill * 1000,
                predicted_n=head.emitted,
                predicted_ms=seconds * 1000,
                wall_ms=(prefill + seconds) * 1000,
                draft_n=run.draft_n if longest else None,
                draft_n_accepted=run.draft_n_accepted if longest else None,
                tokens=None,
                text="",
                stop="",
            )
        )
    by_depth = tuple((int(drafted), int(accepted)) for drafted, accepted in depths.T)
    return Forecast(key, name, cost, tuple(runs), by_depth)


def _ubatch(timed: Sequence[CurveStep]) -> int:
    """Tokens of a prompt that are read at once."""
    return timed[0].args.ubatch or UBATCH


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
