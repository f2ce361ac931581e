"""What a mix does on prompts: replayed, counted prompt by prompt, and never asked twice.

Every replay is a step, so what a search was told stays in the store: a search that was broken off,
or is asked again with a larger budget, is told the same at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from cook.engines.base import DraftSettings, Engine, ModelArgs
from cook.formats.arrays import Floats
from cook.formats.gguf import GgufFile
from cook.formats.trace_file import TraceFile
from cook.graph.execute import Executor
from cook.graph.step import Source, Step
from cook.recipe.engine_rules import to_engine_rules
from cook.recipe.rules import Resolution
from cook.scoring.simulate import Profile, simulate
from cook.search.space import Mix, Space
from cook.steps.imatrix import ImatrixStep
from cook.steps.quantize import QuantizeStep
from cook.steps.replay import ReplayStep, divergences, positions_in, replayed
from cook.steps.trace import TRACE_FILE, Trace
from cook.steps.variant import TOP, VariantStep

BASE = "Q8_0"
"""The base type of mixes that are only looked at: rules state every tensor, and this one asks for
no imatrix on any engine."""


@dataclass(frozen=True, eq=False)
class Replies:
    """What a draft does on replies, a column each [prompts].

    ``tokens`` are those after the first of each reply; ``kld``, from the source's own
    probabilities, and ``nll``, of the target's text, are sums over them in nats.
    """

    ids: tuple[str, ...]
    categories: tuple[str, ...]
    tokens: Floats
    drafted: Floats
    accepted: Floats
    nll: Floats
    kld: Floats

    @property
    def cycles(self) -> Floats:
        """By token identity: tokens after the first = accepted + cycles."""
        return self.tokens - self.accepted

    @property
    def acceptance_length(self) -> float:
        """Tokens a cycle, over all."""
        return float(self.tokens.sum() / self.cycles.sum())

    @property
    def mean_kld(self) -> float:
        """Nats a token."""
        return float(self.kld.sum() / self.tokens.sum())

    @property
    def mean_nll(self) -> float:
        """Nats a token: the logarithm of the perplexity of the target's own text."""
        return float(self.nll.sum() / self.tokens.sum())

    def on(self, ids: Sequence[str]) -> Replies:
        """On these prompts, in this order."""
        place = {name: i for i, name in enumerate(self.ids)}
        at = np.array([place[name] for name in ids], dtype=np.intp)
        return Replies(
            tuple(ids),
            tuple(self.categories[i] for i in at),
            *(a[at] for a in (self.tokens, self.drafted, self.accepted, self.nll, self.kld)),
        )


def joined(parts: Sequence[Replies]) -> Replies:
    """One after the other."""

    def column(name: str) -> Floats:
        return np.concatenate([getattr(part, name) for part in parts])

    return Replies(
        tuple(name for part in parts for name in part.ids),
        tuple(name for part in parts for name in part.categories),
        *(column(name) for name in ("tokens", "drafted", "accepted", "nll", "kld")),
    )


class Evaluator(Protocol):
    """Whoever knows what a mix does."""

    def __call__(self, mixes: Sequence[Mix], prompts: tuple[str, ...]) -> Sequence[Replies]:
        """Each of ``mixes`` on the prompts of these ids."""


