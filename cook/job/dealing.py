"""The live runs of one build: which servers are dealt a block of prompts, and what it takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cook.engines.base import Engine
from cook.graph.execute import Executor
from cook.graph.step import Step
from cook.job.layout import Configuration, dealt_into
from cook.prompts.prompt_set import Prompt
from cook.record.prompt_runs import PromptRun
from cook.record.record import CandidateKey
from cook.steps.deal import DealOutcome, DealStep, Dealt
from cook.steps.work import model_bytes

BLOCKS = 4
"""Blocks that the prompts are dealt in, each with fresh servers, where loads are short."""
FEW_BLOCKS = 2
"""The same where a load takes longer than :data:`LOAD_SHARE` of a block, or servers take turns."""
LOAD_SHARE = 0.25
BLOCK_PROMPTS = 3
"""A block has at least so many."""
MOST_SEATS = 5
"""Candidates in a block, next to no draft, where the servers are alive together."""
TURN_SEATS = 2
"""The same in turns, where every one is another load."""
_APART = ("--no-mmap", "-rtr", "--run-time-repack")
"""Arguments that give every server its own copy of the weights."""


@dataclass
class Dealing:
    """Runs blocks and keeps what came of them.

    ``together``: servers are alive at once; ``budget_s``: what all blocks may take. ``expected``:
    forecast requests of each candidate; ``load_s`` of one server, by estimate until one
    was loaded. ``failed``: candidates whose server died or did not load, each with the reason.
    """

    executor: Executor
    together: bool
    budget_s: float
    expected: Mapping[CandidateKey, Sequence[PromptRun]]
    load_s: float = 0.0
    reference: Mapping[str, Engine] = field(default_factory=dict)
    on_reference: dict[CandidateKey, list[PromptRun]] = field(default_factory=dict)
    steps: list[DealStep] = field(default_factory=list)
    runs: dict[CandidateKey, list[PromptRun]] = field(default_factory=dict)
    asked: dict[CandidateKey, Configuration] = field(default_factory=dict)
    failed: dict[CandidateKey, str] = field(default_factory=dict)

    @property
    def seats(self) -> int:
        """Candidates in a block, next to no draft."""
        return MOST_SEATS if self.together else TURN_SEATS

    def blocks(
        self, prompts: Sequence[Prompt], seated: Sequence[Configuration]
    ) -> tuple[tuple[Prompt, ...], ...]:
        """The prompts in as many blocks as loads of ``seated`` allow."""
        most = max(1, len(prompts) // BLOCK_PROMPTS)
        requests_s = sum(self._requests_s(c.key, prompts) for c in seated)
        count = BLOCKS if self.together else FEW_BLOCKS
        if requests_s and self.load_s > LOAD_SHARE * requests_s / count:
            count = FEW_BLOCKS
        return dealt_into(prompts, min(count, most))

    def deal(self, seated: Sequence[Configuration], prompts: Sequence[Prompt]) -> bool:
        """A block of ``prompts`` to those ``seated`` whose draft could be made, no draft first.
        False where no draft failed: what ran before counts."""
        seated = self._made(seated)
        repeated = [c for c in seated if c.key.engine in self.reference]
        servers = [replace(c.live, prompts=tuple(prompts)) for c in seated]
        servers += [
            replace(
                c.live,
                prompts=tuple(prompts),
                engine=self.reference[c.key.engine],
                name=f"{c.name} on the reference build",
            )
            for c in repeated
        ]
        step = DealStep(tuple(servers), len(self.steps), self.together and len(seated) > 1)
        self.steps.append(step)
        self.executor.run([step])
        self.asked |= {c.key: c for c in seated}
        outcome = self._outcome(step)
        if outcome is None:
            failure = self.executor.outcomes.failures.get(step.key)
            why = failure.error.message if failure is not None else "not run"
            self.failed |= {c.key: why for c in seated if c.key not in self.runs}
            return False
        self.together = self.together and (outcome.together or len(seated) == 1)
        for place, (c, one) in enumerate(zip((*seated, *repeated), outcome.dealt, strict=True)):
            if one.outcome is not None:
                runs = self.runs if place < len(seated) else self.on_reference
                runs.setdefault(c.key, []).extend(one.outcome.runs)
                self.load_s = max(self.load_s, one.outcome.load_seconds)
            elif place < len(seated):
                self.failed[c.key] = one.failure or "not run"
        return True

    def _made(self, seated: Sequence[Configuration]) -> list[Configuration]:
        """Those whose draft is there; why another's is not, is kept."""
        drafts = {c.key: c.live.draft for c in seated if isinstance(c.live.draft, Step)}
        failures = self.executor.run(list(drafts.values())).failures
        lost = {key: failures[one.key] for key, one in drafts.items() if one.key in failures}
        self.failed |= {key: failure.error.message for key, failure in lost.items()}
        return [c for c in seated if c.key not in lost]

    def dealt(self, key: CandidateKey) -> Dealt | None:
        """All that ``key`` was dealt; None where it has no request."""
        if not self.runs.get(key):
            return None
        name = self.asked[key].name
        found = [(step, self._outcome(step)) for step in self.steps if name in step.names]
        ran = (step for step, one in found if one and one.dealt[step.names.index(name)].outcome)
        return Dealt(tuple(ran), name)

    def spent_s(self) -> float:
        """Of the blocks as recorded, so that a build from the store decides as the first did."""
        return sum(found.seconds for step in self.steps if (found := self._outcome(step)))

    def left_s(self) -> float:
        """Of the budget; below 0 where blocks that had to be dealt took more."""
        return self.budget_s - self.spent_s()

    def estimate(self, seated: Iterable[Configuration], prompts: Sequence[Prompt]) -> float:
        """Seconds that a block will take."""
        each = {c.key: self.load_s + self._requests_s(c.key, prompts) for c in seated}
        return sum(s * (1 + (key.engine in self.reference)) for key, s in each.items())

    def _requests_s(self, key: CandidateKey, prompts: Sequence[Prompt]) -> float:
        """Of ``prompts``, as measured before, as forecast, or as the slowest that is known."""
        ids = {prompt.id for prompt in prompts}
        own = self.runs.get(key, ()), self.expected.get(key, ())
        for runs in (*own, *self.runs.values(), *self.expected.values()):
            wall = [run.wall_ms for run in runs if run.id in ids] or [run.wall_ms for run in runs]
            if wall:
                return sum(wall) / len(wall) * len(ids) / 1000
        return 0.0

    def _outcome(self, step: DealStep) -> DealOutcome | None:
        return self.executor.outcomes.result(step)


def fit_together(seated: Sequence[Configuration], memory_bytes: int | None) -> bool:
    """Whether the servers of ``seated`` can be expected to be alive at once.

    By the files alone, each once; what every server takes of its own shows as they are loaded
    (:mod:`cook.steps.deal`). Device memory that is free is not known, and an RPC server serves one
    client: there they take turns. So they do where no draft has arguments of its own, which are
    chosen to fill the memory that a draft takes otherwise.
    """
    files: dict[tuple[str, str], float] = {}
    for configuration in seated:
        live = configuration.live
        given = [live.target_args, *([live.draft_args] if live.draft is not None else [])]
        on_device = any(args.n_gpu_layers or args.devices or args.rpc for args in given)
        if on_device or live.target_args != seated[0].live.target_args:
            return False
        for node, args in zip((live.target, live.draft), given, strict=False):
            if node is not None:
                own = any(word in _APART for word in args.extra)
                files[configuration.name if own else "", node.key] = model_bytes(node) or 0
    return memory_bytes is None or sum(files.values()) <= 0.9 * memory_bytes
