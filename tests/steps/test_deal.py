"""How a block is dealt: who is asked what in which order, and what becomes of servers that fail."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cook.engines.base import DraftSettings, ModelArgs, ServerJob
from cook.engines.process.system import process_cpu_s
from cook.engines.server_api import Completion, ran_ms
from cook.engines.speculation import NgramSettings, NgramType
from cook.errors import PrerequisiteError, StepError
from cook.formats.heads import HeadKind
from cook.graph.step import Workbench
from cook.prompts.prompt_set import load_prompts
from cook.provenance import machine
from cook.record.record import PromptRun
from cook.steps import deal
from cook.steps.deal import DealOutcome, DealStep
from cook.steps.live import WARM_UP, LiveStep
from tests.workbench import live_step

PROMPTS = load_prompts("demo").prompts[:6]
NAMES = ("no draft", "n_max=2", "n_max=4", "n_max=8")


@dataclass
class Farm:
    """What servers were asked, and what they are to do.

    ``asked``: (server, prompt) in order, without warm-ups and partings. ``busy``: cores that others
    keep busy during the so-manyth request; ``rests``: whether they ever stop before one. ``dies``:
    the request of a server that gets no answer; ``unable``: servers that do not load, ``silent``
    ones that draft nothing, and ``most`` at once that do.
    """

    step: DealStep
    bench: Workbench
    asked: list[tuple[str, str]] = field(default_factory=list)
    rests: bool = True
    waited: list[float] = field(default_factory=list)
    """Before each of ``asked``, how long at most,"""
    rooms: list[float] = field(default_factory=list)
    """and until others use how many cores."""
    partings: list[tuple[str, int]] = field(default_factory=list)
    busy: dict[int, float] = field(default_factory=dict)
    dies: dict[str, int] = field(default_factory=dict)
    unable: set[str] = field(default_factory=set)
    lacking: set[str] = field(default_factory=set)
    silent: set[str] = field(default_factory=set)
    most: int = 9
    alive: list[Fake] = field(default_factory=list)
    starts: list[str] = field(default_factory=list)

    def deal(self, **changes: Any) -> DealOutcome:
        return replace(self.step, **changes).run(self.bench)

    def of(self, server: str) -> list[str]:
        return [prompt for name, prompt in self.asked if name == server]


FARM: Farm


class Fake:
    """A server that answers at once."""

    def __init__(self, engine: Any, job: ServerJob, supervisor: Any) -> None:
        self.name = NAMES[0] if job.settings is None else f"n_max={job.settings.n_max}"
        self.drafts = job.settings is not None
        self.command, self.peak_rss_bytes, self.pid = ("llama-server", self.name), 7, None
        self.log = Path("logs") / self.name / "stderr.log"
        self.cpu_s: float | None = 0.0

    def __enter__(self) -> Fake:
        if self.name in FARM.lacking:
            raise PrerequisiteError(f"{self.name}: this build has no such flag")
        if self.name in FARM.unable or len(FARM.alive) >= FARM.most:
            raise StepError(f"{self.name}: out of memory\nmore of it")
        FARM.alive.append(self)
        FARM.starts.append(self.name)
        return self

    def __exit__(self, *_: object) -> None:
        FARM.alive.remove(self)
        if self.cpu_s is None:
            raise StepError(f"{self.name} ended without a word, after its first failure")

    def complete(self, text: str, n_predict: int, **_: Any) -> Completion:
        if text == WARM_UP:
            FARM.partings.append((self.name, n_predict))
            return answer(n_predict, None)
        if FARM.dies.get(self.name) == len(FARM.of(self.name)):
            self.cpu_s = None
            raise StepError(f"{self.name} died during a request\n log")
        assert self in FARM.alive
        FARM.asked.append((self.name, next(p.id for p in PROMPTS if p.text == text)))
        return answer(n_predict, 6 if self.drafts and self.name not in FARM.silent else None)

    def tokenize(self, text: str, **_: Any) -> tuple[int, ...]:
        return (1, 2)


def answer(tokens: int, drafted: int | None) -> Completion:
    return Completion(
        text="text",
        tokens=tuple(range(tokens)),
        prompt_n=10,
        prompt_ms=5.0,
        predicted_n=tokens,
        predicted_ms=20.0,
        draft_n=drafted,
        draft_n_accepted=3 if drafted else None,
        stop="limit",
    )


class Watched:
    """Others' use of the processors, as the farm has it for the request that is being asked."""

    def __init__(self, own_s: Callable[[], float | None]) -> None:
        self._own_s = own_s

    def others_cores(self) -> float | None:
        return None if self._own_s() is None else FARM.busy.get(len(FARM.asked) - 1, 0.0)


