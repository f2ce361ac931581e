"""The executor runs what is missing, reuses what is there, and survives failures."""

from __future__ import annotations

import hashlib
import io
import itertools
import os
import re
import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cook.engines.base import EngineIdentity, Flavour
from cook.engines.process.outcome import ProcessSpec
from cook.errors import PrerequisiteError, StepError
from cook.graph.execute import Executor, Remaining
from cook.graph.step import JsonValue, Needs, Source, Step, Workbench, source
from cook.graph.store import Store
from cook.output import Mode, Output
from tests.graph.worded import Text, Worded
from tests.workbench import executor


@dataclass(frozen=True)
class Join(Worded):
    """Joins its inputs' texts; fails on request."""

    below: tuple[Step[Any], ...] = ()
    fails: bool = False

    kind: ClassVar[str] = "join"

    def run(self, bench: Workbench) -> Text:
        if self.fails:
            raise StepError(f"{self.word} broke")
        parts = [bench.file(s, "text").read_text() for s in self.below]
        text = self.word + "(" + ",".join(parts) + ")"
        (bench.directory / "text").write_text(text)
        return Text(text)


def test_runs_inputs_first_and_once(tmp_path: Path) -> None:
    a = Join("a")
    b, c = Join("b", (a,)), Join("c", (a,))
    top = Join("top", (b, c))
    outcomes = executor(tmp_path).run([top])
    assert outcomes.result(top) == Text("top(b(a()),c(a()))")
    assert sorted(outcomes.ran) == ["join a", "join b", "join c", "join top"]


def test_nothing_runs_the_second_time(tmp_path: Path) -> None:
    top = Join("top", (Join("a"),))
    executor(tmp_path).run([top])
    outcomes = executor(tmp_path).run([top])
    assert outcomes.ran == []
    assert outcomes.result(top) == Text("top(a())")


def test_a_change_reruns_only_what_depends_on_it(tmp_path: Path) -> None:
    a, b = Join("a"), Join("b")
    executor(tmp_path).run([Join("top", (a, b))])
    outcomes = executor(tmp_path).run([Join("top", (a, Join("B")))])
    assert outcomes.ran == ["join B", "join top"]


@pytest.mark.parametrize("jump_s", [-86400.0, 86400.0])
def test_a_clock_that_jumps_changes_nothing_but_dates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump_s: float
) -> None:
    """It jumps at every look."""
    now, jumps = time.time, itertools.count()
    monkeypatch.setattr(time, "time", lambda: now() + next(jumps) * jump_s)
    top = Join("top", (Join("a"), Join("b")))
    first = executor(tmp_path, jobs=2, expected={top.key: 1.0})
    outcomes = first.run([top])
    assert sorted(outcomes.ran) == ["join a", "join b", "join top"]
    assert all(0 <= a.seconds < 60 for a in outcomes.artifacts.values())
    assert 0 <= first.remaining.taken_s < 60
    assert executor(tmp_path).run([top]).ran == []
    assert list(Store(tmp_path / "store").verify()) == []


def test_a_failure_blocks_only_its_dependents(tmp_path: Path) -> None:
    bad = Join("bad", fails=True)
    above, beside = Join("above", (bad,)), Join("beside")
    outcomes = executor(tmp_path).run([above, beside])
    assert outcomes.result(beside) == Text("beside()")
    assert outcomes.failures[bad.key].error.message == "bad broke"
    assert outcomes.failures[above.key].blocked_by == "join bad"
    assert outcomes.result(above) is None


def test_jobs_side_by_side_give_the_same(tmp_path: Path) -> None:
    steps = [Join(f"s{i}", (Join(f"t{i}"),)) for i in range(8)]
    top = Join("top", tuple(steps))
    one = executor(tmp_path / "one").run([top]).result(top)
    assert executor(tmp_path / "many", jobs=4).run([top]).result(top) == one


def test_fresh_measures_again(tmp_path: Path) -> None:
    step = Join("a")
    executor(tmp_path).run([step])
    assert executor(tmp_path, fresh=True).run([step]).ran == ["join a"]


