"""One-pass replay against the server's own counts, for quants from 16 down to 1.7 bits.

Every quant drafts live for the demo target over all demo prompts; then the very tokens which
that run emitted are replayed in one pass, and drafted and accepted tokens are compared, in all
and request by request. Not a timing: other programs may run beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from bench.demo_score import DOWN_TO_ONE_BIT, study_layout
from bench.study import Study, empty_executor
from cook.build.decide import live_runs
from cook.engines.base import DraftSettings
from cook.engines.process.supervisor import Supervisor
from cook.engines.worker.loading import model_load
from cook.engines.worker.worker import Worker
from cook.formats.arrays import Ids
from cook.formats.trace_file import TraceFile
from cook.graph.execute import Executor
from cook.record.prompt_runs import PromptRun
from cook.scoring.simulate import Profile, positions_of, simulate
from cook.steps.made_model import MODEL_FILE
from cook.steps.replay import ReplayStep
from cook.steps.trace import TRACE_FILE

TOKENS, LENGTH = 256, 8
MOST_POINTS, LEAST_DRAFTED = 0.5, 20_000


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
    assert traced.forecast is not None, "asked for"
    lines, within = [], True
    with empty_executor() as executor:
        executor.run([d.quantize for d in layout.drafts if d.quantize is not None])
        executor.run([traced.forecast.trace])
        recorded = TraceFile(executor.outcomes.artifact(traced.forecast.trace).file(TRACE_FILE))
        prompts = {reply.head.id: reply.prompt for reply in recorded}
        for configuration in layout.grid:
            executor.run(configuration.rounds)
            draft = configuration.draft
            assert draft is not None, "the grid holds drafts"
            live = list(live_runs(configuration, executor).values())
            step = next(d for d in traced.forecast.drafts if d.draft.name == draft.name)
            assert draft.quantize is not None, "so are these"
            assert draft.elements, "so are these"
            model = executor.outcomes.artifact(draft.quantize).file(MODEL_FILE)
            bpw = (draft.predicted_tensor_bytes or 0) * 8 / draft.elements
            equal, ours = _recount(executor, step.replays[0], model, live, prompts)
            theirs = sum(r.draft_n or 0 for r in live), sum(r.draft_n_accepted or 0 for r in live)
            points = 100 * (ours[1] / ours[0] - theirs[1] / theirs[0])
            within &= abs(points) <= MOST_POINTS and theirs[0] >= LEAST_DRAFTED
            lines.append(
                f"  {draft.name:8} {bpw:5.2f} bpw: "
                f"server {theirs[1]}/{theirs[0]} = {theirs[1] / theirs[0]:.2%}, replay "
                f"{ours[1]}/{ours[0]} = {ours[1] / ours[0]:.2%}, {points:+.2f} points; "
                f"{equal} of {len(live)} requests equal"
            )
    head = (
        f"replay of what live runs emitted, n_max {LENGTH}, {len(prompts)} prompts x {TOKENS} "
        f"tokens: at most {MOST_POINTS} points, at least {LEAST_DRAFTED} drafted"
    )
    return Study((head, *lines), within)


def _recount(
    executor: Executor,
    replay: ReplayStep,
    model: Path,
    live: Sequence[PromptRun],
    prompts: Mapping[str, Ids],
) -> tuple[int, tuple[int, int]]:
    """(requests with equal counts, our (drafted, accepted)) over ``live`` requests."""
    equal, drafted, accepted = 0, 0, 0
    with Worker.open(replay.engine, Supervisor(executor.logs / "counts")) as worker:
        info = worker.load(model_load(replay.engine, model, replay.args, 4096))
        for run in live:
            assert run.tokens is not None, "mainline returns ids"
            found = worker.replay(prompts[run.id], run.tokens)
            positions = positions_of(
                found,
                np.array(run.tokens, np.int32),
                prompt=len(prompts[run.id]),
                reply=len(run.tokens),
                eog=info.eog,
                n_predict=TOKENS,
                context=min(4096, info.context_train),
            )
            told = simulate(positions, DraftSettings(LENGTH), Profile.MAINLINE_2026_10)
            drafted += told.draft_n
            accepted += told.draft_n_accepted
            theirs = (run.draft_n or 0, run.draft_n_accepted or 0)
            equal += (told.draft_n, told.draft_n_accepted) == theirs
    return equal, (drafted, accepted)
