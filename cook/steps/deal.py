"""Step: deal a block of prompts to several servers, each prompt to all of them before the next.

What decides between candidates is comparing them at the same moment: whatever the machine does
meanwhile, it does to all. Where the servers fit into memory together, they are alive at once and
asked the same prompt at once, in a random order; one runs for a quarter of a second while the
others are stopped, which counts for none of their times, then the next. Where they do not fit, each
is alive alone for the whole block, and every other block goes through them backwards.

A timing is worth little when another program wanted the same cores (two busy OpenMP programs on two
cores slow each other by orders of magnitude, docs/internals/engines.md#two-programs-at-once). So
the next request waits until its server's threads have cores of their own; where others take them
while it runs its server is stopped until they rest, which counts for none of its times, nor does
what its threads waited till then; and what others used of the processors meanwhile is kept for
every request.
"""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from cook.engines.base import Engine
from cook.engines.environment import default_threads
from cook.engines.process.system import anonymous_bytes, process_cpu_s, waited_for_cpu_s
from cook.engines.server import Server
from cook.engines.server_api import Completion, Stop
from cook.errors import CookError, PrerequisiteError, StepError
from cook.graph.step import Cost, Input, JsonValue, Needs, Step, Workbench, decode
from cook.prompts.prompt_set import Prompt
from cook.provenance import available_memory_bytes, machine
from cook.record.record import TOLERATED_CORES, PromptRun
from cook.steps.live import WARM_UP, WARM_UP_TOKENS, LiveOutcome, LiveStep, Watch
from cook.steps.work import Phase, made_bytes, model_bytes, trunk_bytes
from cook.units import duration, plural