def flip(path: Path) -> None:
    """One byte of ``path`` other than it was."""
    with path.open("r+b") as stream:
        first = stream.read(1)[0]
        stream.seek(0)
        stream.write(bytes([first ^ 1]))


def test_a_rotten_input_is_caught_told_and_made_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = Join("a")
    flip(executor(tmp_path).run([a]).artifacts[a.key].file("text"))
    top = Join("top", (a,))
    outcomes = executor(tmp_path).run([top])
    assert outcomes.result(top) == Text("top(a())")
    assert outcomes.ran == ["join a", "join top"]
    told = capsys.readouterr().err
    assert told.count("has other content than was recorded; it is made again") == 1
    assert list(Store(tmp_path / "store").verify()) == []


def test_what_was_proven_when_it_was_made_outlives_the_rot_of_its_input(tmp_path: Path) -> None:
    a = Join("a")
    top = Join("top", (a,))
    flip(executor(tmp_path).run([top]).artifacts[a.key].file("text"))
    assert executor(tmp_path).run([top]).ran == ["join a"]


def test_an_edited_result_is_made_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = Join("a")
    meta = executor(tmp_path).run([a]).artifacts[a.key].meta
    meta.write_text(meta.read_text().replace('"a()"', '"b()"'))
    outcomes = executor(tmp_path).run([a])
    assert outcomes.result(a) == Text("a()")
    assert outcomes.ran == ["join a"]
    assert "is damaged; it is made again" in capsys.readouterr().err


@dataclass(frozen=True)
class Read(Step[Text]):
    """The text of a source, written to it while the step runs if ``writes``."""

    file: Source
    writes: str | None = None

    kind: ClassVar[str] = "read"
    result_type: ClassVar[type] = Text

    @property
    def label(self) -> str:
        return "read"

    def params(self) -> Mapping[str, JsonValue]:
        return {}

    def run(self, bench: Workbench) -> Text:
        if self.writes is not None:
            self.file.path.write_text(self.writes)
        return Text(self.file.path.read_text())


@pytest.mark.parametrize("when", ["before", "during"])
def test_a_source_that_changes_after_it_was_hashed_makes_nothing(tmp_path: Path, when: str) -> None:
    file = tmp_path / "model"
    file.write_text("hashed")
    step = Read(source([file]), "other" if when == "during" else None)
    if when == "before":
        file.write_text("other!")
    outcomes = executor(tmp_path).run([step])
    assert "changed since it was hashed" in outcomes.failures[step.key].error.message
    assert list(Store(tmp_path / "store").entries()) == []


def test_a_touched_source_is_still_the_same(tmp_path: Path) -> None:
    file = tmp_path / "model"
    file.write_text("hashed")
    step = Read(source([file]))
    file.touch()
    outcomes = executor(tmp_path).run([step])
    assert outcomes.result(step) == Text("hashed")
    digest = step.file.digest.removeprefix("sha256:")
    assert outcomes.artifacts[step.key].made_from == {"file": {"model": digest}}


@given(st.text(max_size=20), st.text(max_size=20))
def test_keys_are_equal_exactly_when_the_parts_are(one: str, other: str) -> None:
    assert (Join(one).key == Join(other).key) == (one == other)


@given(st.lists(st.sampled_from("abcd"), max_size=4), st.lists(st.sampled_from("abcd"), max_size=4))
def test_keys_follow_the_inputs(one: list[str], other: list[str]) -> None:
    left = Join("top", tuple(Join(w) for w in one))
    right = Join("top", tuple(Join(w) for w in other))
    assert (left.key == right.key) == (one == other)


@dataclass(frozen=True)
class Sleep(Worded):
    """Sleeps in a program of its own; ``interrupts``: Ctrl-C comes once all of them sleep."""

    asleep: threading.Barrier = field(compare=False)
    interrupts: bool = False

    kind: ClassVar[str] = "sleep"

    def run(self, bench: Workbench) -> Text:
        spec = ProcessSpec(("/bin/sleep", "60"), "sleep", env={})
        running = bench.supervisor.start(spec)
        self.asleep.wait(30)
        if self.interrupts:
            os.kill(os.getpid(), signal.SIGINT)
        running.wait().check()
        return Text(self.word)


