"""Replays and measured times made into forecasts: arithmetic over artifacts, nothing is run.

One forecaster serves `cook build`, `cook score` and `cook predict`.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, field, replace

from cook.engines.base import DraftSettings
from cook.formats.quant_types import Flavour
from cook.job.layout import DraftForecast, HeadForecast, Rival
from cook.job.times import TimedPlan
from cook.record.record import CandidateKey
from cook.scoring.batch_curve import Timings
from cook.scoring.ngram import NgramServer
from cook.scoring.price import Forecast, forecast
from cook.scoring.simulate import NO_MODEL, Positions, Profile, Simulation, plain_steps, simulate
from cook.steps.head_replay import HeadReplayStep, head_replies
from cook.steps.replay import ngram_request, replies


@dataclass(frozen=True)
class Forecaster(TimedPlan):
    """Outcomes of a plan's steps turned into forecasts."""

    read: dict[str, dict[str, Positions]] = field(default_factory=dict)
    """Replays read so far, by key: every forecast looks at all of them again."""
    served: dict[Hashable, dict[str, Simulation]] = field(default_factory=dict)
    """What servers of n-grams would have drafted, for the same reason."""

    def forecasts(self, only: Collection[str] | None = None) -> list[Forecast]:
        """No draft, then every draft that was replayed and timed under every setting, then every
        rival; ``only`` on the prompts of these ids. Nothing where no draft and no rival is left:
        then there is nothing to be compared with."""
        plan, alone = self.plan, self.baseline_timings()
        if alone is None:
            return []
        heads = [h for h in self.trace.heads if only is None or h.id in only]
        found: list[Forecast] = []
        for draft in plan.every:
            replayed = self.texts(draft)
            if self.timings(draft) is not None and all(head.id in replayed for head in heads):
                asked = plan.settings_of(draft)
                found += [self.of_draft(draft, settings, only=only) for settings in asked]
        if not found and (plan.every or not plan.rivals):
            return []
        bare = {head.id: plain_steps(head.emitted) for head in heads}
        key = CandidateKey(plan.engine.name)
        rest = [self._priced(key, plan.no_draft, bare, 0, alone, only)]
        for rival in plan.rivals:
            key, steps = rival.key(plan.engine), self.of_server(rival)
            longest = rival.settings.longest
            rest.append(self._priced(key, rival.name, steps, longest, alone, only))
        return [rest[0], *found, *rest[1:]]

    def of_draft(
        self,
        draft: DraftForecast | HeadForecast,
        settings: DraftSettings,
        *,
        after: Rival | None = None,
        only: Collection[str] | None = None,
    ) -> Forecast:
        """``draft``, which was replayed and timed, under ``settings``; behind n-grams where it is
        laid out so, or ``after``."""
        plan, timings = self.plan, self.timings(draft)
        assert timings is not None, "it was timed"
        key, name = plan.key(draft, settings), plan.name(draft, settings)
        if after is not None:
            key, name = replace(key, ngram=after.settings), f"{after.name}, then {name}"
        first = after or draft.draft.after
        if first is not None:
            steps = self.of_server(first, draft, settings)
            longest = max(first.settings.longest, settings.n_max)
            return self._priced(key, name, steps, longest, timings, only)
        profile = plan.profile_of(draft)
        steps = {
            id: simulate(text, settings, profile)
            for id, text in self.texts(draft).items()
            if only is None or id in only
        }
        return self._priced(key, name, steps, settings.n_max, timings, only, profile)

    def _priced(
        self,
        key: CandidateKey,
        name: str,
        steps: Mapping[str, Simulation],
        longest: int,
        timings: Timings,
        only: Collection[str] | None,
        profile: Profile | None = None,
    ) -> Forecast:
        """``steps`` on every reply, or ``only`` of these; ``profile`` None: the plan's."""
        heads = (h for h in self.trace.heads if only is None or h.id in only)
        replies = [(head, steps[head.id]) for head in heads if head.id in steps]
        return forecast(key, name, replies, longest, timings, profile or self.plan.profile)

    def texts(self, draft: DraftForecast | HeadForecast) -> dict[str, Positions]:
        """The replies as ``draft`` sees them, by prompt, for drafts of every length; none where its
        replay has not run."""
        replay, outcomes = draft.replay, self.outcomes
        if replay.key not in self.read and replay.key in outcomes.artifacts:
            trace, artifact = outcomes.artifact(self.plan.trace), outcomes.artifact(replay)
            request = {"n_predict": self.plan.n_predict, "context": self.plan.context}
            if isinstance(replay, HeadReplayStep):
                found = head_replies(replay, trace, artifact, **request)
            else:
                found = replies(replay, trace, artifact, **request)
            self.read[replay.key] = {head.id: text for head, text in found}
        return self.read.get(replay.key, {})

    def of_server(
        self,
        rival: Rival,
        draft: DraftForecast | HeadForecast | None = None,
        settings: DraftSettings | None = None,
    ) -> dict[str, Simulation]:
        """What one server of ``rival`` does with the replies of the trace, in its order; with a
        ``draft`` under ``settings`` behind it."""
        plan, trace = self.plan, self.trace
        key = rival, draft.replay.key if draft is not None else None, settings
        if key not in self.served:
            texts = self.texts(draft) if draft is not None else {}
            server = NgramServer(rival.settings, Flavour(plan.engine.flavour))
            self.served[key] = {
                reply.head.id: server.answer(
                    ngram_request(trace, reply, n_predict=plan.n_predict, context=plan.context),
                    texts.get(reply.head.id),
                    settings or NO_MODEL,
                )
                for reply in trace
                if draft is None or reply.head.id in texts
            }
        return self.served[key]
