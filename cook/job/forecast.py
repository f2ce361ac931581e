"""Replays and measured times made into forecasts: arithmetic over artifacts, nothing is run.

One forecaster serves `cook build`, `cook score` and `cook predict`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from cook.engines.base import UBATCH, DraftSettings
from cook.formats.quant_types import Flavour
from cook.formats.trace_file import ReplyHead, TraceFile
from cook.graph.execute import Outcomes
from cook.job.layout import DraftForecast, ForecastPlan, Rival
from cook.record.prompt_runs import PromptRun
from cook.record.record import CandidateKey
from cook.scoring.link import Link, behind
from cook.scoring.ngram import NgramServer
from cook.scoring.price import BatchCurve, Forecast, Timings, forecast, with_prompt_time_separated
from cook.scoring.simulate import Positions, Simulation, plain_steps, simulate
from cook.steps.curve import CurveOutcome, CurveStep
from cook.steps.replay import ngram_request, replies
from cook.steps.trace import TRACE_FILE

ReplayedReply = tuple[ReplyHead, Positions]
SteppedReply = tuple[ReplyHead, Simulation]
UNPRICED = Timings(
    verify=BatchCurve((0,), (1,), ((1.0,),), typed=True),
    draft=BatchCurve((0,), (1,), ((1e-9,),), typed=True),
)
"""Every target step costs the same and drafting nothing: ranks by acceptance length alone."""


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
    rivals: dict[Rival, list[SteppedReply]] = field(default_factory=dict)
    """What rivals would have drafted, for the same reason."""
    behind: dict[tuple[str, Rival, DraftSettings, int], list[SteppedReply]] = field(
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
        rival; ``only`` on the prompts of these ids. Nothing where no draft and no rival is left:
        then there is nothing to be compared with."""
        plan, alone = self.plan, self.baseline_timings()
        if alone is None:
            return []
        wanted = {h.id for h in self.trace.heads} if only is None else set(only)
        found: list[Forecast] = []
        for draft in plan.drafts:
            timings = self.timings(draft)
            if timings is not None and len(self.texts(draft, wanted)) == len(wanted):
                found += [self.of_draft(draft, s, timings, wanted) for s in plan.settings]
        if not found and (plan.drafts or not plan.rivals):
            return []
        plain = [(h, plain_steps(h.emitted)) for h in self.trace.heads if h.id in wanted]
        bare = CandidateKey(plan.engine.name)
        rivals = [
            forecast(
                rival.key(plan.engine),
                rival.name,
                [reply for reply in self.of_rival(rival) if reply[0].id in wanted],
                rival.settings.longest,
                alone,
                plan.profile,
            )
            for rival in plan.rivals
        ]
        return [forecast(bare, plan.no_draft, plain, 0, alone, plan.profile), *found, *rivals]

    def of_draft(
        self,
        draft: DraftForecast,
        settings: DraftSettings,
        timings: Timings,
        wanted: Collection[str] | None = None,
        after: Rival | None = None,
    ) -> Forecast:
        """``draft`` under ``settings``; behind n-grams where it is laid out so, or ``after``."""
        first, plan = after or draft.draft.after, self.plan
        key, name = plan.key(draft, settings), plan.name(draft, settings)
        if after is not None:
            key, name = replace(key, ngram=after.settings), f"{after.name}, then {name}"
        if first is None:
            replies = [
                (head, simulate(text, settings, plan.profile))
                for head, text in self.texts(draft, wanted)
            ]
            return forecast(key, name, replies, settings.n_max, timings, plan.profile)
        behind = [
            reply
            for reply in self.behind_ngrams(draft, first, settings)
            if wanted is None or reply[0].id in wanted
        ]
        longest = max(first.settings.longest, settings.n_max)
        return forecast(key, name, behind, longest, timings, plan.profile)

    def behind_ngrams(
        self, draft: DraftForecast, rival: Rival, settings: DraftSettings
    ) -> list[SteppedReply]:
        """``draft`` behind ``rival``, of one server that answers all that was replayed so far."""
        texts = {head.id: text for head, text in self.texts(draft)}
        key = draft.replay.key, rival, settings, len(texts)
        if key not in self.behind:
            self.behind[key] = self._served(rival, texts, settings)
        return self.behind[key]

    def acceptance_floor(self, only: Collection[str]) -> float | None:
        """Standard deviation of the floor draft's acceptance between two batch shapes, a fraction.

        At the longest draft; None where it was not replayed twice.
        """
        floor = self.plan.floor
        if floor is None or self.outcomes.result(floor.replay) is None:
            return None
        usual = next(d for d in self.plan.drafts if d.curve == floor.curve)
        shared = {name for name in only if floor.replay.wants(name)}
        longest = replace(max(self.plan.settings, key=lambda s: s.n_max), p_min=0.0)
        shapes = []
        for draft in (usual, floor):
            runs = [simulate(p, longest, self.plan.profile) for _, p in self.texts(draft, shared)]
            shapes.append([(r.draft_n, r.draft_n_accepted) for r in runs])
        return acceptance_deviation(*shapes)

    def with_prompt_time_separated(
        self, key: CandidateKey, live: Sequence[PromptRun]
    ) -> tuple[PromptRun, ...]:
        """The live requests of a candidate, as requests of every engine are counted."""
        draft = next((d for d in self.plan.drafts if self.plan.is_of(d, key)), None)
        timings = self.timings(draft) if draft is not None else None
        return tuple(with_prompt_time_separated(run, timings, self.plan.profile) for run in live)

    def timings(self, draft: DraftForecast) -> Timings | None:
        """What steps with ``draft`` cost; None where it could not be timed. :data:`UNPRICED` where
        no times are asked for."""
        if not self.priced:
            return UNPRICED
        target = self.curve(self.plan.verify)
        mine = self.curve(draft.curve)
        verify = target.batches if target is not None else self.verify
        batches = mine.batches if mine is not None else self.draft
        if verify is None or batches is None:
            return None
        prefill = self.prompts(draft.curve)
        return Timings(
            verify=verify,
            draft=self.over_link(batches),
            target_sample_s=target.sample_s if target else 0.0,
            draft_sample_s=mine.sample_s if mine else 0.0,
            target_prefill=self.prompts(self.plan.verify),
            draft_prefill=self.over_link(prefill) if prefill else None,
        )

    def over_link(self, curve: BatchCurve, rows: int = 1) -> BatchCurve:
        """``curve`` of a draft's batches behind the link, if there is one; ``rows`` of logits."""
        if self.link is None:
            return curve
        return behind(curve, self.link, self.trace.header.vocabulary_size, rows)

    def baseline_timings(self) -> Timings | None:
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
            target_prefill=self.prompts(self.plan.plain),
        )

    def curve(self, step: CurveStep | None) -> CurveOutcome | None:
        """What was timed, if it was."""
        return self.outcomes.result(step) if step is not None else None

    def prompts(self, step: CurveStep | None) -> BatchCurve | None:
        """What reading a prompt takes, in the batches that the model reads it in, if timed."""
        timed = self.curve(step)
        if step is None or timed is None:
            return None
        return timed.prompts(step.args.ubatch or UBATCH)

    def texts(
        self, draft: DraftForecast, wanted: Collection[str] | None = None
    ) -> list[ReplayedReply]:
        """The replies as ``draft`` sees them, for drafts of every length; none where its replay
        has not run."""
        replay = draft.replay
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
        found = self.read.get(replay.key, [])
        return [text for text in found if wanted is None or text[0].id in wanted]

    def of_rival(self, rival: Rival) -> list[SteppedReply]:
        """The replies as one server of ``rival`` writes them."""
        if rival not in self.rivals:
            self.rivals[rival] = self._served(rival)
        return self.rivals[rival]

    def _served(
        self,
        rival: Rival,
        texts: Mapping[str, Positions] | None = None,
        settings: DraftSettings | None = None,
    ) -> list[SteppedReply]:
        """What one server of ``rival`` does with the trace, in its order; with ``texts`` of a draft
        with these, that draft behind it."""
        plan, trace = self.plan, self.trace
        server = NgramServer(rival.settings, Flavour(plan.engine.flavour))
        served = []
        for reply in trace:
            request = ngram_request(trace, reply, n_predict=plan.n_predict, context=plan.context)
            if texts is None or settings is None:
                served.append((reply.head, server.answer(request)))
            elif reply.head.id in texts:
                text = texts[reply.head.id]
                served.append((reply.head, server.answer(request, text, settings)))
        return served


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