def test_ctrl_c_ends_steps_side_by_side_and_leaves_no_workspace(tmp_path: Path) -> None:
    asleep = threading.Barrier(2)
    steps = [Sleep("a", asleep, interrupts=True), Sleep("b", asleep)]
    made = executor(tmp_path, jobs=2)
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        made.run(steps)
    assert time.monotonic() - started < 30
    assert [p for p in (tmp_path / "store" / "tmp").iterdir() if p.is_dir()] == []
    assert made.outcomes.artifacts == {}


def test_what_is_left_follows_the_machine_and_what_ran_unasked() -> None:
    left = Remaining({"a": 10.0, "b": 10.0, "c": 20.0})
    assert left.seconds == 40
    assert left.text() == "about 40 s left"
    left.ran("a", 10.0)
    assert left.seconds == pytest.approx(30)
    left.ran("b", 20.0)  # twice as long as expected
    assert left.seconds is not None
    assert 20 < left.seconds < 40
    left.ran("another candidate's", 15.0)  # in the place of one that was expected
    assert left.seconds is not None
    assert left.seconds < 10
    left.ran("c", 20.0)
    assert left.seconds is None
    assert left.text() == ""


def test_what_is_left_counts_down() -> None:
    left = Remaining({"a": 600.0})
    assert left.text() == "about 10 min 00 s left"
    assert left.text(550.0) == "about 50 s left"
    assert left.text(700.0) == ""


def telling(folder: Path, **options: Any) -> tuple[io.StringIO, Executor]:
    """An executor, and what it says to people."""
    said = io.StringIO()
    output = Output(Mode.HUMAN, stderr=said)
    return said, Executor(Store(folder / "store"), output, logs=folder / "logs", **options)


def test_each_step_that_ran_tells_what_is_left(tmp_path: Path) -> None:
    steps = [Join("a"), Join("b")]
    said, one = telling(tmp_path, expected={step.key: 60.0 for step in steps})
    one.run(steps)
    first, second = said.getvalue().splitlines()
    assert re.fullmatch(r"step 1 of 2: join a, \d+\.\d s, about \d+ s left", first)
    assert re.fullmatch(r"step 2 of 2: join b, \d+\.\d s", second)


def test_steps_count_on_over_runs_and_none_is_counted_that_was_stored(tmp_path: Path) -> None:
    a, b, c = Join("a"), Join("b"), Join("c")
    executor(tmp_path).run([a])
    seen: list[str] = []
    said, one = telling(tmp_path, watch=lambda step: seen.append(step.label))
    one.run([a, b])
    one.run([b, c])
    assert seen == ["join b", "join c"]
    assert [line.partition(",")[0] for line in said.getvalue().splitlines()] == [
        "step 1 of 1: join b",
        "step 2 of 2: join c",
    ]


@dataclass
class Board:
    """Which steps run now, and which ran at the same time."""

    running: set[str] = field(default_factory=set)
    beside: set[frozenset[str]] = field(default_factory=set)
    order: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, word: str) -> None:
        with self.lock:
            self.order.append(word)
            self.beside |= {frozenset({word, other}) for other in self.running}
            self.running.add(word)

    def end(self, word: str) -> None:
        with self.lock:
            self.running.discard(word)


@dataclass(frozen=True)
class Watched(Worded):
    """Takes ``seconds``, and says on the ``board`` when it runs."""

    board: Board = field(compare=False)
    seconds: float = 0.1
    memory_bytes: int = 0
    device: bool = False

    kind: ClassVar[str] = "watched"

    def needs(self) -> Needs:
        return Needs(self.memory_bytes, self.device)

    def run(self, bench: Workbench) -> Text:
        self.board.begin(self.word)
        time.sleep(self.seconds)
        self.board.end(self.word)
        return Text(self.word)


