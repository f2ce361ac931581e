"""Requests in parallel: what a server of several slots gives, with a draft and without.

Predicted from what batches of several slots cost, at the widths that their drafts make, with
whatever was fitted on runs of one slot and nothing else; then confirmed by live runs with as many
clients. The best draft length falls as slots are added: each verifies at the same time, so that
the batch gets wide with short drafts already (docs/internals/scoring.md#slots).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cook.engines.base import BATCH, DraftSettings
from cook.errors import InputError
from cook.formats.quant_types import Flavour
from cook.graph.execute import Executor, Outcomes
from cook.job.decide import Decision
from cook.job.forecast import Forecaster
from cook.job.layout import Configuration, DraftForecast, ForecastPlan, HeadForecast, Layout
from cook.record.record import Excluded, SlotSpeed
from cook.scoring.batch_curve import BatchCurve
from cook.scoring.compare import figures
from cook.scoring.simulate import plain_steps, simulate
from cook.scoring.slots import (
    ServedInParallel,
    SimulatedReply,
    SlotCurves,
    SlotPrices,
    require_room,
    serve,
)
from cook.steps.curve import CurveStep, SlotCurveStep, sequences_for, widths_for
from cook.steps.live import LiveOutcome, LiveStep


@dataclass(frozen=True)
class SlotPlan:
    """The timings below forecasts of ``draft`` on servers of so many ``slots`` each.

    ``plain`` is no draft's target, the same as ``verify`` where it runs with the same arguments.
    """

    draft: DraftForecast | HeadForecast
    slots: tuple[int, ...]
    verify: SlotCurveStep
    plain: SlotCurveStep
    drafting: SlotCurveStep

    def steps(self) -> Iterator[SlotCurveStep]:
        """Each once."""
        yield from dict.fromkeys((self.verify, self.plain, self.drafting))


def slot_plan(
    plan: ForecastPlan, draft: DraftForecast | HeadForecast, slots: Sequence[int]
) -> SlotPlan:
    """InputError where nothing is timed, or the widest step of ``slots`` exceeds the batch."""
    target = plan.target_of(draft)
    if target is None or plan.plain is None or draft.curve is None:
        raise InputError(
            "slots need the times of target and draft, measured here",
            hint="cook predict: give the target (--target), and no --draft-ms",
        )
    widths = widths_for(s.n_max for s in plan.settings)
    batch = target.args.batch or BATCH
    require_room(max(slots), widths[-1] - 1, batch)
    sequences = sequences_for(slots)

    def by_slots(curve: CurveStep, widths: tuple[int, ...]) -> SlotCurveStep:
        return SlotCurveStep(
            *(curve.engine, curve.name, curve.model, curve.trace, curve.args, curve.verifies),
            widths=widths,
            sequences=sequences,
            head=curve.head,
            gives_rows=curve.gives_rows,
        )

    verify = by_slots(target, widths)
    return SlotPlan(
        draft=draft,
        slots=tuple(slots),
        verify=verify,
        plain=verify if plan.plain == target else by_slots(plan.plain, (1,)),
        drafting=by_slots(draft.curve, widths),
    )


@dataclass(frozen=True)
class SlotForecaster:
    """Forecasts of one draft and of no draft, from the outcomes of a plan's steps.

    ``forecaster`` knows the replies and what one slot takes.
    """

    forecaster: Forecaster
    plan: SlotPlan
    factor: float = 1.0
    """Live over forecast time of one slot's steps."""

    def served(
        self, slots: int, settings: DraftSettings | None, only: Collection[str] | None = None
    ) -> ServedInParallel | None:
        """The replies ``only`` (ids, None: all) in the order of the trace, by as many clients.

        ``settings`` None: no draft. None where something could not be timed.
        """
        one, plan, draft = self.forecaster, self.plan, None
        if settings is None:
            timings, target = one.baseline_timings(), self._curves(plan.plain, one.plan.plain)
        else:
            timings, target = (
                one.timings(plan.draft),
                self._curves(plan.verify, one.plan.target_of(plan.draft)),
            )
            draft = self._curves(plan.drafting, plan.draft.curve)
        if timings is None or target is None or (settings is not None and draft is None):
            return None
        if draft is not None:
            draft = SlotCurves(
                {s: one.over_link(curve, rows=s) for s, curve in draft.batches.items()},
                one.over_link(draft.prompts),
            )
        prices = SlotPrices(
            target,
            draft,
            target_sample_s=timings.target_sample_s,
            draft_sample_s=timings.draft_sample_s,
            batch=plan.verify.args.batch or BATCH,
            factor=self.factor,
        )
        texts = one.texts(plan.draft) if settings is not None else {}
        heads = [h for h in one.trace.heads if only is None or h.id in only]
        replies = [
            SimulatedReply(
                plain_steps(head.emitted)
                if settings is None
                else simulate(texts[head.id], settings, one.plan.profile),
                head.prompt_tokens,
                head.emitted,
            )
            for head in heads
            if settings is None or head.id in texts
        ]
        return serve(replies, slots, prices)

    def best(
        self, slots: int, only: Collection[str] | None = None
    ) -> tuple[DraftSettings, ServedInParallel] | None:
        """The fastest settings of the draft at so many slots."""
        found = [
            (settings, served)
            for settings in self.forecaster.plan.settings
            if (served := self.served(slots, settings, only)) is not None
        ]
        return max(found, key=lambda pair: pair[1].tokens_per_s, default=None)

    def _curves(self, by_slots: SlotCurveStep, one: CurveStep | None) -> SlotCurves | None:
        timed = self.forecaster.outcomes.result(by_slots)
        alone, prompts = self.forecaster.curve(one), self.forecaster.prompts(one)
        if timed is None or alone is None or prompts is None:
            return None
        return SlotCurves(as_multiples(timed.batches, alone.batches), prompts)


