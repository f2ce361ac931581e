"""Step: where drafting changed the output, how near a tie was it?

Greedy output under batched verification can differ from single decoding, since kernels differ
by batch width (scoring.md section 4). So a difference is not called wrong: it is reported with
its first position and the gap between the two tokens' logits, as the target itself, decoding
without a draft, sees them after the same tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from cook.engines.base import Engine, ModelArgs, ServerJob
from cook.engines.server import Server
from cook.graph.step import JsonValue, Source, Step, Workbench, decode
from cook.steps.live import LiveOutcome, LiveStep, Model, PromptRun
from cook.steps.quantize import MODEL_FILE

N_PROBS = 64
"""How many of the target's candidates to ask for when looking a rejected token up."""


@dataclass(frozen=True)
class Difference:
    """The first token where a drafted reply left the baseline's.

    ``position`` counts generated tokens from 0. ``gap`` is logit(baseline's token) minus
    logit(other token); None when the other token was not among the asked candidates, and then
    ``gap_at_least`` bounds it from below. ``ended`` says a reply was only shorter.
    """

    prompt_id: str
    position: int
    baseline_token: int | None
    other_token: int | None
    gap: float | None
    gap_at_least: float | None


@dataclass(frozen=True)
class CompareOutcome:
    """``identical`` of ``replies`` replies are token for token the baseline's."""

    replies: int
    identical: int
    differences: tuple[Difference, ...]


@dataclass(frozen=True)
class CompareStep(Step[CompareOutcome]):
    """Compare the replies of ``live`` rounds with those of ``baseline`` rounds."""

    engine: Engine
    name: str
    target: Model
    target_args: ModelArgs
    context: int
    baseline: tuple[LiveStep, ...]
    live: tuple[LiveStep, ...]

    kind: ClassVar[str] = "compare"
    result_type: ClassVar[type] = CompareOutcome

    @property
    def label(self) -> str:
        return f"compare output {self.name} ({self.engine.name})"

    def uses(self) -> Engine:
        return self.engine

    def inputs(self) -> Mapping[str, Step[Any] | Source]:
        named: dict[str, Step[Any] | Source] = {"target": self.target}
        for role, steps in (("baseline", self.baseline), ("live", self.live)):
            named |= {f"{role}-{index:03}": step for index, step in enumerate(steps)}
        return named

    def params(self) -> Mapping[str, JsonValue]:
        return {"n_probs": N_PROBS}

    def run(self, bench: Workbench) -> CompareOutcome:
        baseline = self._runs(bench, self.baseline)
        others = self._runs(bench, self.live)
        pairs = [(baseline[key], others[key]) for key in others if key in baseline]
        differing = [(a, b) for a, b in pairs if not _same(a, b)]
        differences: list[Difference] = []
        if differing:
            job = ServerJob(
                target=bench.file(self.target, MODEL_FILE),
                target_args=self.target_args,
                context=self.context,
            )
            prompts = {p.id: p.text for step in self.baseline for p in step.prompts}
            chat = self.baseline[0].chat
            with Server(self.engine, job, bench.supervisor) as server:
                for a, b in differing:
                    text = prompts[a.id]
                    text = server.apply_template(text) if chat else text
                    differences.append(_first_difference(server, text, a, b))
        return CompareOutcome(len(pairs), len(pairs) - len(differing), tuple(differences))

    def _runs(self, bench: Workbench, steps: tuple[LiveStep, ...]) -> dict[str, PromptRun]:
        outcomes: list[LiveOutcome] = [decode(step, bench.artifact(step)) for step in steps]
        return {run.id: run for outcome in outcomes for run in outcome.runs}


def _same(a: PromptRun, b: PromptRun) -> bool:
    if a.tokens is not None and b.tokens is not None:
        return a.tokens == b.tokens
    return a.text == b.text


def _first_difference(server: Server, prompt: str, a: PromptRun, b: PromptRun) -> Difference:
    left, right = _tokens(server, a), _tokens(server, b)
    position = next(
        (i for i, (x, y) in enumerate(zip(left, right, strict=False)) if x != y),
        min(len(left), len(right)),
    )
    ours = left[position] if position < len(left) else None
    theirs = right[position] if position < len(right) else None
    gap = bound = None
    if ours is not None and theirs is not None:
        prefix = [*server.tokenize(prompt, add_special=True), *left[:position]]
        gap, bound = _gap(server, prefix, ours, theirs)
    return Difference(a.id, position, ours, theirs, gap, bound)


def _gap(
    server: Server, prefix: Sequence[int], ours: int, theirs: int
) -> tuple[float | None, float | None]:
    answer = server.complete(prefix, n_predict=1, temperature=0.0, seed=1, n_probs=N_PROBS)
    if not answer.probabilities:
        return None, None
    known = {c.id: c.logprob for c in answer.probabilities[0].top}
    if ours not in known:
        return None, None
    if theirs in known:
        return known[ours] - known[theirs], None
    return None, known[ours] - min(known.values())


def _tokens(server: Server, run: PromptRun) -> tuple[int, ...]:
    """Emitted ids; re-tokenized from the text where the engine returns none (ik)."""
    if run.tokens is not None:
        return run.tokens
    return tuple(server.tokenize(run.text, add_special=False))
