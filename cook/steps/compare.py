"""Step: where drafting changed the output, how near a tie was it?

Greedy output under batched verification can differ from single decoding, since kernels differ
by batch width (docs/internals/scoring.md#same-output-as-without-a-draft). So a difference is not
called wrong: it is reported with its first position and the gap between the two tokens' logits, as
the target itself, decoding without a draft, sees them after the same tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from cook.engines.base import Engine, ModelArgs, ServerJob
from cook.engines.server import Server
from cook.engines.worker.loading import model_load
from cook.engines.worker.worker import Worker
from cook.errors import PrerequisiteError
from cook.graph.step import Input, JsonValue, Step, Workbench, decode
from cook.record.outcomes import CompareOutcome, Difference
from cook.record.prompt_runs import PromptRun
from cook.steps.live import LiveOutcome, LiveStep
from cook.steps.quantize import MODEL_FILE

N_PROBS = 64
"""How many of the target's candidates to ask for when looking a rejected token up."""


@dataclass(frozen=True)
class CompareStep(Step[CompareOutcome]):
    """Compare the replies of ``live`` rounds with those of ``baseline`` rounds."""

    engine: Engine
    name: str
    target: Input
    target_args: ModelArgs
    context: int
    baseline: tuple[LiveStep, ...]
    live: tuple[LiveStep, ...]

    kind: ClassVar[str] = "compare"
    version: ClassVar[int] = 2
    """2: the same-width control; an ik reply cut at the limit is no difference."""
    result_type: ClassVar[type] = CompareOutcome

    @property
    def label(self) -> str:
        return f"compare output {self.name} ({self.engine.name})"

    def uses(self) -> Engine:
        return self.engine

    def inputs(self) -> Mapping[str, Input]:
        named: dict[str, Input] = {"target": self.target}
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
        asked: dict[str, tuple[int, ...]] = {}
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
                    prompt = server.tokenize(text, add_special=True)
                    differences.append(_first_difference(server, prompt, a, b))
                    asked[a.id] = (*prompt, *_tokens(server, a))
            differences = self._controlled(bench, differences, asked)
        return CompareOutcome(len(pairs), len(pairs) - len(differing), tuple(differences))

    def _controlled(
        self, bench: Workbench, differences: list[Difference], texts: Mapping[str, tuple[int, ...]]
    ) -> list[Difference]:
        """Say of every difference whether batch width alone makes it, where a worker can run."""
        settings = self.live[0].settings
        if settings is None or not settings.n_max:
            return differences
        widths = sorted({2, settings.n_max // 2 + 1, settings.n_max + 1})
        try:
            path = bench.file(self.target, MODEL_FILE)
            load = model_load(self.engine, path, self.target_args, self.context, bench.threads)
            with Worker.open(self.engine, bench.supervisor, name="control") as worker:
                worker.load(load)
                return [_alone(worker, d, texts[d.prompt_id], widths) for d in differences]
        except PrerequisiteError:
            return differences

    def _runs(self, bench: Workbench, steps: tuple[LiveStep, ...]) -> dict[str, PromptRun]:
        outcomes: list[LiveOutcome] = [decode(step, bench.artifact(step)) for step in steps]
        return {run.id: run for outcome in outcomes for run in outcome.runs}


def _same(a: PromptRun, b: PromptRun) -> bool:
    if a.tokens is not None and b.tokens is not None:
        return a.tokens == b.tokens
    if a.stop == b.stop == "limit":
        # ik leaves the last drafted tokens out of a text that the token limit ends.
        return a.text.startswith(b.text) or b.text.startswith(a.text)
    return a.text == b.text


def _alone(
    worker: Worker, found: Difference, text: tuple[int, ...], widths: Sequence[int]
) -> Difference:
    """``found`` with whether the target alone changes its mind at one of ``widths``."""
    if found.other_token is None or found.baseline_token is None:
        return found
    at = len(text) - found.reply_tokens + found.position
    for width in widths:
        seen = worker.replay(text[:at], text[at : at + width], width=width)
        if int(seen.argmax[0]) == found.other_token:
            return replace(found, without_draft=True)
    return replace(found, without_draft=False)


def _first_difference(
    server: Server, prompt: Sequence[int], a: PromptRun, b: PromptRun
) -> Difference:
    left, right = _tokens(server, a), _tokens(server, b)
    position = next(
        (i for i, (x, y) in enumerate(zip(left, right, strict=False)) if x != y),
        min(len(left), len(right)),
    )
    ours = left[position] if position < len(left) else None
    theirs = right[position] if position < len(right) else None
    gap = bound = None
    if ours is not None and theirs is not None:
        prefix = [*prompt, *left[:position]]
        gap, bound = _gap(server, prefix, ours, theirs)
    return Difference(a.id, position, len(left), ours, theirs, gap, bound)


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