def as_multiples(batches: Mapping[int, BatchCurve], alone: BatchCurve) -> dict[int, BatchCurve]:
    """``batches`` by the number of slots, as multiples of what one of them takes: times what one
    takes ``alone``, in a context of its own.

    The two differ by some per cent where nothing but the context does: with the former a server
    of one slot was predicted 5 % too slow without a draft.
    """
    timed = batches[1]
    depths = np.clip(timed.depths, alone.depths[0], alone.depths[-1])
    rows = alone.at(np.asarray(timed.widths)[None, :], depths[:, None])
    scale = rows / np.asarray(timed.seconds)
    return {
        slots: replace(curve, seconds=tuple(map(tuple, np.asarray(curve.seconds) * scale)))
        for slots, curve in batches.items()
    }


def parallel_run(
    configuration: Configuration, slots: int, order: Sequence[str], repeat: int = 0
) -> LiveStep:
    """All prompts of ``configuration`` in one run of so many slots, in the ``order`` of the trace
    (ids)."""
    prompts = {p.id: p for p in configuration.live.prompts}
    return replace(
        configuration.live,
        prompts=tuple(prompts[name] for name in order if name in prompts),
        slots=slots,
        repeat=repeat,
    )


def run_slots(layouts: Sequence[Layout], decision: Decision, executor: Executor) -> None:
    """Add to ``decision`` the speeds of no draft, of the pick's settings, and of the settings that
    are best at each number of slots.

    The pick's draft, or where none is picked the best that was predicted, on its engine; nothing
    where no engine serves several slots with a draft. Predicted first, then run live as long as the
    live budget has room; what has not is left out.
    """
    found = _drafting(layouts, decision)
    if found is None:
        return
    layout, draft, usual = found
    assert layout.forecast is not None, "its candidates were predicted"
    assert layout.baseline is not None, "it scores"
    plan = slot_plan(layout.forecast, draft, decision.score.slots)
    executor.run(plan.steps())
    one = decision.forecasters[layout.engine.name]
    forecaster = SlotForecaster(one, plan, _factor(decision, layout.engine.name))
    order = [head.id for head in one.trace.heads]
    asked = {p.id for p in layout.baseline.live.prompts}
    wanted: dict[tuple[int, DraftSettings | None], LiveStep] = {}
    spent_s, load_s = decision.dealing.spent_s(), decision.dealing.load_s
    for slots in plan.slots:
        best = forecaster.best(slots, asked)
        for settings in dict.fromkeys((None, best[0] if best else usual, usual)):
            configuration = layout.baseline
            if settings is not None:
                key = layout.forecast.key(draft, settings)
                configuration = next(c for c in layout.grid if c.key == key)
            served = forecaster.served(slots, settings, asked)
            if served is None:
                continue
            step = parallel_run(configuration, slots, order)
            cost_s = load_s + served.seconds
            if spent_s + cost_s > decision.dealing.budget_s:
                why = f"left out: about {cost_s:.0f} s more, and score.live_budget is spent"
                decision.left_out.append(Excluded(f"{configuration.name} at {slots} slots", why))
                continue
            spent_s += cost_s
            wanted[slots, settings] = step
    lives = list(wanted.values())
    executor.run(lives)
    speeds = predicted_speeds(forecaster, asked)
    decision.slot_speeds = tuple(
        _with_live_speed(s, wanted.get((s.slots, s.settings)), executor.outcomes) for s in speeds
    )
    decision.slot_steps = (*plan.steps(), *lives)


