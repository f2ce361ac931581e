"""Step: where drafting changed the output, how near a tie was it?

Greedy output under batched verification can differ from single decoding, since kernels differ
by batch width (docs/internals/scoring.md#same-output-as-without-a-draft). So a difference is not
called wrong: it is reported with its first position and the gap between the two tokens, as the
target itself, decoding without a draft, sees them after the same tokens. Under greedy decoding that
is the difference of their logits; above temperature 0 the same draw gives another token where
probabilities shift, however far apart the two tokens' are, so that it is the shift that takes.

What a difference costs is bounded: it is looked up once, a few of each kind are controlled, and
there the prompt is read in whole batches, only the last tokens at the width of a verification.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Protocol

import numpy as np

from cook.engines.base import Engine, ModelArgs, ServerJob
from cook.engines.server import Server
from cook.engines.worker.loading import model_load
from cook.engines.worker.worker import Worker
from cook.errors import PrerequisiteError, StepError
from cook.formats.sampling import Sampling
from cook.graph.cost import Cost
from cook.graph.step import Input, JsonValue, Step, Workbench
from cook.record.outcomes import CompareOutcome, Difference
from cook.record.prompt_runs import PromptRun
from cook.scoring.figures import NEAR_TIE_GAP
from cook.steps.deal import Dealt
from cook.steps.made_model import model_path
from cook.steps.phase import Phase
from cook.steps.work import computed_bytes, model_bytes, prompt_tokens, read_bytes
from cook.trace.chain import Draws
from cook.trace.rendering import rendered

N_PROBS = 64
"""How many of the target's candidates to ask for when looking a rejected token up."""
LOOKED_UP = 12
"""Differences whose gap is looked up, those with the shortest texts: each reads one anew."""
CONTROLLED = 3
"""Differences of a kind (near ties, wider gaps, unknown ones) that are held against batch width."""
WIDE_TOKENS = 64
"""Tokens before a difference that the control reads at the width of a verification."""
CONTROL_S = 900.0
"""Seconds that one difference may take to be controlled."""


