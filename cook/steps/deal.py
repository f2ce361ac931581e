"""Step: deal a block of prompts to several servers, each prompt to all of them before the next.

What decides between candidates is comparing them at the same moment: whatever the machine does
meanwhile, it does to all. Where the servers fit into memory together, they are alive at once and
take turns by the request, one request at a time, in a random order. Where they do not, each is
alive alone for the whole block, and every other block goes through them backwards.

A timing is worth little when another program ran at the same time (two busy OpenMP programs on two
cores slow each other by orders of magnitude, docs/internals/engines.md#two-programs-at-once). So
the next request waits until the other servers are at rest, and what others used of the processors
is kept for every request; a prompt that was disturbed is dealt again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from cook.engines.base import Engine
from cook.engines.process.system import anonymous_bytes
from cook.engines.server import Server
from cook.engines.server_api import Completion
from cook.errors import StepError
from cook.graph.step import Cost, Input, JsonValue, Needs, Step, Workbench, decode
from cook.prompts.prompt_set import Prompt
from cook.provenance import available_memory_bytes, machine
from cook.record.record import PromptRun
from cook.steps.live import WARM_UP, WARM_UP_TOKENS, LiveOutcome, LiveStep, Watch
from cook.steps.work import Phase, made_bytes, model_bytes, trunk_bytes
from cook.units import plural

REST_S = 0.1
"""For so long the other servers must have been at rest before a request is sent."""
REST_SHARE = 0.02
"""Of a core: what a server at rest may use. OpenMP and polling threads spin after a reply."""
MOST_REST_S = 5.0
"""Waited for that at most: a server that never rests shows as a disturbance."""
TICK_S = 0.03
"""Processor time that the kernel's accounts round by, of three clocks of 10 ms."""
AGAIN_SHARE = 0.5
"""Of a block's prompts, how many are dealt again at most: a machine that is never idle disturbs
the second time as well."""
FREE_SHARE = 0.1
"""Of the machine's memory, what servers that are alive together leave free."""


@dataclass(frozen=True)
class DealtServer:
    """One candidate's part of a block: its requests, or why there are none."""

    outcome: LiveOutcome | None
    failure: str | None = None


@dataclass(frozen=True)
class DealOutcome:
    """A block as it was dealt, one entry a server in the order of the step's ``servers``.

    ``together``: the servers were alive at once. ``seconds`` in all: loads, requests, those of
    prompts that were dealt again, and the waits for other servers to come to rest.
    """

    dealt: tuple[DealtServer, ...]
    together: bool
    seconds: float

    @property
    def runs(self) -> list[PromptRun]:
        """Of all servers that ran."""
        ran = [one.outcome for one in self.dealt if one.outcome is not None]
        return [run for outcome in ran for run in outcome.runs]

    @property
    def others_cores(self) -> float | None:
        """Cores kept busy by other programs, in the most disturbed request that counts."""
        known = (run.others_cores for run in self.runs if run.others_cores is not None)
        return max(known, default=None)

    @property
    def warnings(self) -> tuple[str, ...]:
        disturbed = sum(run.disturbed for run in self.runs)
        if not disturbed:
            return ()
        return (f"other programs were at work during {disturbed} of its requests",)


@dataclass(frozen=True)
class DealStep(Step[DealOutcome]):
    """``servers`` on the prompts of one block, which all of them have; no draft comes first.

    ``block`` numbers the blocks of a build: each has fresh servers. ``together``: they are to be
    alive at once, unless they turn out not to fit.
    """

    servers: tuple[LiveStep, ...]
    block: int
    together: bool

    kind: ClassVar[str] = "deal"
    phase: ClassVar[str] = Phase.LIVE
    timed: ClassVar[bool] = True

    @property
    def label(self) -> str:
        prompts = plural(len(self.servers[0].prompts), "prompt")
        how = (" together" if self.together else " in turns") if len(self.servers) > 1 else ""
        servers = plural(len(self.servers), "server")
        return f"deal block {self.block + 1}: {prompts} to {servers}{how}"

    @property
    def names(self) -> tuple[str, ...]:
        """Of the candidates, in their order."""
        return tuple(server.name for server in self.servers)

    def uses(self) -> Engine:
        return self.servers[0].engine

    def inputs(self) -> Mapping[str, Input]:
        return {
            f"{number:02} {role}": node
            for number, server in enumerate(self.servers)
            for role, node in server.inputs().items()
        }

    def params(self) -> Mapping[str, JsonValue]:
        return {
            "servers": [dict(server.key_parts) for server in self.servers],
            "block": self.block,
            "together": self.together,
        }

    def cost(self) -> Cost | None:
        """Every server loads and answers all prompts; files that several map are read once."""
        each = [cost for server in self.servers if (cost := server.cost()) is not None]
        if len(each) < len(self.servers):
            return None
        held = trunk_bytes if all(server.head is None for server in self.servers) else model_bytes
        models = {node.key: held(node) or 0.0 for node in self.inputs().values()}
        return Cost(
            loads=tuple(models.values()),
            read_bytes=sum(cost.read_bytes for cost in each),
            decodes=sum(cost.decodes for cost in each),
            computed_bytes=sum(cost.computed_bytes for cost in each),
            memory_bytes=sum(models.values()) + sum(s.context_bytes() for s in self.servers),
        )

    def needs(self) -> Needs:
        device = any(server.needs().device for server in self.servers)
        return replace(super().needs(), device=device)

    def run(self, bench: Workbench) -> DealOutcome:
        started = time.monotonic()
        seats = [_Seat(server) for server in self.servers]
        block = _Block(self, bench)
        together = self.together and block.deal(seats, whole=True)
        if not together:
            seats = [_Seat(server) for server in self.servers]
            for seat in seats if self.block % 2 == 0 else seats[::-1]:
                block.deal([seat], whole=False)
        dealt = tuple(seat.dealt(self.servers[0].prompts) for seat in seats)
        if dealt[0].outcome is None:
            raise StepError(f"{self.label}: {self.servers[0].name}: {dealt[0].failure}")
        return DealOutcome(dealt, together, time.monotonic() - started)