def _factor(decision: Decision, engine: str) -> float:
    """Live over forecast decode time of what ran on ``engine``; 1 where nothing did."""
    live_ms = forecast_ms = 0.0
    for row in decision.rows.values():
        forecast = {run.id: run.predicted_ms for run in row.forecast}
        for run in row.live:
            if row.key.engine == engine and row.key.ngram is None and run.id in forecast:
                live_ms += run.predicted_ms
                forecast_ms += forecast[run.id]
    return live_ms / forecast_ms if forecast_ms else 1.0


def _drafting(
    layouts: Sequence[Layout], decision: Decision
) -> tuple[Layout, DraftForecast | HeadForecast, DraftSettings] | None:
    """The pick, or else the best draft, where an engine drafts with several slots."""
    able = {m.engine.name: m for m in layouts if m.engine.flavour is Flavour.LLAMA_CPP}
    keys = (decision.pick, *decision.ranking)
    for key in keys:
        if key is None or key.ngram is not None or key.settings is None or key.engine not in able:
            continue
        plan = able[key.engine].forecast
        for draft in plan.every if plan is not None else ():
            if plan is not None and plan.is_of(draft, key):
                return able[key.engine], draft, key.settings
    return None


def predicted_speeds(
    forecaster: SlotForecaster, only: Collection[str] | None = None
) -> tuple[SlotSpeed, ...]:
    """No draft and every setting of the draft at every number of slots, none run live."""
    plan = forecaster.forecaster.plan
    return tuple(
        SlotSpeed(
            engine=plan.engine.name,
            draft=forecaster.plan.draft.draft.name if settings is not None else None,
            settings=settings,
            slots=slots,
            requests=served.requests,
            predicted_tokens_per_s=served.tokens_per_s,
            predicted_each_tokens_per_s=served.tokens_per_s_each,
            live_tokens_per_s=None,
            live_each_tokens_per_s=None,
            reason="predicted only",
        )
        for slots in forecaster.plan.slots
        for settings in (None, *plan.settings)
        if (served := forecaster.served(slots, settings, only)) is not None
    )


def _with_live_speed(speed: SlotSpeed, step: LiveStep | None, outcomes: Outcomes) -> SlotSpeed:
    """``speed`` next to what its live run says, where it ran."""
    outcome = outcomes.result(step) if step is not None else None
    if outcome is None:
        return replace(speed, reason=outcomes.why_not(step)) if step is not None else speed
    return replace(
        speed,
        live_tokens_per_s=tokens_per_s(outcome),
        live_each_tokens_per_s=figures(outcome.runs).decode_speed,
        reason=None,
        command=outcome.command,
    )


def tokens_per_s(outcome: LiveOutcome) -> float:
    """Tokens after each reply's first, of all slots together, from first request to last answer."""
    busy_s = outcome.busy_s or sum(run.wall_ms for run in outcome.runs) / 1000
    return sum(run.predicted_n - 1 for run in outcome.runs) / busy_s
