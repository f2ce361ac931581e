"""What the steps of a plan's servers cost: its measured curves, or typed ones in their place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from cook.engines.base import UBATCH
from cook.formats.trace_file import TraceFile
from cook.graph.execute import Outcomes
from cook.job.layout import DraftForecast, ForecastPlan, HeadForecast
from cook.record.record import CandidateKey, PromptRun
from cook.scoring.batch_curve import (
    BatchCurve,
    Link,
    Timings,
    curve_over_link,
    with_prompt_time_separated,
)
from cook.steps.curve import CurveOutcome, CurveStep
from cook.steps.trace import TRACE_FILE, TraceStep

UNPRICED = Timings(
    verify=BatchCurve((0,), (1,), ((1.0,),), typed=True),
    draft=BatchCurve((0,), (1,), ((1e-9,),), typed=True),
)
"""Every target step costs the same and drafting nothing: ranks by acceptance length alone."""


@dataclass(frozen=True)
class TimedPlan:
    """A plan whose steps have run.

    ``verify`` and ``draft`` are times that were typed in the place of measured ones. ``link``: the
    drafts are on the other end of it, although they were timed here.
    """

    plan: ForecastPlan
    outcomes: Outcomes
    verify: BatchCurve | None = None
    draft: BatchCurve | None = None
    link: Link | None = None

    @cached_property
    def trace(self) -> TraceFile:
        step = self.plan.trace
        prompts = step.prompts if isinstance(step, TraceStep) else ()
        # Another category makes no other recording: the recipe's holds.
        categories = {prompt.id: prompt.category for prompt in prompts}
        return TraceFile(self.outcomes.artifact(step).file(TRACE_FILE), categories)

    @property
    def priced(self) -> bool:
        """Whether times are known, or asked for: without them forecasts only count."""
        return self.verify is not None or bool(self.plan.verify)

    def timings(self, draft: DraftForecast | HeadForecast) -> Timings | None:
        """What steps with ``draft`` cost; None where it could not be timed. :data:`UNPRICED` where
        no times are asked for."""
        if not self.priced:
            return UNPRICED
        step = self.plan.target_of(draft)
        target, mine = self.curve(step), self.curve(draft.curve)
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
            target_prefill=self.prompts(step),
            draft_prefill=self.over_link(prefill) if prefill else None,
            reads_by_rows=self.reads_by_rows(step),
            reload_s=mine.reload_s if mine is not None and self.link is None else 0.0,
        )

    def over_link(self, curve: BatchCurve, rows: int = 1) -> BatchCurve:
        """``curve`` of a draft's batches behind the link, if there is one; ``rows`` of logits."""
        if self.link is None:
            return curve
        return curve_over_link(curve, self.link, self.trace.header.vocabulary_size, rows)

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
            reads_by_rows=self.reads_by_rows(self.plan.plain),
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

    def reads_by_rows(self, step: CurveStep | None) -> tuple[tuple[int, BatchCurve], ...]:
        """The same by the rows of logits that a batch may have, where they make a difference."""
        timed = self.curve(step)
        if step is None or timed is None:
            return ()
        each = zip(step.reserved, timed.read_shares, strict=True)
        return tuple((n, timed.prompts(step.args.ubatch or UBATCH, share)) for n, share in each)

    def with_prompt_time_separated(
        self, key: CandidateKey, live: Sequence[PromptRun]
    ) -> tuple[PromptRun, ...]:
        """The live requests of a candidate, as requests of every engine are counted."""
        draft = next((d for d in self.plan.every if self.plan.is_of(d, key)), None)
        timings = self.timings(draft) if draft is not None else None
        profile = self.plan.profile_of(draft)
        return tuple(with_prompt_time_separated(run, timings, profile) for run in live)