class Timing(Watched):
    """The same, timed."""

    kind: ClassVar[str] = "timing"
    timed: ClassVar[bool] = True


def test_remeasure_times_again_and_keeps_what_is_not_timed(tmp_path: Path) -> None:
    board = Board()
    top = Timing("timing", board, below=(Watched("made", board),))
    assert executor(tmp_path).run([top]).ran == ["watched made", "timing timing"]
    assert executor(tmp_path).run([top]).ran == []
    assert executor(tmp_path, remeasure=True).run([top]).ran == ["timing timing"]


def test_a_step_begins_once_its_own_inputs_are_there(tmp_path: Path) -> None:
    """No wave: what follows the quick one does not wait for the slow one."""
    board = Board()
    slow = Watched("slow", board, 1.0)
    after = Watched("after", board, below=(Watched("quick", board),))
    executor(tmp_path, jobs=2).run([slow, after])
    assert frozenset({"slow", "after"}) in board.beside


def test_no_more_than_jobs_side_by_side(tmp_path: Path) -> None:
    board = Board()
    steps = [Watched(str(n), board) for n in range(6)]
    executor(tmp_path / "two", jobs=2).run(steps)
    assert board.beside
    triples = [
        {a, b, c}
        for a in "012345"
        for b in "012345"
        for c in "012345"
        if {frozenset({a, b}), frozenset({b, c}), frozenset({a, c})} <= board.beside
        and len({a, b, c}) == 3
    ]
    alone = Board()
    executor(tmp_path / "one").run([Watched(str(n), alone) for n in range(3)])
    assert alone.beside == set()
    assert triples == []


def test_what_does_not_fit_waits_and_what_fits_goes_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cook.graph.execute.available_memory_bytes", lambda: 1000)
    board = Board()
    sizes = {"large": 600, "larger": 700, "small": 200, "huge": 5000}
    steps = [Watched(word, board, 0.3, memory_bytes=size) for word, size in sizes.items()]
    outcomes = executor(tmp_path, jobs=4).run(steps)
    assert len(outcomes.artifacts) == 4, "what never fits next to others runs alone"
    assert set(board.order[:2]) == {"large", "small"}, "larger waits for large"
    assert not any({"huge"} & pair for pair in board.beside)
    assert frozenset({"large", "larger"}) not in board.beside


def test_a_device_is_one_steps_at_a_time(tmp_path: Path) -> None:
    board = Board()
    on_it = [Watched(f"on-{n}", board, device=True) for n in range(3)]
    beside = Watched("beside", board, 0.3)
    executor(tmp_path, jobs=4).run([*on_it, beside])
    assert all("beside" in pair for pair in board.beside)
    assert board.beside


def test_nothing_runs_beside_a_timing_and_timings_keep_their_order(tmp_path: Path) -> None:
    board = Board()
    first = [Timing(f"t{n}", board) for n in range(3)]
    after = Watched("after", board, below=(first[0],))
    outcomes = executor(tmp_path, jobs=4).run([*first, after, Watched("before", board)])
    assert len(outcomes.artifacts) == 5
    assert board.beside == set()
    # What a timing makes possible does not come between timings whose order was chosen.
    assert board.order == ["before", "t0", "t1", "t2", "after"]


def test_nothing_of_another_cook_runs_beside_a_timing(tmp_path: Path) -> None:
    """Two cooks, two homes, one machine."""
    board = Board()
    timings = [Timing(f"t{n}", board) for n in range(3)]
    others = [Watched(f"o{n}", board) for n in range(6)]

    def one() -> None:
        executor(tmp_path / "one").run(timings)

    thread = threading.Thread(target=one)
    thread.start()
    executor(tmp_path / "other", jobs=2).run(others)
    thread.join()
    assert len(board.order) == 9
    assert not any(word.startswith("t") for pair in board.beside for word in pair)


def test_one_step_alone_wants_its_inputs_stored(tmp_path: Path) -> None:
    below = Join("a")
    top = Join("top", (below,))
    with pytest.raises(PrerequisiteError, match="join top: its input join a is not made yet"):
        executor(tmp_path).run_one(top)
    executor(tmp_path).run_one(below)
    artifact, ran = executor(tmp_path).run_one(top)
    assert (ran, artifact.result) == (True, {"text": "top(a())"})