@dataclass(frozen=True)
class Dealt:
    """What the candidate called ``name`` was dealt, block by block."""

    steps: tuple[DealStep, ...]
    name: str

    @property
    def live(self) -> LiveStep:
        """Its server, with the prompts of the first block."""
        return self.steps[0].servers[self.steps[0].names.index(self.name)]

    @property
    def prompts(self) -> dict[str, Prompt]:
        """Every prompt that it was dealt, by id."""
        return {p.id: p for step in self.steps for p in step.servers[0].prompts}

    def inputs(self, role: str) -> Mapping[str, Input]:
        """The blocks, as inputs of a step that reads them."""
        return {f"{role}-{index:03}": step for index, step in enumerate(self.steps)}

    def outcomes(
        self, result_of: Callable[[DealStep], DealOutcome | None]
    ) -> Iterator[LiveOutcome]:
        """Of every block in which it ran."""
        for step in self.steps:
            found = result_of(step)
            if found is not None and self.name in step.names:
                one = found.dealt[step.names.index(self.name)]
                if one.outcome is not None:
                    yield one.outcome

    def stored(self, bench: Workbench) -> Iterator[LiveOutcome]:
        """Of every block in which it ran, as stored."""
        return self.outcomes(lambda step: decode(step, bench.artifact(step)))

    def read(self, bench: Workbench) -> list[PromptRun]:
        """Its requests, from the stored blocks; of a prompt that came twice the first."""
        runs: dict[str, PromptRun] = {}
        for outcome in self.stored(bench):
            runs = {run.id: run for run in outcome.runs} | runs
        return list(runs.values())


@dataclass
class _Seat:
    """One server of a block while it is dealt to."""

    step: LiveStep
    server: Server | None = None
    warmed: Completion | None = None
    warm_up: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    load_seconds: float = 0.0
    runs: dict[str, PromptRun] = field(default_factory=dict)
    asked: list[tuple[int, str]] = field(default_factory=list)
    failure: str | None = None

    def open(self, bench: Workbench) -> None:
        """Load, and answer a first request; ``failure`` says why that was not possible."""
        started = time.monotonic()
        server = Server(self.step.engine, self.step.server_job(bench), bench.supervisor)
        try:
            self.server = server.__enter__()
            self.load_seconds = time.monotonic() - started
            self.warmed = server.complete(WARM_UP, WARM_UP_TOKENS, temperature=0.0, seed=1)
            if self.step.head is not None:  # a model that drafts little may begin with nothing
                self.step.require_drafting([self.warmed])
            remembers = self.step.ngram is not None or self.step.head is not None
            if remembers and self.warmed.tokens is not None:
                self.warm_up = server.tokenize(WARM_UP, add_special=True), self.warmed.tokens
        except StepError as error:
            self.failed(error)

    def failed(self, error: StepError) -> None:
        """The candidate is out; the first reason counts."""
        self.failure = self.failure or error.message.splitlines()[0]

    def close(self) -> None:
        """End the server; what it says of itself then fails this candidate alone."""
        if self.server is not None:
            try:
                self.server.__exit__(None, None, None)
            except StepError as error:
                self.failed(error)

    def dealt(self, prompts: Sequence[Prompt]) -> DealtServer:
        """Its part of the outcome: what ran on every prompt, or why not."""
        if self.failure is not None or self.server is None or len(self.runs) < len(prompts):
            return DealtServer(None, self.failure or "not every prompt was answered")
        runs = [self.runs[prompt.id] for prompt in prompts]
        known = [run.others_cores for run in runs if run.others_cores is not None]
        cores = sum(known) / len(known) if known else None
        seen = (runs, self.load_seconds, cores)
        try:
            found = self.step.outcome(self.server, *seen, warm_up=self.warm_up, asked=self.asked)
            return DealtServer(found)
        except StepError as error:
            return DealtServer(None, error.message)