REST_S = 0.1
"""For so long there must have been room before a request is sent: OpenMP and polling threads of the
other servers spin after a reply, and other programs come and go."""
MOST_REST_S = 5.0
"""Waited for that at most, and half as long each time it was in vain: a machine that never rests
costs a block twice as much, and shows as a disturbance."""
TICK_S = 0.03
"""Processor time that the kernel's accounts round by, of three clocks of 10 ms."""
LOOK_S, LOOKS = 0.02, 12
"""How often it is looked, while a request runs, whether others took its server's cores; after so
many looks it is another server's turn: the cores of a shared host are fast and slow by the second,
and the closer two servers run, the more of that they have in common
(docs/internals/scoring.md#deciding)."""
WAITED, LATE_LOOKS = 0.3, 2
"""Share of the time between so many looks for which a thread of a server waited for a processor,
above which a program is at work: 98 of 100 times beside one, and 0.2 times a second beside none, of
5,200 looks at two threads on two cores, by which it was chosen."""
NOTICED = 0.35
"""Cores that others kept busy in a turn, above which one is, also where no thread waits for it (it
has the other half of a core). Where none was, up to 0.2 were measured."""
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

    ``together``: the servers were alive at once. ``seconds`` in all: loads, requests, and the waits
    for room, of which those while a server was stopped in a request are ``stopped_s``.
    ``left_out``: prompts that count for none, since other programs wanted a server's cores all the
    same: what they did to one would be a candidate's.
    """

    dealt: tuple[DealtServer, ...]
    together: bool
    seconds: float
    left_out: tuple[str, ...] = ()
    stopped_s: float = 0.0

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

    def counted(self, place: int) -> list[PromptRun]:
        """Requests of the server in that place on prompts that count; none where it failed."""
        outcome = self.dealt[place].outcome
        return [run for run in outcome.runs if run.id not in self.left_out] if outcome else []

    @property
    def warnings(self) -> tuple[str, ...]:
        disturbed = sum(run.disturbed for run in self.runs)
        found = []
        if self.stopped_s:
            found.append(
                f"its servers were stopped for {duration(self.stopped_s)} in all, while other "
                "programs wanted their cores"
            )
        if disturbed:
            out = plural(len(self.left_out), "prompt")
            more = f": {out} of it left out" if self.left_out else ""
            found.append(f"other programs were at work during {disturbed} of its requests{more}")
        return tuple(found)


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
        seconds = time.monotonic() - started
        return DealOutcome(dealt, together, seconds, block.left_out(), block.stopped_s)


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

    @property
    def room(self) -> float:
        """Cores that others may use without taking one that a thread of the server needs, for which
        all its threads would wait at every operation."""
        drafts = (self.step.draft_args,) if self.step.draft is not None else ()
        each = [args.filled().threads or 0 for args in (self.step.target_args, *drafts)]
        return max(TOLERATED_CORES, default_threads() - max(each))

    def is_crowded(self, run: PromptRun) -> bool:
        """Whether other programs took such cores: one that is at work at all takes a whole one."""
        return run.disturbed and max(1.0, run.others_cores or 0.0) > self.room

    def is_crowded_now(self, cores: float | None) -> bool:
        """The same by the ``cores`` that they kept busy in its turn."""
        return cores is not None and cores > NOTICED and max(1.0, cores - NOTICED) > self.room

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
        except (StepError, PrerequisiteError) as error:  # of the engine's build, too
            self.failed(error)

    def request(self, prompt: Prompt, *, parting: bool) -> _Request:
        """``parting``: the draft is to forget the request before, which takes another."""
        server, warmed = self.server, self.warmed
        assert server is not None, "chosen so"
        assert warmed is not None, "an open seat answered a first request"
        if parting:
            server.complete(WARM_UP, self.step.parting_tokens, temperature=0.0, seed=1)
        text = self.step.rendered(server, prompt)
        streamed = self.step.is_streamed(server, warmed, text)
        return _Request(self, server, prompt, text, streamed)

    def failed(self, error: CookError) -> None:
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
    """Deals the prompts of ``step``. ``asked`` counts requests; ``patience_s``: how long is waited
    for room; ``late_looks``: that make a stop. ``crowded``: prompts of which a request was;
    ``stopped_s``: in all."""

    step: DealStep
    bench: Workbench
    asked: int = 0
    done: int = 0
    stopped_s: float = 0.0
    patience_s: float = field(default_factory=lambda: MOST_REST_S)
    late_looks: int = LATE_LOOKS
    crowded: set[str] = field(default_factory=set)

    def left_out(self) -> tuple[str, ...]:
        """What was crowded, unless that is more than half of the block."""
        few = 2 * len(self.crowded) <= len(self.step.servers[0].prompts)
        return tuple(sorted(self.crowded)) if few else ()

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
        finally:
            for seat in seats:
                seat.close()
        return True

    def _to_all(self, seats: Sequence[_Seat], prompt: Prompt, *, first: bool) -> None:
        rng = np.random.default_rng([self.step.block, *prompt.id.encode()])
        remembers = any(seat.step.remembers for seat in seats)
        requests = []
        for place in rng.permutation(len(seats)):
            seat = seats[place]
            if seat.failure is None and seat.server is not None:
                try:
                    requests.append(seat.request(prompt, parting=remembers and not first))
                except StepError as error:
                    seat.failed(error)
        apart = not requests or any(request.server.pid is None for request in requests)
        for group in [[request] for request in requests] if apart else [requests]:
            self._ask(seats, group)

    def _ask(self, seats: Sequence[_Seat], group: Sequence[_Request]) -> None:
        """All of ``group`` at once, of which one runs at a time, for :data:`LOOKS` looks each."""
        alive = [s.server for s in seats if s.server is not None and s.failure is None]

        def cpu_s() -> float | None:
            each = [one.cpu_s for one in alive]
            return None if None in each else sum(used_s for used_s in each if used_s is not None)

        self._wait(group)
        watch, started = Watch(cpu_s), time.monotonic()
        rests: list[tuple[float, float]] = []
        with ThreadPoolExecutor(len(group), "request") as pool:
            try:
                for request in group[1:]:
                    request.stop()
                answers = {request: pool.submit(request.answer) for request in group}
                while waiting := [r for r in group if not answers[r].done()]:
                    for request in waiting:
                        request.go_on()
                        waited_s = self._turn(request, answers[request])
                        if waited_s is not None and self.patience_s >= REST_S:
                            rests.append(self._rest(request, group, waited_s))
                        elif len(waiting) > 1:
                            request.stop()  # also one that has answered, whose threads still spin
            finally:
                for request in group:
                    request.go_on()
        cores, elapsed_s = watch.others_cores(), time.monotonic() - started
        rested_s = sum(seconds for seconds, _ in rests)
        self.stopped_s += rested_s
        if cores is not None:
            busy_s = cores * elapsed_s - sum(others_s for _, others_s in rests) - TICK_S
            cores = max(0.0, busy_s / max(elapsed_s - rested_s, TICK_S))
        for request in group:
            seat, id = request.seat, request.prompt.id
            try:
                run = answers[request].result()
            except StepError as error:
                seat.failed(error)
                continue
            self.asked += 1
            seat.asked.append((self.asked, id))
            run = replace(run, block=self.step.block, order=self.asked, others_cores=cores)
            seat.runs[id] = run
            if seat.is_crowded(run):
                self.crowded.add(id)

    def _turn(self, request: _Request, answer: Future[PromptRun]) -> float | None:
        """Let ``request`` run for its turn, or until its ``answer``, or others take its cores: how
        long its threads waited for these, until it was seen."""
        watch, looked_s, waited_s = Watch(request.cpu_s), time.monotonic(), request.waited_s()
        late: list[float] = []
        for _ in range(LOOKS):
            if wait([answer], LOOK_S).done:
                return None
            since_s, before_s = looked_s, waited_s
            looked_s, waited_s = time.monotonic(), request.waited_s()
            longest_s = max((s - before_s.get(id, s) for id, s in waited_s.items()), default=0.0)
            late = [*late, longest_s] if longest_s > WAITED * (looked_s - since_s) else []
            if len(late) >= self.late_looks:
                return sum(late)
        return 0.0 if request.seat.is_crowded_now(watch.others_cores()) else None

    def _rest(
        self, request: _Request, group: Sequence[_Request], waited_s: float
    ) -> tuple[float, float]:
        """Stop ``request`` until others rest, unless they never do: the seconds, and what others
        took of the processors in them. Nor does it count what its threads ``waited_s``, unless
        nobody was at work: they waited for something else (a container's share of the processor),
        and have to twice as long for the next stop."""
        request.stop()
        watch, start = Watch(request.cpu_s), time.monotonic()
        self._wait(group)
        rested_s = time.monotonic() - start
        in_vain = rested_s < 1.5 * REST_S
        self.late_looks = 2 * self.late_looks if in_vain else LATE_LOOKS
        if not in_vain:
            request.stops[-1] = request.stops[-1][0] - waited_s, math.inf
        return rested_s, (watch.others_cores() or 0.0) * rested_s

    def _wait(self, group: Sequence[_Request]) -> None:
        rested = _wait_for_room(self.patience_s, min(request.seat.room for request in group))
        self.patience_s = MOST_REST_S if rested else self.patience_s / 2


@dataclass(eq=False)
class _Request:
    """``prompt`` as ``server`` of ``seat`` answers it. ``stops`` of the server: the last may have
    no end yet."""

    seat: _Seat
    server: Server
    prompt: Prompt
    text: str
    streamed: bool
    stops: list[Stop] = field(default_factory=list)

    def answer(self) -> PromptRun:
        return self.seat.step.ask(self.server, self.prompt, self.text, self.streamed, self.stops)

    def cpu_s(self) -> float | None:
        return process_cpu_s(self.server.pid) if self.server.pid is not None else None

    def waited_s(self) -> Mapping[str, float]:
        return waited_for_cpu_s(self.server.pid) if self.server.pid is not None else {}

    def stop(self) -> None:
        self._signal(signal.SIGSTOP)
        self.stops.append((time.monotonic(), math.inf))

    def go_on(self) -> None:
        if self.stops and self.stops[-1][1] == math.inf:
            # Before the signal: who is woken may take this thread's core.
            self.stops[-1] = self.stops[-1][0], time.monotonic()
            self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self.server.pid is not None:
            with suppress(ProcessLookupError):  # it died, which the request says
                os.kill(self.server.pid, number)


def _wait_for_room(most_s: float, room: float) -> bool:
    """Until all but this process use at most ``room`` cores, for ``most_s`` at most; whether it
    came. Where the kernel does not say what they use, at once."""
    until = time.monotonic() + most_s
    while True:
        watch = Watch(lambda: 0.0)
        time.sleep(REST_S)
        cores = watch.others_cores()
        if cores is None or cores <= room:
            return True
        if time.monotonic() >= until:
            return False


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
