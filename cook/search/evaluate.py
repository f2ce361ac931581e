"""What a mix does on prompts: replayed, counted prompt by prompt, and kept with its reason.

Every replay is a step whose artifact stays in the store: a search that was interrupted, or runs
again with a larger budget, takes from there what was replayed before. An evaluation is made once
and counted against the budget.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from cook.engines.base import DraftSettings
from cook.formats.arrays import Floats
from cook.formats.gguf import GgufFile
from cook.formats.trace_file import TraceFile
from cook.graph.execute import Executor
from cook.recipe.engine_rules import to_engine_rules
from cook.recipe.rules import Resolution
from cook.record.search_record import Purpose
from cook.scoring.simulate import RULES, Profile, simulate
from cook.search.space import Mix, Space
from cook.steps.curve import CurveStep
from cook.steps.quantize import QuantizeStep
from cook.steps.replay import ReplayStep, divergences, positions_in, replayed
from cook.steps.trace import TRACE_FILE
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


Evaluator = Callable[[Mix, tuple[str, ...]], Replies]
"""What a mix does on the prompts of these ids: by replay, or from a table (tools/mix_table.py)."""


@dataclass(frozen=True)
class Deployed:
    """How the draft of a search is run: ``mix`` makes the file of any mix, once it has its rules;
    ``replay`` is that of the source itself, whose header is ``file``, and in drafts of ``settings``
    is counted what is accepted. ``lengths``: of all drafts that the recipe tries; ``verify`` times
    the target's verification of them."""

    file: GgufFile
    mix: QuantizeStep
    replay: ReplayStep
    verify: CurveStep | None
    lengths: tuple[int, ...]
    settings: DraftSettings
    profile: Profile
    n_predict: int
    context: int

    @property
    def mirrors(self) -> bool:
        """Whether the engine re-evaluates what is verified with the draft as well."""
        return RULES[self.profile].mirrors


@dataclass(eq=False)
class Replays:
    """The evaluator that replays, by an executor."""

    deployed: Deployed
    space: Space
    executor: Executor

    def __call__(self, mix: Mix, prompts: tuple[str, ...]) -> Replies:
        (replies,) = self.of_files([self.file_of(self.space.tensor_types(mix))], prompts)
        return replies

    def prepare(self) -> None:
        """Make what every replay needs: the trace, the imatrix, what the source says itself."""
        deployed = self.deployed
        self.executor.run([deployed.replay.trace, *deployed.mix.steps(), self._of_source()])
        for failure in self.executor.outcomes.failures.values():
            raise failure.error

    def file_of(self, types: Mapping[str, str]) -> QuantizeStep:
        """The step that makes a file of these types of tensors."""
        deployed = self.deployed
        chosen = {t.name for t in self.space.tensors}
        kept = frozenset(t.name for t in deployed.file.tensors if t.name not in chosen)
        whole = {t.name: types.get(t.name, t.type_name) for t in deployed.file.tensors}
        return replace(
            deployed.mix,
            rules=to_engine_rules(Resolution(whole, {}, kept)),
            expected=tuple(sorted(whole.items())),
        )

    def of_files(self, files: Sequence[QuantizeStep], prompts: tuple[str, ...]) -> list[Replies]:
        """Any quants on the prompts of these ids; what a replay fails with is raised."""
        replay, source = self.deployed.replay, self._of_source()
        steps = [
            VariantStep(replace(replay, name=file.quant, draft=file, prompts=prompts), source)
            for file in files
        ]
        self.executor.run(steps)
        return [self._replies(step, prompts) for step in steps]

    def _of_source(self) -> ReplayStep:
        """The replay of the source itself, which mixes are compared with."""
        return replace(self.deployed.replay, top=TOP)

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
            # Nothing counts that was accepted past the reply's end.
            accepted = min(run.draft_n_accepted, head.emitted - 1 - run.steps)
            counts = head.emitted - 1, run.draft_n, accepted
            rows.append((head.id, head.category, *counts, *sums))
        ids, categories, *figures = zip(*rows, strict=True)
        columns = (np.array(column, dtype=np.float64) for column in figures)
        return Replies(ids, categories, *columns).on(prompts)

    @property
    def trace(self) -> TraceFile:
        """What is replayed on, once it is there."""
        trace = self.executor.outcomes.artifact(self.deployed.replay.trace)
        return TraceFile(trace.file(TRACE_FILE))


@dataclass(frozen=True)
class Budget:
    """What a search may take: ``evaluations``, mixes replayed on the prompts of the search, and
    ``seconds`` of wall time. None: no limit."""

    evaluations: float | None = None
    seconds: float | None = None


@dataclass(frozen=True, eq=False)
class Evaluated:
    """One mix that was replayed, and how long that took."""

    purpose: Purpose
    why: str
    replies: Replies
    seconds: float


@dataclass(eq=False)
class Ledger:
    """What ``evaluator`` found of mixes on ``prompts`` (ids).

    ``entries`` by mix, in the order in which they were first asked for. A search that goes on
    where it was interrupted makes the same evaluations again, from the store.
    """

    evaluator: Evaluator
    prompts: tuple[str, ...]
    budget: Budget = Budget()
    began: float = field(default_factory=time.monotonic)
    entries: dict[Mix, Evaluated] = field(default_factory=dict)

    @property
    def left(self) -> float:
        """Evaluations that may still be made: by their number, or by what those so far took."""
        found, spent = float("inf"), len(self.entries)
        if self.budget.evaluations is not None:
            found = self.budget.evaluations - spent
        if self.budget.seconds is not None and spent:
            taken = time.monotonic() - self.began
            found = min(found, (self.budget.seconds - taken) * spent / taken)
        return found

    def known(self, mix: Mix) -> Replies | None:
        """What ``mix`` did; None where it was not replayed."""
        return self.entries[mix].replies if mix in self.entries else None

    def replay(self, mix: Mix, purpose: Purpose, why: str) -> Replies:
        """What ``mix`` does, evaluated unless it was before."""
        if mix not in self.entries:
            began = time.monotonic()
            replies = self.evaluator(mix, self.prompts)
            seconds = time.monotonic() - began
            self.entries[mix] = Evaluated(purpose, why, replies, seconds)
        return self.entries[mix].replies