@dataclass
class _Block:
    """Deals the prompts of ``step``. ``asked`` counts requests, ``done`` those asked at first."""

    step: DealStep
    bench: Workbench
    asked: int = 0
    done: int = 0

    def deal(self, seats: Sequence[_Seat], *, whole: bool) -> bool:
        """To ``seats``, alive at once. False where they do not fit together, which ``whole`` (there
        is another way) makes no failure."""
        prompts = self.step.servers[0].prompts
        try:
            for number, seat in enumerate(seats):
                further = whole and number > 0
                if further and not _has_room(seats[:number], seat, self.bench):
                    return False
                seat.open(self.bench)
                if further and seat.failure is not None:
                    return False
            for index, prompt in enumerate(prompts):
                self._to_all(seats, prompt, first=index == 0)
                self.done += len(seats)
                self.bench.advance(self.done / len(prompts) / len(self.step.servers))
            # A server that remembers a prompt would be faster the second time.
            if not any(seat.step.ngram is not None for seat in seats):
                ran = (run for seat in seats for run in seat.runs.values())
                disturbed = {run.id for run in ran if run.disturbed}
                again = [prompt for prompt in prompts if prompt.id in disturbed]
                for prompt in again[: math.ceil(AGAIN_SHARE * len(prompts))]:
                    # Of the two times the less disturbed one counts.
                    before = [
                        (seat, seat.runs[prompt.id]) for seat in seats if prompt.id in seat.runs
                    ]
                    self._to_all(seats, prompt, first=False)
                    after = [seat.runs[prompt.id] for seat, _ in before]
                    if _most_cores(after) > _most_cores(run for _, run in before):
                        for seat, run in before:
                            seat.runs[prompt.id] = run
        finally:
            for seat in seats:
                seat.close()
        return True

    def _to_all(self, seats: Sequence[_Seat], prompt: Prompt, *, first: bool) -> None:
        rng = np.random.default_rng([self.step.block, *prompt.id.encode()])
        parting = not first and any(seat.step.remembers for seat in seats)
        for place in rng.permutation(len(seats)):
            seat = seats[place]
            if seat.failure is not None or seat.server is None:
                continue
            try:
                if parting:
                    tokens = seat.step.parting_tokens
                    seat.server.complete(WARM_UP, tokens, temperature=0.0, seed=1)
                seat.runs[prompt.id] = run = self._ask(seats, seat, prompt)
                seat.asked.append((run.order, prompt.id))
            except StepError as error:
                seat.failed(error)

    def _ask(self, seats: Sequence[_Seat], seat: _Seat, prompt: Prompt) -> PromptRun:
        server, warmed = seat.server, seat.warmed
        assert server is not None, "chosen so"
        assert warmed is not None, "an open seat answered a first request"
        text = seat.step.rendered(server, prompt)
        streamed = seat.step.is_streamed(server, warmed, text)
        alive = [s.server for s in seats if s.server is not None and s.failure is None]
        _wait_for_rest([one for one in alive if one is not server])

        def cpu_s() -> float | None:
            each = [one.cpu_s for one in alive]
            return None if None in each else sum(used_s for used_s in each if used_s is not None)

        watch = Watch(cpu_s)
        run = seat.step.ask(server, prompt, text, streamed)
        cores = watch.others_cores()
        if cores is not None:
            cores = max(0.0, cores - TICK_S / max(run.wall_ms / 1000, TICK_S))
        self.asked += 1
        return replace(run, block=self.step.block, order=self.asked, others_cores=cores)


def _most_cores(runs: Iterable[PromptRun]) -> float:
    return max((run.others_cores or 0.0 for run in runs), default=0.0)


def _wait_for_rest(servers: Sequence[Server]) -> None:
    """Until every one of ``servers`` used next to nothing for a while."""
    until = time.monotonic() + MOST_REST_S
    while servers and time.monotonic() < until:
        before = [one.cpu_s for one in servers]
        time.sleep(REST_S)
        used = zip(before, [one.cpu_s for one in servers], strict=True)
        if all(b is None or a is None or a - b <= REST_SHARE * REST_S for b, a in used):
            return


def _has_room(open_seats: Sequence[_Seat], seat: _Seat, bench: Workbench) -> bool:
    """Whether memory is left for the server of ``seat``, going by what those that are open took of
    their own: a mapped file is there once, however many map it."""
    pids = [s.server.pid for s in open_seats if s.server is not None]
    own = [anonymous_bytes(pid) for pid in pids if pid is not None]
    available = available_memory_bytes()
    if available is None or not own:
        return True
    file_bytes = made_bytes(bench, seat.step.draft) if seat.step.draft is not None else 0
    return available - max(own) - file_bytes >= FREE_SHARE * machine().memory_bytes
