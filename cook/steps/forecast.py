"""Forecasts: what every draft would do under every setting, from replays and measured times.

Pure arithmetic over artifacts: nothing is run and nothing is stored, so a forecast for new
settings costs no engine time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from cook.engines.base import DraftSettings, Engine, Flavour
from cook.graph.execute import Outcomes
from cook.prompts.load import Prompt
from cook.speculation.predict import BatchCurve, Breakdown, Timings, fit_overhead, predict
from cook.speculation.profiles import Profile, Setting
from cook.speculation.simulate import Positions, simulate
from cook.steps.curve import CurveOutcome, CurveStep
from cook.steps.live import PromptRun
from cook.steps.menu import NO_DRAFT, DraftPlan, config_name
from cook.steps.replay import ReplayStep, replies
from cook.steps.trace import TraceStep

PROFILES = {
    Flavour.LLAMA_CPP: Profile.MAINLINE_2026_10,
    Flavour.IK_LLAMA_CPP: Profile.IK_2026_08,
}
"""Whose accounting a build of each flavour is taken to have; a live run is the test of it."""


@dataclass(frozen=True)
class DraftForecast:
    """What is needed to forecast one draft with one KV cache type."""

    draft: DraftPlan
    cache_type: str
    replay: ReplayStep
    curve: CurveStep


@dataclass(frozen=True)
class ForecastPlan:
    """The steps below all forecasts of one recipe."""

    trace: TraceStep
    verify: CurveStep
    drafts: tuple[DraftForecast, ...]
    settings: tuple[DraftSettings, ...]
    several_cache_types: bool

    def steps(self) -> Iterator[TraceStep | CurveStep | ReplayStep]:
        """Everything to run: the trace, the replays, then the timings one after another."""
        yield self.trace
        for draft in self.drafts:
            yield draft.replay
        yield self.verify
        for draft in self.drafts:
            yield draft.curve

    def name(self, draft: DraftForecast, settings: DraftSettings) -> str:
        """The candidate's name, as in the live score."""
        cache_type = draft.cache_type if self.several_cache_types else None
        return config_name(draft.draft.name, settings, cache_type)


@dataclass(frozen=True)
class Forecast:
    """One candidate, predicted. ``runs`` are per prompt, in the same form as live requests."""

    name: str
    draft: str | None
    cache_type: str | None
    settings: DraftSettings | None
    breakdown: Breakdown
    runs: tuple[PromptRun, ...]


@dataclass(frozen=True)
class Overheads:
    """Seconds a step beyond decode and sampling: of a plain step, and of a drafting cycle."""

    plain_s: float = 0.0
    cycle_s: float = 0.0


@dataclass(frozen=True)
class Oven:
    """Outcomes turned into forecasts."""

    plan: ForecastPlan
    outcomes: Outcomes
    engine: Engine
    n_predict: int
    context: int

    @property
    def profile(self) -> Profile:
        return PROFILES[self.engine.flavour]

    def forecasts(
        self, overheads: Overheads, only: Sequence[Prompt] | None = None
    ) -> list[Forecast]:
        """No draft, then every draft that was replayed and timed under every setting."""
        wanted = None if only is None else {p.id for p in only}
        verify = self.outcomes.result(self.plan.verify)
        if verify is None:
            return []
        found: list[Forecast] = []
        for draft in self.plan.drafts:
            curve = self.outcomes.result(draft.curve)
            if curve is None or self.outcomes.result(draft.replay) is None:
                continue
            texts = self._texts(draft, wanted)
            timings = _timings(verify, curve, overheads)
            if not found:
                found.append(self._forecast(NO_DRAFT, None, None, Setting(0), texts, timings))
            for settings in self.plan.settings:
                setting = Setting(settings.n_max, settings.n_min, settings.p_min)
                name = self.plan.name(draft, settings)
                found.append(self._forecast(name, draft, settings, setting, texts, timings))
        return found

    def fitted(
        self,
        plain: Mapping[str, PromptRun],
        drafted: Mapping[str, PromptRun],
        draft: DraftForecast,
        settings: DraftSettings,
    ) -> Overheads:
        """Overheads from live requests, over replies that the live run wrote as the trace did."""
        verify = self.outcomes.result(self.plan.verify)
        curve = self.outcomes.result(draft.curve)
        if verify is None or curve is None:
            return Overheads()
        texts = self._texts(draft, None)
        timings = _timings(verify, curve, Overheads())
        chosen = Setting(settings.n_max, settings.n_min, settings.p_min)
        return Overheads(
            plain_s=self._fit(texts, plain, Setting(0), timings),
            cycle_s=self._fit(texts, drafted, chosen, timings),
        )

    def _fit(
        self,
        texts: list[tuple[str, str, Positions]],
        live: Mapping[str, PromptRun],
        setting: Setting,
        timings: Timings,
    ) -> float:
        pairs = [
            (simulate(p, setting, self.profile), p.prompt, live[name].predicted_ms / 1000)
            for name, _, p in texts
            if name in live and live[name].predicted_n == p.reply
        ]
        if not pairs:
            return 0.0
        runs, prompts, seconds = zip(*pairs, strict=True)
        priced = timings if setting.n_max else replace(timings, draft=None)
        return fit_overhead(runs, prompts, seconds, priced, self.profile)

    def _texts(
        self, draft: DraftForecast, wanted: set[str] | None
    ) -> list[tuple[str, str, Positions]]:
        every = replies(
            draft.replay,
            self.outcomes.artifact(self.plan.trace),
            self.outcomes.artifact(draft.replay),
            n_predict=self.n_predict,
            context=self.context,
        )
        return [text for text in every if wanted is None or text[0] in wanted]

    def _forecast(
        self,
        name: str,
        draft: DraftForecast | None,
        settings: DraftSettings | None,
        setting: Setting,
        texts: list[tuple[str, str, Positions]],
        timings: Timings,
    ) -> Forecast:
        positions = [p for _, _, p in texts]
        priced = timings if draft is not None else replace(timings, draft=None)
        found = predict(positions, setting, priced, self.profile)
        runs = []
        for (prompt_id, category, p), seconds in zip(texts, found.per_reply_s, strict=True):
            run = simulate(p, setting, self.profile)
            prefill = p.prompt * priced.target_prefill_s_per_token
            if draft is not None:
                prefill += p.prompt * priced.draft_prefill_s_per_token
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
        )


def _timings(verify: CurveOutcome, draft: CurveOutcome, overheads: Overheads) -> Timings:
    return Timings(
        verify=BatchCurve(verify.depths, verify.widths, verify.seconds),
        draft=BatchCurve(draft.depths, draft.widths, draft.seconds),
        target_sample_s=verify.sample_s,
        draft_sample_s=draft.sample_s,
        overhead_s=overheads.cycle_s,
        plain_overhead_s=overheads.plain_s,
        target_prefill_s_per_token=verify.prefill_s_per_token,
        draft_prefill_s_per_token=draft.prefill_s_per_token,
    )
