"""Replays and measured times made into forecasts: arithmetic over artifacts, nothing is run."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from cook.build.layout import DraftForecast, ForecastPlan, Layout
from cook.engines.base import DraftSettings
from cook.errors import InputError
from cook.formats.quant_types import Flavour
from cook.formats.trace_file import TraceFile
from cook.graph.execute import Outcomes
from cook.record.prompt_runs import PromptRun
from cook.scoring.noise import TimingNoise, noise_of
from cook.scoring.price import Breakdown, Lived, Timings, fit_overhead, fit_overheads, predict
from cook.scoring.sampled import SampledPrediction, predict_sampled
from cook.scoring.simulate import Positions, Profile, Setting, simulate
from cook.steps.curve import CurveOutcome, CurveStep, combined
from cook.steps.replay import ReplayStep, replayed, replies, sampled_reply
from cook.steps.trace import TRACE_FILE

RenderedReply = tuple[str, str, Positions]
"""A reply as replayed: (prompt id, category, positions)."""


@dataclass(frozen=True)
class Forecaster:
    """Outcomes turned into forecasts."""

    menu: Layout
    plan: ForecastPlan
    outcomes: Outcomes
    n_predict: int
    context: int
    read: dict[str, list[RenderedReply]] = field(default_factory=dict)
    """Replays read so far, by key: every forecast looks at all of them again."""

    @property
    def profile(self) -> Profile:
        return PROFILES[self.menu.engine.flavour]

    def forecasts(
        self,
        overheads: Overheads,
        only: Collection[str] | None = None,
        turn: int | None = None,
    ) -> list[Forecast]:
        """No draft, then every draft that was replayed and timed under every setting.

        ``only``: ids of the prompts; ``turn``: by the timings of that pass alone, None by the
        medians over passes.
        """
        wanted = None if only is None else set(only)
        verify = self._curve(self.plan.verify, turn)
        if verify is None or self.menu.baseline is None:
            return []
        bare = self.menu.baseline.name
        found: list[Forecast] = []
        for draft in self.plan.drafts:
            curve = self._curve(draft.curves, turn)
            texts = self._texts(draft, wanted)
            if curve is None or not texts or (wanted and len(texts) < len(wanted)):
                continue  # it failed, or left the race before these prompts
            timings = _timings(verify, curve, overheads)
            if not found:
                found.append(self._forecast(bare, None, None, Setting(0), texts, timings))
            for settings in self.plan.settings:
                setting = _setting(settings)
                name = self.plan.name(draft, settings)
                found.append(self._forecast(name, draft, settings, setting, texts, timings))
        return found

    def timing_noise(self, overheads: Overheads, only: Collection[str]) -> TimingNoise | None:
        """What predicted speeds differ by between passes, beyond what all of a pass share.

        Of every draft (and of no draft) the setting that is best by the medians stands for all.
        None with a single pass, or where passes failed for all but one of them.
        """
        import numpy as np

        if len(self.plan.verify) < 2:
            return None
        best: dict[tuple[str | None, str | None], Forecast] = {}
        for forecast in self.forecasts(overheads, only):
            file = (forecast.draft, forecast.cache_type)
            if file not in best or forecast.decode_speed > best[file].decode_speed:
                best[file] = forecast
        passes = [
            {f.name: f.decode_speed for f in self.forecasts(overheads, only, turn)}
            for turn in range(len(self.plan.verify))
        ]
        passes = [found for found in passes if found]  # the target's own pass may have failed
        names = [f.name for f in best.values() if all(f.name in found for found in passes)]
        if len(passes) < 2 or len(names) < 2:
            return None
        return noise_of(np.log(np.array([[p[name] for p in passes] for name in names])))

    def rejection(
        self, overheads: Overheads, only: Collection[str]
    ) -> dict[str, SampledPrediction]:
        """By name: every setting without p_min and n_min, were it verified by rejection sampling.

        Empty for a greedy trace, where the two rules are one.
        """
        trace = TraceFile(self.outcomes.artifact(self.plan.trace).file(TRACE_FILE))
        verify = self._curve(self.plan.verify)
        if verify is None or not trace.header.sampler.temperature:
            return {}
        found: dict[str, SampledPrediction] = {}
        for draft in self.plan.drafts:
            curve = self._curve(draft.curves)
            made = [step for step in draft.replays if self.outcomes.result(step) is not None]
            said = [
                text
                for step in made
                for reply, seen in replayed(step, trace, self.outcomes.artifact(step))
                if reply.head.id in only and (text := sampled_reply(trace, reply, seen))
            ]
            if curve is None or not said:
                continue
            timings = _timings(verify, curve, overheads)
            for settings in self.plan.settings:
                if not settings.p_min and not settings.n_min:
                    name = self.plan.name(draft, settings)
                    found[name] = predict_sampled(said, settings.n_max, timings, self.profile)
        return found

    def acceptance_floor(self, only: Collection[str]) -> float | None:
        """Acceptance of the floor draft in another batch shape minus in the usual one.

        A fraction, at the longest draft; None where it was not replayed twice.
        """
        if self.plan.floor is None:
            return None
        draft, other = self.plan.floor
        shared = {name for name in only if other.wants(name)}
        if self.outcomes.result(other) is None:
            return None
        longest = max(self.plan.settings, key=lambda s: s.n_max)
        setting = Setting(longest.n_max, longest.n_min, 0.0)
        rates = []
        for replays in (draft.replays, (other,)):
            texts = self._texts(replace(draft, replays=replays), shared)
            runs = [simulate(p, setting, self.profile) for _, _, p in texts]
            drafted = sum(r.draft_n for r in runs)
            rates.append(sum(r.draft_n_accepted for r in runs) / drafted if drafted else None)
        if rates[0] is None or rates[1] is None:
            return None
        return rates[1] - rates[0]

    def _curve(self, steps: Sequence[CurveStep], turn: int | None = None) -> CurveOutcome | None:
        """One pass, or the medians of all that succeeded."""
        chosen = steps if turn is None else [steps[turn]]
        found = [r for step in chosen if (r := self.outcomes.result(step)) is not None]
        return combined(found) if found else None

    def fitted(
        self,
        plain: Mapping[str, PromptRun],
        drafted: Sequence[tuple[DraftSettings, Mapping[str, PromptRun]]],
        draft: DraftForecast,
    ) -> Overheads:
        """Overheads from live requests, over replies that the live run wrote as the trace did.

        ``drafted``: live runs of ``draft``, of one length or, to tell a cycle's overhead from a
        drafted token's, of two.
        """
        verify = self._curve(self.plan.verify)
        curve = self._curve(draft.curves)
        if verify is None or curve is None:
            return Overheads()
        texts = self._texts(draft, None)
        timings = _timings(verify, curve, Overheads())
        bare = self._seen(texts, plain, Setting(0))
        seen = [
            each
            for settings, live in drafted
            for each in self._seen(texts, live, _setting(settings))
        ]
        plain_s = cycle_s = decode_s = 0.0
        if bare:
            plain_s = fit_overhead(bare, timings.without_draft(), self.profile)
        if seen:
            try:
                cycle_s, decode_s = fit_overheads(seen, timings, self.profile)
            except InputError:  # one length only
                cycle_s = fit_overhead(seen, timings, self.profile)
        live = [run for _, runs in drafted for run in runs.values()]
        return Overheads(
            plain_s,
            cycle_s,
            decode_s,
            plain_request_s=_request_overhead(plain.values(), timings.without_draft()),
            request_s=_request_overhead(live, timings),
        )

    def _seen(
        self,
        texts: list[RenderedReply],
        live: Mapping[str, PromptRun],
        setting: Setting,
    ) -> list[Lived]:
        """The replies whose live length is the trace's."""
        return [
            Lived(simulate(p, setting, self.profile), p.prompt, live[name].predicted_ms / 1000)
            for name, _, p in texts
            if name in live and live[name].predicted_n == p.reply
        ]

    def _texts(self, draft: DraftForecast, wanted: set[str] | None) -> list[RenderedReply]:
        return [
            text
            for replay in draft.replays
            for text in self._replayed(replay)
            if wanted is None or text[0] in wanted
        ]

    def _replayed(self, replay: ReplayStep) -> list[RenderedReply]:
        """All that ``replay`` holds; nothing where it has not run."""
        if replay.key not in self.read and self.outcomes.result(replay) is not None:
            self.read[replay.key] = list(
                replies(
                    replay,
                    self.outcomes.artifact(self.plan.trace),
                    self.outcomes.artifact(replay),
                    n_predict=self.n_predict,
                    context=self.context,
                )
            )
        return self.read.get(replay.key, [])

    def _forecast(
        self,
        name: str,
        draft: DraftForecast | None,
        settings: DraftSettings | None,
        setting: Setting,
        texts: list[RenderedReply],
        timings: Timings,
    ) -> Forecast:
        import numpy as np

        positions = [p for _, _, p in texts]
        priced = timings if draft is not None else timings.without_draft()
        found = predict(positions, setting, priced, self.profile)
        runs = []
        depths = np.zeros((2, setting.n_max), dtype=np.int64)
        for (prompt_id, category, p), seconds in zip(texts, found.per_reply_s, strict=True):
            run = simulate(p, setting, self.profile)
            depths += np.array(run.by_depth(setting.n_max))
            prefill = priced.prompt_s(p.prompt)
            runs.append(
                PromptRun(
                    id=prompt_id,
                    category=category,
                    prompt_n=p.prompt,
                    prompt_ms=prefill * 1000,
                    predicted_n=p.reply,
                    predicted_ms=seconds * 1000,
                    wall_ms=(prefill + seconds) * 1000,
                    draft_n=run.draft_n if setting.n_max else None,
                    draft_n_accepted=run.draft_n_accepted if setting.n_max else None,
                    tokens=None,
                    text="",
                    stop="",
                )
            )
        return Forecast(
            name=name,
            draft=draft.draft.name if draft else None,
            cache_type=draft.cache_type if draft else None,
            settings=settings,
            breakdown=found.breakdown,
            runs=tuple(runs),
            by_depth=tuple((int(drafted), int(accepted)) for drafted, accepted in depths.T),
        )