@dataclass(frozen=True)
class Deployed:
    """How the draft of a search is run: on what it is replayed, with which arguments, and how its
    drafts are counted. ``sources``: what every mix is quantized of."""

    engine: Engine
    file: GgufFile
    source: Source
    imatrix: ImatrixStep | Source | None
    allow_requantize: bool
    trace: Trace
    args: ModelArgs
    settings: DraftSettings
    profile: Profile
    n_predict: int
    context: int

    def quantized(
        self, types: Mapping[str, str], name: str, base: str = BASE, *, kept: frozenset[str]
    ) -> QuantizeStep:
        """The step that makes a file of these types; ``kept`` tensors are not quantized."""
        whole = {t.name: types.get(t.name, t.type_name) for t in self.file.tensors}
        return QuantizeStep(
            engine=self.engine,
            quant=name,
            source=self.source,
            imatrix=self.imatrix,
            ftype=base,
            rules=to_engine_rules(Resolution(whole, {}, kept)),
            expected=tuple(sorted(whole.items())),
            predicted_tensor_bytes=None,
            allow_requantize=self.allow_requantize,
        )

    def variant(self, mix: QuantizeStep, prompts: tuple[str, ...]) -> VariantStep:
        """Its replay on these prompts."""
        replay = ReplayStep(self.engine, mix.quant, mix, self.trace, self.args, prompts=prompts)
        return VariantStep(replay, self.own)

    @property
    def own(self) -> ReplayStep:
        """What the source itself says."""
        return ReplayStep(self.engine, "source", self.source, self.trace, self.args, top=TOP)


@dataclass(eq=False)
class Replays:
    """The evaluator that replays, by an executor."""

    deployed: Deployed
    space: Space
    executor: Executor

    def __call__(self, mixes: Sequence[Mix], prompts: tuple[str, ...]) -> Sequence[Replies]:
        return self.of_files([self.quantized(mix) for mix in mixes], prompts)

    def prepare(self) -> None:
        """Make what every replay needs: the trace, the imatrix, what the source says itself."""
        deployed = self.deployed
        needed = [deployed.trace, deployed.imatrix, deployed.own]
        self.executor.run(step for step in needed if isinstance(step, Step))
        for failure in self.executor.outcomes.failures.values():
            raise failure.error

    def quantized(self, mix: Mix) -> QuantizeStep:
        """The step that makes ``mix``."""
        return self.quantized_as(self.space.tensor_types(mix))

    def quantized_as(self, types: Mapping[str, str]) -> QuantizeStep:
        """The step that makes a file of these types of tensors."""
        chosen = {t.name for tie in self.space.ties for t in tie.tensors}
        kept = frozenset(t.name for t in self.deployed.file.tensors if t.name not in chosen)
        return self.deployed.quantized(types, "mix", kept=kept)

    def of_files(
        self, files: Sequence[QuantizeStep], prompts: tuple[str, ...]
    ) -> Sequence[Replies]:
        """Any quants on the prompts of these ids; what a replay fails with is raised."""
        steps = [self.deployed.variant(one, prompts) for one in files]
        self.executor.run(steps)
        return [self._replies(step, prompts) for step in steps]

    def _replies(self, step: VariantStep, prompts: tuple[str, ...]) -> Replies:
        outcomes, deployed = self.executor.outcomes, self.deployed
        artifact = outcomes.artifact(step)
        trace = self.trace
        rows: list[tuple[str, str, float, float, float, float, float]] = []
        klds = divergences(step.replay, trace, artifact)
        for (reply, seen), (_, kld) in zip(
            replayed(step.replay, trace, artifact), klds, strict=True
        ):
            head, drafted = reply.head, slice(1, reply.head.emitted)
            run = simulate(
                positions_in(
                    trace, reply, seen, 0.0, n_predict=deployed.n_predict, context=deployed.context
                ),
                deployed.settings,
                deployed.profile,
            )
            assert kld is not None, "a variant is compared with its source"
            sums = -float(seen.logq[drafted].sum()), float(kld[drafted].sum())
            counts = head.emitted - 1, run.draft_n, run.draft_n_accepted
            rows.append((head.id, head.category, *counts, *sums))
        ids, categories, *figures = zip(*rows, strict=True)
        columns = (np.array(column, dtype=np.float64) for column in figures)
        return Replies(ids, categories, *columns).on(prompts)

    @property
    def trace(self) -> TraceFile:
        """What is replayed on, once it is there."""
        return TraceFile(self.executor.outcomes.artifact(self.deployed.trace).file(TRACE_FILE))
