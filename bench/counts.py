"""One-pass replay against the server's own counts, for quants from 16 down to 1.7 bits.

Every quant drafts live for the demo target over all demo prompts; then the very tokens which
that run emitted are replayed in one pass, and drafted and accepted tokens are compared, in all
and request by request. Not a timing: other programs may run beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.demo_score import DOWN_TO_ONE_BIT, study_layout
from bench.study import Study, empty_executor
from cook.build.fitting import live_runs
from cook.build.layout import Configuration, DraftForecast, ForecastPlan, Layout
from cook.engines.base import DraftSettings
from cook.engines.process.supervisor import Supervisor
from cook.engines.worker.loading import model_load
from cook.engines.worker.worker import Worker
from cook.formats.arrays import Ids
from cook.formats.trace_file import TraceFile
from cook.graph.execute import Executor
from cook.graph.step import Source
from cook.record.prompt_runs import PromptRun
from cook.scoring.simulate import Profile, positions_of, simulate
from cook.steps.made_model import MODEL_FILE
from cook.steps.trace import TRACE_FILE

TOKENS, LENGTH = 256, 8
MOST_POINTS, LEAST_DRAFTED = 0.5, 20_000
MAKING = frozenset({"imatrix", "quantize", "head", "reduce"})


@dataclass(frozen=True)
class Counted:
    """(drafted, accepted) tokens of the same requests as the server and as replay counts them;
    ``equal`` of ``requests`` agree in both."""

    theirs: tuple[int, int]
    ours: tuple[int, int]
    equal: int
    requests: int

    @property
    def points(self) -> float:
        """Acceptance by replay minus the server's, in points."""
        return 100 * (self.ours[1] / self.ours[0] - self.theirs[1] / self.theirs[0])

    def __str__(self) -> str:
        (drafted, accepted), (ours, agreed) = self.theirs, self.ours
        return (
            f"server {accepted}/{drafted} = {accepted / drafted:.2%}, replay {agreed}/{ours} = "
            f"{agreed / ours:.2%}, {self.points:+.2f} points; "
            f"{self.equal} of {self.requests} requests equal"
        )


def counts() -> Study:
    """Acceptance by replay minus the server's, in points, for every quant."""
    layout, traced = (
        study_layout(
            method,
            limit=None,
            tokens=TOKENS,
            n_max=(LENGTH,),
            quants=DOWN_TO_ONE_BIT,
        )
        for method in ("live", "replay")
    )
    lines, within = [], True
    with empty_executor() as executor:
        for configuration, found in counted(executor, layout, traced):
            draft = configuration.draft
            assert draft is not None, "the grid holds drafts"
            assert draft.elements, "of models that are here"
            bpw = (draft.predicted_tensor_bytes or 0) * 8 / draft.elements
            within &= abs(found.points) <= MOST_POINTS and found.theirs[0] >= LEAST_DRAFTED
            lines.append(f"  {draft.name:8} {bpw:5.2f} bpw: {found}")
    head = (
        f"replay of what live runs emitted, n_max {LENGTH}, {TOKENS} tokens a reply: "
        f"at most {MOST_POINTS} points, at least {LEAST_DRAFTED} drafted"
    )
    return Study((head, *lines), within)


def counted(
    executor: Executor, layout: Layout, traced: Layout
) -> Iterator[tuple[Configuration, Counted]]:
    """Every candidate of ``layout`` after its live runs, what these emitted being replayed;
    ``traced`` is the same recipe's layout by replay."""
    assert traced.forecast is not None, "laid out by replay"
    executor.run(step for draft in layout.drafts for step in draft.making() if step.kind in MAKING)
    executor.run([traced.forecast.trace])
    recorded = TraceFile(executor.outcomes.artifact(traced.forecast.trace).file(TRACE_FILE))
    prompts = {reply.head.id: reply.prompt for reply in recorded}
    for configuration in layout.grid:
        executor.run(configuration.rounds)
        draft, settings = configuration.draft, configuration.settings
        assert draft is not None, "the grid holds drafts"
        assert settings is not None, "so do they"
        live = list(live_runs(configuration, executor).values())
        step = next(d for d in traced.forecast.drafts if d.draft.name == draft.name)
        model = draft.model
        file = (
            model.path
            if isinstance(model, Source)
            else executor.outcomes.artifact(model).file(MODEL_FILE)
        )
        equal, ours = _recount(executor, step, traced.forecast, file, live, prompts, settings)
        theirs = sum(r.draft_n or 0 for r in live), sum(r.draft_n_accepted or 0 for r in live)
        yield configuration, Counted(theirs, ours, equal, len(live))


def _recount(
    executor: Executor,
    draft: DraftForecast,
    plan: ForecastPlan,
    model: Path,
    live: Sequence[PromptRun],
    prompts: Mapping[str, Ids],
    settings: DraftSettings,
) -> tuple[int, tuple[int, int]]:
    """(requests with equal counts, our (drafted, accepted)) over ``live`` requests."""
    equal, drafted, accepted = 0, 0, 0
    with Worker.open(plan.engine, Supervisor(executor.logs / "counts")) as worker:
        args = draft.replays[0].args
        info = worker.load(model_load(plan.engine, model, args, plan.context))
        for run in live:
            assert run.tokens is not None, "mainline returns ids"
            found = worker.replay(prompts[run.id], run.tokens)
            positions = positions_of(
                found,
                np.array(run.tokens, np.int32),
                prompt=len(prompts[run.id]),
                reply=len(run.tokens),
                eog=info.eog,
                n_predict=plan.n_predict,
                context=min(plan.context, info.context_train),
            )
            told = simulate(positions, settings, Profile.MAINLINE_2026_10)
            drafted += told.draft_n
            accepted += told.draft_n_accepted
            theirs = (run.draft_n or 0, run.draft_n_accepted or 0)
            equal += (told.draft_n, told.draft_n_accepted) == theirs
    return equal, (drafted, accepted)
