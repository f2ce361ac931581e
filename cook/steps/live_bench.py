"""A live round by ik's llama-spec-bench in the place of a server."""

from __future__ import annotations

import resource
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cook.engines.spec_bench import (
    Attempt,
    BenchPrompt,
    BenchRun,
    BenchSampling,
    UnprintableReply,
    run_spec_bench,
)
from cook.errors import StepError
from cook.graph.step import Workbench
from cook.prompts.load import Prompt
from cook.steps.contention import Watch
from cook.steps.live import WARM_UP, WARM_UP_TOKENS, LiveOutcome, PromptRun

if TYPE_CHECKING:
    from cook.steps.live import LiveStep

PORT = 8080
"""In the command that is shown of the server; the engines' own default."""
_OURS = "cook:"
"""Begins the ids of texts that warm up or part, and are not counted."""


def bench_round(step: LiveStep, bench: Workbench) -> LiveOutcome:
    """The prompts of ``step`` through llama-spec-bench; those that failed are left out, told.

    StepError when none is left.
    """
    watch, before_s = Watch.start(), _children_s()
    runs, lost = _Round(step, bench).tried(step.prompts)
    others = watch.others_cores(_children_s() - before_s)
    categories = {p.id: p.category for p in step.prompts}
    attempts = [a for run in runs for a in run.attempts]
    asked = [a for a in attempts if not a.id.startswith(_OURS)]
    lost += [f"{a.id}: {a.error}" for a in asked if a.error is not None]
    good = [a for a in asked if a.error is None]
    if not good:
        raise StepError(f"{step.label}: no prompt succeeded: {lost[0]}")
    return LiveOutcome(
        runs=tuple(_prompt_run(a, categories[a.id]) for a in good),
        load_seconds=sum(r.seconds for r in runs) - sum(a.total_ms for a in attempts) / 1000,
        peak_rss_bytes=max(r.peak_rss_bytes for r in runs),
        command=runs[0].command,
        others_cores=others,
        lost=tuple(lost),
        serve=step.engine.server_command(step.server_job(bench), PORT, None),
    )


@dataclass(frozen=True)
class _Round:
    step: LiveStep
    bench: Workbench

    def tried(self, prompts: Sequence[Prompt]) -> tuple[list[BenchRun], list[str]]:
        """Runs that hold every prompt but those named, with the reason, in the second list."""
        try:
            return [self._run(prompts)], []
        except UnprintableReply:
            if len(prompts) == 1:
                told = "its reply is no UTF-8, which llama-spec-bench cannot print"
                return [], [f"{prompts[0].id}: {told}"]
        middle = len(prompts) // 2
        halves = [self.tried(half) for half in (prompts[:middle], prompts[middle:])]
        return [r for runs, _ in halves for r in runs], [t for _, lost in halves for t in lost]

    def _run(self, prompts: Sequence[Prompt]) -> BenchRun:
        step = self.step
        rows = [BenchPrompt(f"{_OURS}warm-up", WARM_UP, WARM_UP_TOKENS)]
        for index, prompt in enumerate(prompts):
            if index and step.remembers:
                text = f"{WARM_UP} {index}"
                rows.append(BenchPrompt(f"{_OURS}{index}", text, step.parting_tokens))
            rows.append(BenchPrompt(prompt.id, prompt.text, step.max_tokens))
        chain = step.sampling
        greedy = not chain.temperature
        return run_spec_bench(
            step.engine,
            step.server_job(self.bench),
            rows,
            BenchSampling(
                temperature=chain.temperature,
                seed=chain.seed,
                top_k=1 if greedy else chain.top_k,
                top_p=None if greedy else chain.top_p,
                min_p=None if greedy else chain.min_p,
                repeat_penalty=None if greedy else chain.repeat_penalty,
            ),
            self.bench.supervisor,
            template=step.chat,
            on_row=lambda done: self.bench.advance(min(1.0, done / len(rows))),
        )


def _prompt_run(attempt: Attempt, category: str) -> PromptRun:
    return PromptRun(
        id=attempt.id,
        category=category,
        prompt_n=attempt.prompt_n,
        prompt_ms=attempt.prompt_ms,
        predicted_n=attempt.generated,
        predicted_ms=attempt.decode_ms,
        wall_ms=attempt.total_ms,
        draft_n=attempt.drafted or None,
        draft_n_accepted=attempt.accepted if attempt.drafted else None,
        tokens=None,
        text=attempt.text,
        stop=attempt.stop,
    )


def _children_s() -> float:
    """Processor time of the programs that have ended here."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