@pytest.fixture
def step(standin_engine: Callable[..., Any]) -> DealStep:
    """No draft and three lengths, on six prompts."""
    engine = standin_engine()
    drafted = (
        live_step(engine, DraftSettings(n), name=f"n_max={n}", prompts=PROMPTS) for n in (2, 4, 8)
    )
    return DealStep((live_step(engine, prompts=PROMPTS), *drafted), 0, True)


@pytest.fixture
def farm(step: DealStep, bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> Farm:
    global FARM
    FARM = Farm(step, bench)
    monkeypatch.setattr(deal, "Server", Fake)
    monkeypatch.setattr(deal, "Watch", Watched)
    monkeypatch.setattr(deal, "TICK_S", 0.0)
    monkeypatch.setattr(deal, "default_threads", lambda: 1)

    def wait(most_s: float, room: float) -> bool:
        FARM.waited.append(most_s)
        FARM.rooms.append(room)
        return FARM.rests

    monkeypatch.setattr(deal, "_wait_for_room", wait)
    return FARM


def rounds(asked: list[tuple[str, str]], size: int) -> list[tuple[tuple[str, ...], str]]:
    """The order of servers, prompt by prompt."""
    found = []
    for at in range(0, len(asked), size):
        some = asked[at : at + size]
        (prompt,) = {prompt for _, prompt in some}
        found.append((tuple(name for name, _ in some), prompt))
    return found


def outcome_of(outcome: DealOutcome, name: str) -> Any:
    return outcome.dealt[NAMES.index(name)]


def test_a_prompt_goes_to_all_servers_before_the_next(farm: Farm) -> None:
    outcome = farm.deal()
    assert outcome.together
    found = rounds(farm.asked, 4)
    assert [prompt for _, prompt in found] == [p.id for p in PROMPTS]
    assert all(sorted(order) == sorted(NAMES) for order, _ in found)
    assert farm.waited == [deal.MOST_REST_S] * len(farm.asked)
    assert sorted(farm.starts) == sorted(NAMES), "one start each"
    assert farm.alive == []
    runs = [one.outcome.runs for one in outcome.dealt]
    assert [[run.id for run in some] for some in runs] == [[p.id for p in PROMPTS]] * 4
    assert {run.block for some in runs for run in some} == {0}
    assert sorted(run.order for some in runs for run in some) == list(range(1, 25))


def test_the_order_is_shuffled_by_prompt_and_block_and_the_same_again(farm: Farm) -> None:
    orders = []
    for block in (0, 0, 1):
        farm.asked.clear()
        farm.deal(block=block)
        orders.append([order for order, _ in rounds(farm.asked, 4)])
    assert len(set(orders[0])) > 3
    assert orders[0] == orders[1]
    assert orders[0] != orders[2]


def test_a_server_that_dies_takes_its_candidate_out_and_the_rest_goes_on(farm: Farm) -> None:
    farm.dies["n_max=4"] = 2
    outcome = farm.deal()
    assert outcome_of(outcome, "n_max=4").outcome is None
    assert outcome_of(outcome, "n_max=4").failure == "n_max=4 died during a request"
    assert outcome.together
    for name in ("no draft", "n_max=2", "n_max=8"):
        assert farm.of(name) == [p.id for p in PROMPTS]
        ran = outcome_of(outcome, name).outcome.runs
        assert [run.others_cores for run in ran] == [0.0] * 6, "others are still watched"
    assert farm.of("n_max=4") == [p.id for p in PROMPTS[:2]]


def test_no_draft_that_dies_fails_the_step(farm: Farm) -> None:
    farm.dies["no draft"] = 3
    with pytest.raises(StepError, match="no draft: no draft died during a request"):
        farm.deal()
    assert farm.alive == []


def test_servers_that_do_not_fit_take_turns(farm: Farm) -> None:
    """Two load and the third does not: each is then alive alone, with all prompts."""
    farm.most = 2
    outcome = farm.deal()
    assert not outcome.together
    assert farm.starts == ["no draft", "n_max=2", *NAMES]
    assert farm.asked == [(name, p.id) for name in NAMES for p in PROMPTS]
    farm.starts, farm.asked = [], []
    outcome = farm.deal(block=1, together=False)
    assert not outcome.together
    assert farm.starts == [*NAMES[::-1]], "every other block goes backwards; so it was asked for"
    assert farm.asked == [(name, p.id) for name in NAMES[::-1] for p in PROMPTS]


@pytest.mark.parametrize(
    ("unable", "silent", "failure"),
    [({"n_max=8"}, set(), "n_max=8: out of memory$"), (set(), {"n_max=8"}, "drafted nothing")],
)
def test_a_server_that_never_loads_or_drafts_nothing_is_out(
    unable: set[str], silent: set[str], failure: str, farm: Farm
) -> None:
    farm.unable, farm.silent = unable, silent
    outcome = farm.deal()
    assert outcome.together is not bool(unable), "the others take turns then"
    assert [one.outcome is None for one in outcome.dealt] == [False, False, False, True]
    assert re.search(failure, outcome.dealt[3].failure or "")


def test_what_a_build_lacks_for_one_candidate_is_no_fault_of_the_others(farm: Farm) -> None:
    farm.lacking = {"n_max=8"}
    *others, last = farm.deal().dealt
    assert all(one.outcome is not None for one in others)
    assert last.failure == "n_max=8: this build has no such flag"


def test_a_prompt_that_is_crowded_for_one_server_counts_for_none(farm: Farm) -> None:
    farm.busy = {10: 0.9}
    outcome = farm.deal()
    assert len(farm.asked) == 4 * 6
    assert outcome.left_out == (PROMPTS[2].id,)
    assert outcome.others_cores == pytest.approx(0.9)
    left_out = "other programs were at work during 1 of its requests: 1 prompt of it left out"
    assert outcome.warnings == (left_out,)


@pytest.mark.parametrize(("cores", "disturbed"), [(0.6, 24), (0.1, 0)])
def test_on_a_machine_that_is_never_idle_all_prompts_count(
    cores: float, disturbed: int, farm: Farm
) -> None:
    farm.busy = dict.fromkeys(range(1000), cores)
    outcome = farm.deal()
    assert outcome.others_cores == pytest.approx(cores)
    assert outcome.left_out == (), "all alike"
    warning = f"other programs were at work during {disturbed} of its requests"
    assert outcome.warnings == ((warning,) if disturbed else ())


@pytest.fixture
def processes() -> Iterator[Callable[[], int]]:
    """Starts one that computes on and on; its id."""
    with ExitStack() as ends:

        def start() -> int:
            process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            ends.callback(process.wait)
            ends.callback(process.kill)
            return process.pid

        yield start


def request_of(farm: Farm, pid: int, answer: Callable[[deal._Request], None]) -> deal._Request:
    """To a process that is a server but for its answer: ``answer`` returns when there is one."""
    server: Any = SimpleNamespace(pid=pid, cpu_s=0.0)
    seat = deal._Seat(farm.step.servers[0], server)
    request = deal._Request(seat, server, PROMPTS[0], "text", False)

    def asked() -> PromptRun:
        began = time.monotonic()
        answer(request)
        wall_ms = ran_ms(began, time.monotonic(), request.stops)
        return PromptRun("a", "b", 10, 0.0, 9, wall_ms, wall_ms, None, None, None, "", "limit")

    request.answer = asked  # type: ignore[method-assign]
    return request


LATE, SOON = 0.8, 0.1
"""Shares of the time between two looks for which a thread waits for a processor."""


@pytest.mark.parametrize(
    ("waits", "cores", "patience_s", "counted_after"),
    [
        ([SOON, LATE, LATE], [], 5.0, "its threads waited"),
        ([LATE, SOON, LATE, SOON], [0.2], 5.0, None),
        ([], [1.0], 5.0, "the stop"),  # on the other half of a core
        ([LATE, LATE], [], 0.05, None),  # on a machine that never rests
    ],
)
def test_a_server_is_stopped_while_others_take_its_cores(
    waits: list[float],
    cores: list[float],
    patience_s: float,
    counted_after: str | None,
    farm: Farm,
    processes: Callable[[], int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A real process, which stands still until there is room; from when its threads waited for
    two looks, or by what others used in its whole turn, its time counts for nothing."""
    monkeypatch.setattr(deal, "LOOKS", 4)
    monkeypatch.setattr(deal, "LOOK_S", 0.1)
    used = iter(cores)
    monkeypatch.setattr(
        deal, "Watch", lambda _: SimpleNamespace(others_cores=lambda: next(used, 0.0))
    )
    states, shares, looked_s, waited_s = [], iter(waits), [time.monotonic()], {"a": 0.0, "b": 7.0}

    def waited(self: deal._Request) -> dict[str, float]:
        elapsed_s, looked_s[0] = time.monotonic() - looked_s[0], time.monotonic()
        if elapsed_s > 0.9 * deal.LOOK_S:  # no first look of a turn
            waited_s["b"] += elapsed_s * next(shares, 0.0)
        return dict(waited_s)

    def wait(most_s: float, room: float) -> bool:
        time.sleep(2 * deal.REST_S)
        states.append(state_of(pid))
        return most_s > 1

    monkeypatch.setattr(deal._Request, "waited_s", waited)
    monkeypatch.setattr(deal, "_wait_for_room", wait)
    block = deal._Block(farm.step, farm.bench, patience_s=patience_s)
    took_s = []

    def answered(_: deal._Request) -> None:
        began = time.monotonic()
        time.sleep(0.8)
        took_s.append(time.monotonic() - began)

    request = request_of(farm, pid := processes(), answered)
    block._ask([request.seat], [request])
    assert state_of(pid) != "T"
    assert [state == "T" for state in states] == [False] + [True] * (counted_after is not None)
    lost_s = sum(end - start for start, end in request.stops) - block.stopped_s
    if counted_after == "its threads waited":
        assert lost_s >= 2 * LATE * deal.LOOK_S
    else:
        assert lost_s == pytest.approx(0, abs=0.1)
    (run,) = request.seat.runs.values()
    assert run.wall_ms == pytest.approx(1000 * (took_s[0] - block.stopped_s - lost_s), abs=40)


def test_threads_that_wait_while_nobody_is_at_work_have_to_wait_longer_for_a_stop(
    farm: Farm, processes: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a container, for its share of the processor, and their time counts as any."""
    monkeypatch.setattr(deal, "Watch", lambda _: SimpleNamespace(others_cores=lambda: 0.0))
    began = time.monotonic()
    monkeypatch.setattr(deal._Request, "waited_s", lambda _: {"a": time.monotonic() - began})
    monkeypatch.setattr(deal, "_wait_for_room", lambda most_s, room: True)
    block = deal._Block(farm.step, farm.bench)
    request = request_of(farm, processes(), lambda _: time.sleep(2.0))
    block._ask([request.seat], [request])
    assert block.late_looks > deal.LOOKS, "never again"
    assert 3 <= len(request.stops) <= 4
    assert sum(end - start for start, end in request.stops) < 0.2, "not 14 looks"


def test_servers_run_in_slices_and_never_two_at_a_time(
    farm: Farm, processes: Callable[[], int]
) -> None:
    """Each needs half a second of a core, and has run as long, whatever the clock says."""

    def computed(request: deal._Request) -> None:
        began = process_cpu_s(request.server.pid) or 0.0  # type: ignore[arg-type]
        while (process_cpu_s(request.server.pid) or 0.0) < began + 0.5:  # type: ignore[arg-type]
            time.sleep(0.01)

    two = [request_of(farm, processes(), computed) for _ in range(2)]
    began = time.monotonic()
    deal._Block(farm.step, farm.bench)._ask([one.seat for one in two], two)
    ended = time.monotonic()
    assert [state_of(one.server.pid) != "T" for one in two] == [True, True]  # type: ignore[arg-type]
    (first,), (second,) = (one.seat.runs.values() for one in two)
    assert (first.order, second.order) == (1, 2)
    assert min(first.wall_ms, second.wall_ms) >= 470
    assert first.wall_ms + second.wall_ms <= 1000 * (ended - began), "one at a time"
    assert all(len(one.stops) >= 2 for one in two), "in slices"
    assert first.others_cores is not None


def test_a_server_that_dies_in_its_slice_leaves_the_others_theirs(
    farm: Farm, processes: Callable[[], int]
) -> None:
    def died(request: deal._Request) -> None:
        time.sleep(0.1)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise StepError("it died")

    pid = processes()
    two = [
        request_of(farm, pid, died),
        request_of(farm, processes(), lambda _: time.sleep(0.6)),
    ]
    deal._Block(farm.step, farm.bench)._ask([one.seat for one in two], two)
    assert [one.seat.failure for one in two] == ["it died", None]
    assert [len(one.seat.runs) for one in two] == [0, 1]


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_server_that_remembers_text_is_dealt_no_prompt_twice(farm: Farm) -> None:
    *others, last = farm.step.servers
    learns = replace(last, ngram=NgramSettings(NgramType.MOD))
    farm.busy = dict.fromkeys(range(1000), 0.6)
    outcome = farm.deal(servers=(*others, learns))
    assert len(farm.asked) == 4 * 6
    learned = outcome.dealt[-1].outcome
    assert learned.warm_up is not None, "what it had seen before the first prompt"
    assert outcome.dealt[0].outcome.warm_up is None


def test_a_server_with_a_head_knows_what_it_was_asked(
    farm: Farm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A draft of its next request begins on what it had read last."""
    *others, last = farm.step.servers
    monkeypatch.setattr(LiveStep, "require_drafting", lambda *_: None)
    outcome = farm.deal(servers=(*others, replace(last, head=HeadKind.MTP)))
    bare, found = outcome.dealt[0].outcome, outcome.dealt[-1].outcome
    assert found.warm_up is not None
    assert [id for _, id in found.asked] == farm.of("n_max=8")
    assert [(run.order, run.id) for run in found.runs] == list(found.asked)
    assert bare.asked == (), "what remembers nothing says nothing of it"


def test_all_are_parted_where_one_needs_it(farm: Farm, standin_engine: Callable[..., Any]) -> None:
    ik = standin_engine(flavour="ik_llama.cpp", name="ik")
    servers = tuple(replace(one, engine=ik) for one in farm.step.servers[:2])
    farm.deal(servers=servers)
    for name in NAMES[:2]:
        lengths = [tokens for server, tokens in farm.partings if server == name]
        assert len(lengths) == 1 + 5, "one to warm up, then one between two prompts"
        assert len(set(lengths[1:])) == 1
    farm.partings.clear()
    farm.asked.clear()
    farm.deal()
    assert len(farm.partings) == 4, "mainline forgets without that"


def test_a_machine_that_never_rests_is_waited_for_ever_less_in_a_block(farm: Farm) -> None:
    farm.rests = False
    farm.deal()
    assert farm.waited[:3] == [deal.MOST_REST_S, deal.MOST_REST_S / 2, deal.MOST_REST_S / 4]
    assert sum(farm.waited) <= 2 * deal.MOST_REST_S


@pytest.mark.parametrize(
    ("threads", "others", "room", "crowded"),
    [(16, 0.3, 0.15, 1), (8, 0.5, 0.15, 1), (3, 0.9, 5.0, 0), (7, 0.9, 1.0, 0), (7, 1.5, 1.0, 1)],
)
def test_it_is_crowded_where_others_take_a_core_that_a_thread_needs(
    threads: int,
    others: float,
    room: float,
    crowded: int,
    farm: Farm,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And where they leave it its cores it is disturbed, which is said, and counts."""
    monkeypatch.setattr(deal, "default_threads", lambda: 8)
    bare = replace(farm.step.servers[0], target_args=ModelArgs(threads=threads))
    farm.busy = {2: others}
    outcome = farm.deal(servers=(bare,))
    assert set(farm.rooms) == {room}
    assert sum(run.disturbed for run in outcome.runs) == 1
    assert len(outcome.left_out) == crowded
    assert deal._Seat(bare).is_crowded_now(others) == (crowded and others > deal.NOTICED)


class Machine:
    """What other programs keep busy, window by window, the last of them on and on."""

    def __init__(self, *cores: float | None) -> None:
        self.cores, self.windows = cores, 0

    def __call__(self, own_s: Callable[[], float | None]) -> Machine:
        assert own_s() == 0.0, "servers are others, while none is asked"
        return self

    def others_cores(self) -> float | None:
        self.windows += 1
        return self.cores[min(self.windows, len(self.cores)) - 1]


@pytest.mark.parametrize(("cores", "windows"), [((0.05,), 1), ((1.0, 0.5, 0.1), 3), ((None,), 1)])
def test_a_request_waits_until_there_is_room(
    cores: tuple[float | None, ...], windows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deal, "REST_S", 0.01)
    monkeypatch.setattr(deal, "Watch", machine := Machine(*cores))
    assert deal._wait_for_room(5.0, 0.2)
    assert machine.windows == windows


def test_a_machine_that_never_rests_is_not_waited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deal, "REST_S", 0.01)
    monkeypatch.setattr(deal, "Watch", Machine(1.0))
    began = time.monotonic()
    assert not deal._wait_for_room(0.05, 0.2)
    assert 0.05 <= time.monotonic() - began < 1.0


def test_memory_is_left_for_others(step: DealStep, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 10 GB 4 are available, and a server of its own takes 1.5 or 3.5 and its draft."""
    bare, drafted = (deal._Seat(one) for one in step.servers[:2])
    bare.server = Fake(None, ServerJob(Path(), ModelArgs(), 1), None)  # type: ignore[assignment]
    bare.server.pid = 1  # type: ignore[misc]
    monkeypatch.setattr(deal, "machine", lambda: replace(machine(), memory_bytes=10**10))
    monkeypatch.setattr(deal, "available_memory_bytes", lambda: 4 * 10**9)
    monkeypatch.setattr(deal, "made_bytes", lambda *_: 10**9)
    for own, fits in ((15 * 10**8, True), (35 * 10**8, False)):
        monkeypatch.setattr(deal, "anonymous_bytes", lambda _, own=own: own)
        assert deal._has_room([bare], drafted, None) is fits  # type: ignore[arg-type]
    monkeypatch.setattr(deal, "available_memory_bytes", lambda: None)
    assert deal._has_room([bare], drafted, None), "unknown is tried"  # type: ignore[arg-type]


def test_block_turns_and_order_of_servers_are_part_of_the_key(step: DealStep) -> None:
    first, second, *rest = step.servers
    others = [
        replace(step, block=1),
        replace(step, together=False),
        replace(step, servers=(second, first, *rest)),
        replace(step, servers=(first, second)),
        replace(step, servers=(first, replace(second, settings=DraftSettings(3)), *rest)),
        replace(step, servers=tuple(replace(s, prompts=PROMPTS[:3]) for s in step.servers)),
    ]
    keys = [one.key for one in (step, *others)]
    assert len(set(keys)) == len(keys)
    renamed = replace(step, servers=(first, replace(second, name="another"), *rest))
    assert renamed.key == step.key, "what a server is called changes nothing of what it does"
    assert renamed.names == ("no draft", "another", *NAMES[2:])


@pytest.mark.engine
@pytest.mark.parametrize("streamed", [False, True])
def test_real_servers_draft_as_they_do_alone(
    streamed: bool, bundled: Any, bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In slices of 10 ms, of answers that come whole or streamed."""
    monkeypatch.setattr(LiveStep, "is_streamed", lambda *_: streamed)
    monkeypatch.setattr(deal, "LOOK_S", 0.002)
    stopped = []
    stop = deal._Request.stop

    def kept(request: deal._Request) -> None:
        stopped.append(request)
        stop(request)

    monkeypatch.setattr(deal._Request, "stop", kept)
    bare = live_step(bundled, prompts=PROMPTS[:2], max_tokens=48)
    drafted = live_step(bundled, DraftSettings(2), prompts=PROMPTS[:2], max_tokens=48)
    outcome = DealStep((bare, drafted), 0, True).run(bench)
    assert len(stopped) > 8, "in slices"
    assert outcome.together
    for step, dealt in zip((bare, drafted), outcome.dealt, strict=True):
        alone = step.run(bench).runs
        for run, same in zip(dealt.outcome.runs, alone, strict=True):
            assert (run.id, run.tokens) == (same.id, same.tokens)
            assert (run.draft_n, run.draft_n_accepted) == (same.draft_n, same.draft_n_accepted)
        assert all((run.draft_n is not None) == (step.draft is not None) for run in alone)