def _request_overhead(live: Collection[PromptRun], timings: Timings) -> float:
    """Seconds a live request took beyond its decoding and its priced prompt, not below zero."""
    rest = [
        (run.wall_ms - run.predicted_ms) / 1000 - timings.prompt_s(run.prompt_n) for run in live
    ]
    return max(0.0, median(rest)) if rest else 0.0


def _setting(settings: DraftSettings) -> Setting:
    return Setting(settings.n_max, settings.n_min, settings.p_min)


def _timings(verify: CurveOutcome, draft: CurveOutcome, overheads: Overheads) -> Timings:
    return Timings(
        verify=verify.batches,
        draft=draft.batches,
        target_sample_s=verify.sample_s,
        draft_sample_s=draft.sample_s,
        overhead_s=overheads.cycle_s,
        plain_overhead_s=overheads.plain_s,
        decode_overhead_s=overheads.decode_s,
        target_prefill=verify.prompts,
        draft_prefill=draft.prompts,
        request_s=overheads.request_s,
        plain_request_s=overheads.plain_request_s,
    )


PROFILES = {
    Flavour.LLAMA_CPP: Profile.MAINLINE_2026_10,
    Flavour.IK_LLAMA_CPP: Profile.IK_2026_08,
}
"""Whose accounting a build of each flavour is taken to have; a live run is the test of it."""


@dataclass(frozen=True)
class Forecast:
    """One candidate, predicted. ``runs`` are per prompt, in the same form as live requests.

    ``by_depth``: (drafted, accepted) at each place of a draft, from 1 on, over all replies.
    """

    name: str
    draft: str | None
    cache_type: str | None
    settings: DraftSettings | None
    breakdown: Breakdown
    runs: tuple[PromptRun, ...]
    by_depth: tuple[tuple[int, int], ...] = ()

    @property
    def decode_speed(self) -> float:
        """Tokens after the first a second, over all replies."""
        tokens = sum(run.predicted_n - 1 for run in self.runs)
        return 1000 * tokens / sum(run.predicted_ms for run in self.runs)


@dataclass(frozen=True)
class Overheads:
    """Seconds beyond what was timed: of a plain step, a drafting cycle, a drafted token, and of a
    request without a draft and with one."""

    plain_s: float = 0.0
    cycle_s: float = 0.0
    decode_s: float = 0.0
    plain_request_s: float = 0.0
    request_s: float = 0.0