@dataclass(frozen=True)
class Stubborn(Step[Text]):
    """A program that ends only when it must."""

    interrupts: int

    kind: ClassVar[str] = "stubborn"
    result_type: ClassVar[type] = Text

    @property
    def label(self) -> str:
        return "stubborn"

    def params(self) -> Mapping[str, JsonValue]:
        return {}

    def run(self, bench: Workbench) -> Text:
        script = "trap '' TERM; echo ready; while :; do sleep 0.05; done"
        spec = ProcessSpec(("/bin/sh", "-c", script), "stubborn", env={"PATH": os.defpath})
        running = bench.supervisor.start(spec)
        while b"ready" not in (running.folder / "stdout.log").read_bytes():
            time.sleep(0.01)

        def interrupt() -> None:
            for _ in range(self.interrupts):
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.7)

        threading.Thread(target=interrupt).start()
        running.wait().check()
        return Text("ended")


def test_the_second_ctrl_c_waits_for_nobody(tmp_path: Path) -> None:
    took = {}
    for interrupts in (1, 2):
        made = executor(tmp_path / str(interrupts))
        started = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            made.run([Stubborn(interrupts)])
        took[interrupts] = time.monotonic() - started
        workspaces = tmp_path / str(interrupts) / "store" / "tmp"
        assert [p for p in workspaces.iterdir() if p.is_dir()] == []
    assert 5 < took[1] < 12, "the first leaves programs the time to end by themselves"
    assert took[2] < 3


@dataclass(frozen=True)
class Program:
    """As much of an engine as is looked at: its files."""

    files: tuple[Path, ...]

    @property
    def identity(self) -> EngineIdentity:
        return EngineIdentity(Flavour.LLAMA_CPP, "b1", None, "digest")

    @property
    def facts(self) -> Any:
        hashes = {file.name: hashlib.sha256(b"a build").hexdigest() for file in self.files}
        return SimpleNamespace(files=hashes)


@dataclass(frozen=True)
class Runs(Join):
    """Uses an engine, and has it replaced while it runs if ``replaces``."""

    engine: Program = field(default=Program(()), compare=False)
    replaces: bool = False

    def uses(self) -> Any:
        return self.engine

    def run(self, bench: Workbench) -> Text:
        if self.replaces:
            self.engine.files[0].write_text("another build")
        return super().run(bench)


def test_an_engine_replaced_under_a_run_makes_nothing_more(tmp_path: Path) -> None:
    """What it made would be kept under the key of the build that it was."""
    file = tmp_path / "llama-quantize"
    file.write_text("a build")
    engine = Program((file,))
    fine = Runs("fine", engine=engine)
    replacing = Runs("replacing", (fine,), engine=engine, replaces=True)
    later = Runs("later", (fine,), engine=engine)
    touched = executor(tmp_path / "touched")
    touched.run([fine])
    file.write_text("a build")
    assert touched.run([Runs("after", engine=engine)]).ran == ["join fine", "join after"]
    outcomes = executor(tmp_path).run([fine, replacing, later])
    assert outcomes.ran == ["join fine"]
    for step in (replacing, later):
        error = outcomes.failures[step.key].error
        assert f"{file} was replaced while this ran" in error.message


def test_what_is_left_is_shared_by_those_side_by_side() -> None:
    expected = {"a": 30.0, "b": 30.0, "t": 40.0}
    one = Remaining(expected, alone={"t"})
    two = Remaining(expected, alone={"t"}, lanes=2)
    assert (one.seconds, two.seconds) == (100.0, 70.0)
    two.ran("t", 40.0, alone=True)
    assert two.seconds == pytest.approx(30)
    two.ran("a", 30.0)
    assert two.seconds == pytest.approx(15)
    two.ran("another", 30.0, alone=True)  # in the place of one that was to run beside others
    assert two.seconds is None
