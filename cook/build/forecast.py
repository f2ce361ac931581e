"""Replays and measured times made into forecasts: arithmetic over artifacts, nothing is run.

One forecaster serves `cook build`, `cook score` and `cook predict`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import mean

import numpy as np

from cook.build.layout import DraftForecast, ForecastPlan, OtherChain, Rival, rival_key
from cook.engines.base import DraftSettings
from cook.errors import InputError
from cook.formats.quant_types import Flavour
from cook.formats.sampling import Sampling
from cook.formats.trace_file import ReplyHead, TraceFile
from cook.graph.execute import Outcomes
from cook.record.measured import Overheads
from cook.record.prompt_runs import PromptRun
from cook.record.record import CandidateKey
from cook.scoring.link import Link, behind
from cook.scoring.ngram import NgramServer
from cook.scoring.noise import LogSpread, TimingNoise, noise_of
from cook.scoring.parallel import ParallelSpeed, dsi, pearl
from cook.scoring.price import (
    BatchCurve,
    Lived,
    PricedReplies,
    SimulatedReply,
    Timings,
    counted_alike,
    fit_overheads,
    predict,
    priced,
)
from cook.scoring.sampled import SampledPrediction, predict_sampled
from cook.scoring.simulate import Positions, Simulation, plain_steps, simulate
from cook.steps.curve import CurveOutcome, CurveStep, over_passes
from cook.steps.replay import (
    ReplayStep,
    expected_reply,
    ngram_request,
    replayed,
    replies,
    sampled_reply,
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

MODEL = LogSpread(0.02, 4)
"""What a forecast of a draft's speed is off by beside its neighbours', before any live run has
judged it: one build of a pair of real proportions had errors of -1.4, +1.2 and +3.3 %. As good as
known by four live runs, no more: those of this build have the word (one of the demo on a machine
with 8 % of noise had errors of -10 to +14 %)."""
NO_OVERHEADS = Overheads()


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
class ChainForecast:
    """No draft and every draft at its best under another sampling chain than the deployed one.

    ``rejection``: what rejection sampling would make of them; empty for a greedy chain, where the
    two rules are one. ``reason``: why there is no forecast.
    """

    sampling: Sampling
    forecasts: tuple[Forecast, ...] = ()
    rejection: Mapping[CandidateKey, SampledPrediction] = field(default_factory=dict)
    reason: str | None = None


@dataclass(frozen=True)
class ChainExpectation:
    """A draft of ``n_max`` tokens under a sampling chain, on the text of the trace.

    (lower, upper) end of what was stored, by the engine's rule and by rejection sampling.
    """

    sampling: Sampling
    n_max: int
    engine: tuple[SampledPrediction, SampledPrediction]
    rejection: tuple[SampledPrediction, SampledPrediction]


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

    def staying(self) -> ForecastPlan:
        """The plan with the drafts that are still in the race."""
        racing = tuple(
            draft
            for draft in self.plan.drafts
            if all(self.outcomes.result(replay) is not None for replay in draft.replays)
        )
        return replace(self.plan, drafts=racing)

    def last_pass(self) -> Iterator[CurveStep]:
        """The last pass of the timings: the target's, and of drafts that are still in the race."""
        return self.staying().last_pass()

    def under(
        self,
        chain: OtherChain,
        overheads: Overheads,
        chosen_on: Collection[str],
        reported_on: Collection[str],
    ) -> ChainForecast:
        """Every draft, at its best setting by the prompts ``chosen_on``, on what the target wrote
        under ``chain`` to those ``reported_on``."""
        there = replace(self, plan=self.staying().on(chain.trace))
        try:
            best: dict[tuple[str | None, str | None], Forecast] = {}
            for one in there.forecasts(overheads, chosen_on):
                file = (one.key.draft, one.key.cache_type)
                if file not in best or one.end_to_end_speed > best[file].end_to_end_speed:
                    best[file] = one
            keys = {one.key for one in best.values()}
            shown = [f for f in there.forecasts(overheads, reported_on) if f.key in keys]
            rejection = there.rejection(overheads, reported_on)
        except InputError as error:  # its replies go on farther than anything was timed
            return ChainForecast(chain.sampling, reason=error.message)
        if not shown:
            return ChainForecast(chain.sampling, reason="nothing could be replayed")
        return ChainForecast(chain.sampling, tuple(shown), rejection)

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

    def forecasts(
        self,
        overheads: Overheads = NO_OVERHEADS,
        only: Collection[str] | None = None,
        turn: int | None = None,
    ) -> list[Forecast]:
        """No draft, then every draft that was replayed and timed under every setting, then every
        rival.

        ``only``: ids of the prompts; ``turn``: by the timings of that pass alone, None by the
        medians over passes.
        """
        wanted = None if only is None else set(only)
        plan = self.plan
        forecasts: list[Forecast] = []
        alone = self.alone(overheads, turn)
        if alone is None:
            return forecasts
        for draft in plan.drafts:
            timings = self.timings(draft, overheads, turn)
            if timings is None:
                continue
            for settings in plan.settings:
                texts = self.texts(draft, wanted)
                if not texts or (wanted and len(texts) < len(wanted)):
                    break  # it failed, or left the race before these prompts
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
                behind = [r for r in self._behind(draft, first, settings) if r[0].id in shown]
                longest = max(first.settings.longest, settings.n_max)
                forecasts.append(self._priced(key, name, behind, longest, timings))
        if plan.rivals and not plan.drafts:
            forecasts.append(self._no_draft(wanted, alone))
        if forecasts:  # without no draft there is nothing to be compared with
            forecasts += [self._rival(rival, wanted, alone) for rival in plan.rivals]
        return forecasts

    def forecast_of(
        self, key: CandidateKey, overheads: Overheads, only: Collection[str]
    ) -> Forecast | None:
        """That of one candidate, as :meth:`forecasts` has it."""
        if key.ngram is not None and not key.is_file:
            plan = replace(self.plan, settings=self.plan.settings[:1], drafts=self.plan.drafts[:1])
            found = replace(self, plan=plan).forecasts(overheads, only)
            return next((f for f in found if f.key == key), None)
        mine = [draft for draft in self.plan.drafts if self.plan.is_of(draft, key)]
        settings = self.plan.settings if key.settings is None else (key.settings,)
        drafts = self.plan.drafts if key.draft is None else tuple(mine)
        one = replace(self, plan=replace(self.plan, drafts=drafts[:1], settings=settings[:1]))
        return next((f for f in one.forecasts(overheads, only) if f.key == key), None)

    def timing_noise(self, overheads: Overheads, only: Collection[str]) -> TimingNoise | None:
        """What predicted speeds differ by between passes, beyond what all of a pass share.

        Of every draft (and of no draft) the setting that is best by the medians stands for all.
        None with a single pass, or where passes failed for all but one of them.
        """
        if len(self.plan.verify) < 2:
            return None
        best: dict[tuple[str | None, str | None], Forecast] = {}
        for forecast in self.forecasts(overheads, only):
            if forecast.key.ngram is not None:
                continue  # priced by the target's times alone, as no draft
            file = (forecast.key.draft, forecast.key.cache_type)
            if file not in best or forecast.decode_speed > best[file].decode_speed:
                best[file] = forecast
        passes = [
            {f.key: f.decode_speed for f in self.forecasts(overheads, only, turn)}
            for turn in range(len(self.plan.verify))
        ]
        passes = [speeds for speeds in passes if speeds]  # the target's own pass may have failed
        keys = [f.key for f in best.values() if all(f.key in speeds for speeds in passes)]
        if len(passes) < 2 or len(keys) < 2:
            return None
        return noise_of(np.log(np.array([[speeds[key] for speeds in passes] for key in keys])))

    def rejection(
        self, overheads: Overheads, only: Collection[str]
    ) -> dict[CandidateKey, SampledPrediction]:
        """Every setting without p_min and n_min, were it verified by rejection sampling.

        Empty for a greedy trace, where the two rules are one.
        """
        plain = [s for s in self.plan.settings if not s.p_min and not s.n_min]
        return {
            self.plan.key(draft, settings): sampled
            for draft in self.plan.drafts
            if draft.draft.after is None and self.timings(draft, overheads) is not None
            for settings, sampled in zip(
                plain, self.sampled(draft, [s.n_max for s in plain], overheads, only), strict=False
            )
        }

    def sampled(
        self,
        draft: DraftForecast,
        lengths: Sequence[int],
        overheads: Overheads = NO_OVERHEADS,
        only: Collection[str] | None = None,
    ) -> list[SampledPrediction]:
        """``draft`` at every one of ``lengths``, verified by rejection sampling; none where the
        trace is greedy or nothing was replayed by a worker."""
        trace = self.trace
        if not trace.header.sampler.temperature:
            return []
        chances = [
            chance
            for step in draft.replays
            if self.outcomes.result(step) is not None
            for reply, seen in replayed(step, trace, self.outcomes.artifact(step))
            if only is None or reply.head.id in only
            if (chance := sampled_reply(trace, reply, seen)) is not None
        ]
        timings = self.timings(draft, overheads) if self.priced else None
        profile = self.plan.profile
        return [predict_sampled(chances, n, timings, profile) for n in lengths if chances]

    def expected(
        self, draft: DraftForecast, sampling: Sampling, lengths: Sequence[int]
    ) -> list[ChainExpectation]:
        """``draft`` at every one of ``lengths`` under ``sampling``, by what was stored of the
        trace's own text; none where too little was stored."""
        trace = self.trace
        found = [
            one
            for step in draft.replays
            for reply, seen in replayed(step, trace, self.outcomes.artifact(step))
            if (one := expected_reply(trace, reply, seen, sampling.applied())) is not None
        ]
        timings = self.timings(draft) if self.priced else None
        profile = self.plan.profile

        def ends(n_max: int, rule: str) -> tuple[SampledPrediction, SampledPrediction]:
            pairs = [getattr(one, rule) for one in found]
            low, high = (
                predict_sampled([pair[end] for pair in pairs], n_max, timings, profile)
                for end in (0, 1)
            )
            return low, high

        return [
            ChainExpectation(sampling, n, ends(n, "engine"), ends(n, "rejection"))
            for n in lengths
            if found
        ]

    def two_stage(self, draft: DraftForecast, rival: Rival) -> list[Forecast]:
        """``rival`` first and ``draft`` wherever that has nothing, under every setting; of one
        server that answers the whole trace. None without the draft's times."""
        plan, timings = self.plan, self.timings(draft)
        if timings is None or len(self.texts(draft)) < len(self.trace):
            return []
        return [
            self._priced(
                replace(plan.key(draft, settings), ngram=rival.settings),
                f"{rival.name}, then {plan.name(draft, settings)}",
                self._behind(draft, rival, settings),
                max(rival.settings.longest, settings.n_max),
                timings,
            )
            for settings in plan.settings
        ]

    def _behind(
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

    def parallel(self, draft: DraftForecast, lengths: Sequence[int]) -> tuple[ParallelSpeed, ...]:
        """PEARL and DSI with ``draft``; none where no times are known."""
        timings = self.timings(draft)
        if not self.priced or timings is None:
            return ()
        texts = self.texts(draft)
        replies, weights = [text for _, text in texts], [head.weight for head, _ in texts]
        return pearl(replies, weights, lengths, timings), dsi(replies, weights, timings)

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

    def fitted(
        self,
        plain: Mapping[str, PromptRun],
        drafted: Sequence[tuple[DraftSettings, Mapping[str, PromptRun]]],
        draft: DraftForecast,
    ) -> Overheads:
        """Overheads from live requests, over replies as long as the trace's.

        ``drafted``: live runs of ``draft``, of one length or, to tell a cycle's overhead from a
        drafted token's, of several. They are as noisy as passes of the timings, and as forecasts
        are off by at the least (:data:`MODEL`).
        """
        timings, alone = self.timings(draft), self.alone()
        if timings is None or alone is None:
            return NO_OVERHEADS
        profile = self.plan.profile
        bare = list(self._lived(draft, plain, NO_DRAFT))
        drafted = [
            (settings, {name: counted_alike(run, timings, profile) for name, run in live.items()})
            for settings, live in drafted
        ]
        lived = [list(self._lived(draft, live, settings)) for settings, live in drafted]
        overheads = NO_OVERHEADS
        if any([bare, *lived]):
            found = self.timing_noise(NO_OVERHEADS, plain)
            # Of a single pass it is not known what runs differ by.
            noise = LogSpread(MODEL.sd, 0)
            if found is not None:
                noise = LogSpread(math.hypot(MODEL.sd, found.sd), MODEL.freedom)
            overheads = fit_overheads(bare, lived, alone, timings, profile, noise)
        live = [run for _, runs in drafted for run in runs.values()]
        alone, timings = (replace(prices, slower=overheads.slower) for prices in (alone, timings))
        return replace(
            overheads,
            plain_request_s=_request_overhead(plain.values(), alone),
            request_s=_request_overhead(live, timings),
        )

    def counted_alike(self, key: CandidateKey, live: Sequence[PromptRun]) -> tuple[PromptRun, ...]:
        """The live requests of a candidate, as requests of every engine are counted."""
        draft = next((d for d in self.plan.drafts if self.plan.is_of(d, key)), None)
        timings = self.timings(draft) if draft is not None else None
        return tuple(counted_alike(run, timings, self.plan.profile) for run in live)

    def _lived(
        self, draft: DraftForecast, live: Mapping[str, PromptRun], settings: DraftSettings
    ) -> Iterator[Lived]:
        """The replies whose live length is the trace's, of as many steps as live ones took.

        A wider batch rounds otherwise, so that a server with a draft may write another text than
        the trace has from somewhere on (after 44 of 256 tokens, on a prompt of 4,096): steps that
        it took less than the trace's text, every seventh in that reply, are no speed of the server.
        """
        for head, p in self.texts(draft):
            run = live.get(head.id)
            if run is not None and run.predicted_n == p.reply:
                simulated = simulate(p, settings, self.plan.profile)
                # Both wrote as many tokens: one accepted more is one step less.
                more = (run.draft_n_accepted or 0) - simulated.draft_n_accepted
                lived = simulated.of_steps(max(simulated.steps - more, 1))
                yield Lived(lived, p.prompt, run.predicted_ms / 1000)

    def timings(
        self, draft: DraftForecast, overheads: Overheads = NO_OVERHEADS, turn: int | None = None
    ) -> Timings | None:
        """What steps with ``draft`` cost; None where it could not be timed.

        Of one pass, or the medians of all that succeeded. :data:`UNPRICED` where no times are
        asked for.
        """
        if not self.priced:
            return UNPRICED
        target = self.curve(self.plan.verify, turn)
        mine = self.curve(draft.curves, turn)
        verify = target.batches if target is not None else self.verify
        batches = mine.batches if mine is not None else self.draft
        if verify is None or batches is None:
            return None
        prefill = mine.prompts if mine else None
        return Timings(
            verify=verify,
            draft=self.afar(batches),
            target_sample_s=target.sample_s if target else 0.0,
            draft_sample_s=mine.sample_s if mine else 0.0,
            slower=overheads.slower,
            overhead_s=overheads.step_s,
            decode_overhead_s=overheads.decode_s,
            target_prefill=target.prompts if target else None,
            draft_prefill=self.afar(prefill) if prefill else None,
            request_s=overheads.request_s,
        )

    def afar(self, curve: BatchCurve, rows: int = 1) -> BatchCurve:
        """``curve`` of a draft's batches behind the link, if there is one; ``rows`` of logits."""
        if self.link is None:
            return curve
        return behind(curve, self.link, self.trace.header.vocabulary_size, rows)

    def alone(self, overheads: Overheads = NO_OVERHEADS, turn: int | None = None) -> Timings | None:
        """What steps without a draft cost, with the arguments of no draft; None where they could
        not be timed."""
        if not self.priced:
            return UNPRICED.without_draft()
        mine = self.curve(self.plan.plain, turn)
        verify = mine.batches if mine is not None else self.verify
        if verify is None:
            return None
        return Timings(
            verify=verify,
            target_sample_s=mine.sample_s if mine else 0.0,
            slower=overheads.slower,
            overhead_s=overheads.plain_s,
            target_prefill=mine.prompts if mine else None,
            request_s=overheads.plain_request_s,
        )

    def curve(self, passes: Sequence[CurveStep], turn: int | None = None) -> CurveOutcome | None:
        """One pass, or the medians of all that succeeded."""
        chosen = passes if turn is None else passes[turn : turn + 1]
        measured = [r for step in chosen if (r := self.outcomes.result(step)) is not None]
        return over_passes(measured) if measured else None

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
        return self._priced(CandidateKey(plan.engine.name), plan.no_draft, replies, 0, prices)

    def _rival(self, rival: Rival, wanted: Collection[str] | None, prices: Timings) -> Forecast:
        """A rival on the prompts ``wanted``, of one server that answers the whole trace."""
        replies = [
            (head, run)
            for head, run in self._simulated(rival)
            if wanted is None or head.id in wanted
        ]
        key = rival_key(self.plan.engine, rival)
        return self._priced(key, rival.name, replies, rival.settings.longest, prices)

    def _priced(
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


def _request_overhead(live: Collection[PromptRun], timings: Timings) -> float:
    """Seconds a live request took beyond its decoding and its priced prompt, or below them; the
    mean, as an end-to-end speed is of the seconds of all."""
    rest = [
        (run.wall_ms - run.predicted_ms) / 1000 - timings.prompt_s(run.prompt_n) for run in live
    ]
    return mean(rest) if rest else 0.0


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