@dataclass(frozen=True)
class CompareStep(Step[CompareOutcome]):
    """Compare the replies that ``live`` was dealt with those of ``baseline``."""

    engine: Engine
    name: str
    target: Input
    target_args: ModelArgs
    context: int
    baseline: Dealt
    live: Dealt

    kind: ClassVar[str] = "compare"
    phase: ClassVar[str] = Phase.CHECKS
    version: ClassVar[int] = 4
    """2: the same-width control; an ik reply cut at the limit is no difference. 3: gaps under the
    sampling chain; a bounded control that reads prompts in whole batches. 4: of what was dealt."""
    in_worker: ClassVar[bool] = True

    @property
    def label(self) -> str:
        return f"compare output {self.name} ({self.engine.name})"

    def inputs(self) -> Mapping[str, Input]:
        dealt = {**self.baseline.inputs("baseline"), **self.live.inputs("live")}
        return {**super().inputs(), **dealt}

    def params(self) -> Mapping[str, JsonValue]:
        return {"n_probs": N_PROBS, "names": [self.baseline.name, self.live.name]}

    def cost(self) -> Cost | None:
        """Some of the replies differ: they are looked up, and a few controlled."""
        target = model_bytes(self.target)
        if target is None:
            return None
        dealt, most = tuple(self.live.prompts.values()), self.live.live.max_tokens
        texts = sorted(tokens + most for tokens in prompt_tokens(dealt, self.target))
        # Two thirds of what may be: replies are alike as often as not.
        computed = 0.7 * sum(texts[:LOOKED_UP]) * computed_bytes(self.target)
        return Cost((), 60 * read_bytes(self.target), 60, computed, memory_bytes=target)

    def run(self, bench: Workbench) -> CompareOutcome:
        baseline = {run.id: run for run in self.baseline.read(bench)}
        others = {run.id: run for run in self.live.read(bench)}
        pairs = [(baseline[key], others[key]) for key in others if key in baseline]
        differing = [(a, b) for a, b in pairs if not _same(a, b)]
        differing.sort(key=lambda pair: pair[0].prompt_n + pair[0].predicted_n)
        differences: tuple[Difference, ...] = ()
        untold = None
        if differing:
            differences, untold = self._told(bench, differing)
        return CompareOutcome(len(pairs), len(pairs) - len(differing), differences, untold)

    def _told(
        self, bench: Workbench, differing: Sequence[tuple[PromptRun, PromptRun]]
    ) -> tuple[tuple[Difference, ...], str | None]:
        """What is known of each difference, and why none is held against batch width: a control
        that fails is told, and fails nothing."""
        path = model_path(bench, self.target)
        texts = self._texts(bench, path, [a.id for a, _ in differing])
        try:
            load = model_load(self.engine, path, self.target_args, self.context)
            with bench.workers.loaded(self.engine, load, CONTROL_S) as (worker, _):
                seen = self._seen(_WorkerLookup(worker), texts, differing)
                return tuple(self._controlled(worker, seen)), None
        except (PrerequisiteError, StepError) as error:  # no worker here, or none that can follow
            bench.workers.close()  # the server needs their memory
            job = ServerJob(path, target_args=self.target_args, context=self.context)
            with Server(self.engine, job, bench.supervisor) as server:
                seen = self._seen(_ServerLookup(server), texts, differing)
                return tuple(s.difference for s in seen), error.message.splitlines()[0]

    def _texts(self, bench: Workbench, path: Path, ids: Sequence[str]) -> list[str]:
        """The prompts of those ``ids`` as the server saw them."""
        prompts = self.baseline.prompts
        texts = [prompts[one].text for one in ids]
        if not self.baseline.live.chat:
            return texts
        return rendered(self.engine, path, self.target_args.extra, texts, bench.supervisor)

    def _seen(
        self,
        lookup: _Lookup,
        texts: Sequence[str],
        differing: Sequence[tuple[PromptRun, PromptRun]],
    ) -> Iterator[Seen]:
        for number, (text, (a, b)) in enumerate(zip(texts, differing, strict=True)):
            yield _first_difference(lookup, text, a, b, self._chain(), number < LOOKED_UP)

    def _chain(self) -> Sampling | None:
        """The chain that tokens are drawn under, with a server's defaults; None: greedy."""
        sampling = self.live.live.sampling
        return sampling.applied("server") if sampling.temperature else None

    def _controlled(self, worker: Worker, seen: Iterable[Seen]) -> Iterator[Difference]:
        """Each difference; of the first few of each kind, whether batch width alone makes it.

        Right after each is looked up, so that the worker still holds the text before it.
        """
        settings = self.live.live.settings
        n_max = settings.n_max if settings is not None else 0
        widths = sorted({2, n_max // 2 + 1, n_max + 1}, reverse=True)
        kinds: Counter[bool | None] = Counter()
        for one in seen:
            found = one.difference
            if n_max and found.baseline_token is not None and found.other_token is not None:
                kinds[one.near_tie] += 1
                if kinds[one.near_tie] <= CONTROLLED:
                    innocent = _alone(worker, one, widths, self._chain())
                    found = replace(found, without_draft=innocent)
            yield found


class _Lookup(Protocol):
    """The target's tokens, and what it holds likely after a text."""

    def tokenize(self, text: str, *, add_special: bool) -> Sequence[int]: ...

    def likely(self, text: Sequence[int]) -> Mapping[int, float]:
        """Log-probabilities of the :data:`N_PROBS` likeliest next tokens."""
        ...


@dataclass(frozen=True)
class _WorkerLookup:
    worker: Worker

    def tokenize(self, text: str, *, add_special: bool) -> Sequence[int]:
        return self.worker.tokenize(text, add_special=add_special)

    def likely(self, text: Sequence[int]) -> Mapping[int, float]:
        found = self.worker.replay(text, text[-1:], width=1, ahead=len(text) - 1, top=N_PROBS)
        assert found.top_ids is not None, "asked for"
        assert found.top_logits is not None, "asked for"
        logp = found.top_logits[0] - found.logsumexp[0]
        return dict(zip(found.top_ids[0].tolist(), logp.tolist(), strict=True))


@dataclass(frozen=True)
class _ServerLookup:
    server: Server

    def tokenize(self, text: str, *, add_special: bool) -> Sequence[int]:
        return self.server.tokenize(text, add_special=add_special)

    def likely(self, text: Sequence[int]) -> Mapping[int, float]:
        answer = self.server.complete(text, n_predict=1, temperature=0.0, seed=1, n_probs=N_PROBS)
        top = answer.probabilities[0].top if answer.probabilities else ()
        return {c.id: c.logprob for c in top if c.id is not None}


def _same(a: PromptRun, b: PromptRun) -> bool:
    if a.tokens is not None and b.tokens is not None:
        return a.tokens == b.tokens
    if a.stop == b.stop == "limit":
        # ik leaves the last drafted tokens out of a text that the token limit ends.
        return a.text.startswith(b.text) or b.text.startswith(a.text)
    return a.text == b.text


@dataclass(frozen=True)
class Seen:
    """A difference, the text before it and the baseline's from there on; above temperature 0 also
    the draws that were there."""

    difference: Difference
    text: tuple[int, ...]
    after: tuple[int, ...]
    draws: Draws | None = None

    @property
    def near_tie(self) -> bool | None:
        """None where the gap is not known."""
        gap = self.difference.gap
        return None if gap is None else abs(gap) <= NEAR_TIE_GAP

    def with_gap(self, gap: float | None, at_least: float | None) -> Seen:
        return replace(self, difference=replace(self.difference, gap=gap, gap_at_least=at_least))


def _alone(worker: Worker, seen: Seen, widths: Sequence[int], chain: Sampling | None) -> bool:
    """Whether the target alone changes its mind at one of ``widths``: prefers the other token or,
    above temperature 0, gives it by a draw that gave the baseline's."""
    ours, theirs = seen.difference.baseline_token, seen.difference.other_token
    assert ours is not None, "only differences with both tokens are chosen"
    assert theirs is not None, "only differences with both tokens are chosen"
    ahead = max(len(seen.text) - WIDE_TOKENS, 0)
    for width in widths:
        # The batch goes on behind the place, as a verification does.
        found = worker.replay(
            seen.text,
            seen.after[:width],
            width=width,
            ahead=ahead,
            top=N_PROBS if chain else 0,
        )
        if chain is None:
            changed = int(found.argmax[0]) == theirs
        else:
            assert found.top_ids is not None, "asked for"
            assert found.top_logits is not None, "asked for"
            there = Draws.of(chain, found.top_ids[0], found.top_logits[0])
            changed = seen.draws is not None and seen.draws.may_become(ours, there, theirs)
        if changed:
            return True
    return False


def _first_difference(
    lookup: _Lookup,
    prompt: str,
    a: PromptRun,
    b: PromptRun,
    chain: Sampling | None,
    looked_up: bool,
) -> Seen:
    left, right = _tokens(lookup, a), _tokens(lookup, b)
    position = next(
        (i for i, (x, y) in enumerate(zip(left, right, strict=False)) if x != y),
        min(len(left), len(right)),
    )
    ours = left[position] if position < len(left) else None
    theirs = right[position] if position < len(right) else None
    text = (*lookup.tokenize(prompt, add_special=True), *left[:position])
    seen = Seen(
        Difference(a.id, position, len(left), ours, theirs, None, None), text, left[position:]
    )
    if ours is None or theirs is None or not looked_up:
        return seen
    known = lookup.likely(text)
    if ours not in known:
        return seen
    if chain is not None:
        return _drawn(seen, ours, theirs, known, chain)
    if theirs in known:
        return seen.with_gap(known[ours] - known[theirs], None)
    return seen.with_gap(None, known[ours] - min(known.values()))


def _drawn(seen: Seen, ours: int, theirs: int, known: Mapping[int, float], chain: Sampling) -> Seen:
    """``seen`` as one draw sees it; unknown where ``known`` does not tell all that is drawn of."""
    if chain.repeat_penalty != 1.0 or not 0 < chain.whole_request()["top_k"] <= len(known):
        return seen
    ids = sorted(known, key=lambda token: -known[token])
    draws = Draws.of(chain, np.array(ids, np.int32), np.array([known[i] for i in ids], np.float32))
    at_least = None if theirs in known or ours not in draws.ranges else draws.gap_at_least()
    return replace(seen, draws=draws).with_gap(draws.gap(ours, theirs), at_least)


def _tokens(lookup: _Lookup, run: PromptRun) -> tuple[int, ...]:
    """Emitted ids; re-tokenized from the text where the engine returns none (ik)."""
    if run.tokens is not None:
        return run.tokens
    return tuple(lookup.tokenize(run.text, add_special=False))
