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
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cook.engines.base import EngineIdentity, Flavour
from cook.engines.process import supervisor
from cook.engines.process.outcome import ProcessSpec
from cook.errors import PrerequisiteError
from cook.graph.execute import Executor, Remaining
from cook.graph.step import Needs, Source, Step, Workbench, source
from cook.graph.store import Store
from cook.output import Mode, Output
from tests.graph.steps import Text, Worded
from tests.workbench import executor, run


@dataclass(frozen=True)
class Join(Worded):
    below: tuple[Step[Any], ...] = ()

    kind: ClassVar[str] = "join"


@pytest.mark.parametrize("jobs", [1, 4])
def test_what_is_missing_runs_once_inputs_first(tmp_path: Path, jobs: int) -> None:
    a = Join("a")
    top = Join("top", (Join("b", (a,)), Join("c", (a,))))
    outcomes = run(tmp_path, top, jobs=jobs)
    assert outcomes.result(top) == Text("top(b(a()),c(a()))")
    assert sorted(outcomes.ran) == ["join a", "join b", "join c", "join top"]
    again = run(tmp_path, top)
    assert (again.ran, again.result(top)) == ([], outcomes.result(top))
    changed = Join("top", (Join("b", (a,)), Join("C", (a,))))
    assert run(tmp_path, changed).ran == ["join C", "join top"]
    assert run(tmp_path, a, fresh=True).ran == ["join a"]


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
    assert run(tmp_path, top).ran == []
    assert list(Store(tmp_path / "store").verify()) == []


def test_a_failure_blocks_only_its_dependents(tmp_path: Path) -> None:
    bad = Join("bad", fails="itself")
    above, other = Join("above", (bad,)), Join("other")
    top = Join("top", (above,))
    outcomes = run(tmp_path, top, other)
    assert outcomes.result(other) == Text("other()")
    assert outcomes.failures[bad.key].error.message == "bad broke"
    assert {outcomes.failures[step.key].blocked_by for step in (above, top)} == {"join bad"}
    assert outcomes.result(above) is None


def flip(path: Path) -> None:
    """One byte of ``path`` other than it was."""
    content = path.read_bytes()
    path.write_bytes(bytes([content[0] ^ 1]) + content[1:])


def test_a_rotten_input_is_reported_and_made_again_and_what_was_made_of_it_outlives_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = Join("a")
    flip(run(tmp_path, a).artifacts[a.key].file("text"))
    top = Join("top", (a,))
    outcomes = run(tmp_path, top)
    assert outcomes.result(top) == Text("top(a())")
    assert outcomes.ran == ["join a", "join top"]
    warned = capsys.readouterr().err
    assert warned.count("has other content than was recorded; it is made again") == 1
    assert list(Store(tmp_path / "store").verify()) == []
    flip(outcomes.artifacts[a.key].file("text"))
    assert run(tmp_path, top).ran == ["join a"], "proven when it was used"


def test_an_edited_result_is_made_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = Join("a")
    meta = run(tmp_path, a).artifacts[a.key].meta
    meta.write_text(meta.read_text().replace('"a()"', '"b()"'))
    outcomes = run(tmp_path, a)
    assert (outcomes.result(a), outcomes.ran) == (Text("a()"), ["join a"])
    assert "is damaged; it is made again" in capsys.readouterr().err


@dataclass(frozen=True)
class Read(Worded):
    """The text of a source, written to it while the step runs if ``writes``."""

    file: Source
    writes: str | None = None

    kind: ClassVar[str] = "read"

    def run(self, bench: Workbench) -> Text:
        if self.writes is not None:
            self.file.path.write_text(self.writes)
        return Text(self.file.path.read_text())


@pytest.mark.parametrize("when", ["before", "during"])
def test_a_source_that_changes_after_it_was_hashed_makes_nothing(tmp_path: Path, when: str) -> None:
    file = tmp_path / "model"
    file.write_text("hashed")
    step = Read("it", source([file]), "other" if when == "during" else None)
    if when == "before":
        file.write_text("other!")
    outcomes = run(tmp_path, step)
    assert "changed since it was hashed" in outcomes.failures[step.key].error.message
    assert list(Store(tmp_path / "store").entries()) == []


def test_a_touched_source_is_still_the_same(tmp_path: Path) -> None:
    file = tmp_path / "model"
    file.write_text("hashed")
    step = Read("it", source([file]))
    file.touch()
    outcomes = run(tmp_path, step)
    assert outcomes.result(step) == Text("hashed")
    digest = step.file.digest.removeprefix("sha256:")
    assert outcomes.artifacts[step.key].made_from == {"file": {"model": digest}}


LEAVES = st.builds(Join, st.sampled_from("abcd"))
STEPS = st.builds(Join, st.text(max_size=3), st.lists(LEAVES, max_size=4).map(tuple))


@settings(deadline=None)
@given(STEPS, STEPS)
def test_keys_are_equal_exactly_when_words_and_inputs_are(one: Join, other: Join) -> None:
    assert (one.key == other.key) == (one == other)
    assert one.key == Join(one.word, one.below).key


@dataclass(frozen=True)
class Sleep(Worded):
    """Sleeps in a program of its own, which ends only when it must if it is ``stubborn``; once all
    of them sleep, Ctrl-C comes so many times."""

    asleep: threading.Barrier = field(compare=False)
    interrupts: int = 0
    stubborn: bool = False

    kind: ClassVar[str] = "sleep"

    def run(self, bench: Workbench) -> Text:
        trap = "trap '' TERM; " if self.stubborn else ""
        argv = ("/bin/sh", "-c", f"{trap}echo ready; while :; do sleep 0.05; done")
        running = bench.supervisor.start(ProcessSpec(argv, "sleep", env={"PATH": os.defpath}))
        while b"ready" not in (running.folder / "stdout.log").read_bytes():
            time.sleep(0.01)
        self.asleep.wait(30)

        def interrupt() -> None:
            for _ in range(self.interrupts):
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.7)

        threading.Thread(target=interrupt).start()
        running.wait().check()
        return Text("ended")


def interrupted_after(home: Path, *steps: Step[Any]) -> float:
    """Seconds until Ctrl-C has ended a run of ``steps``, which leaves nothing."""
    made = executor(home, jobs=2)
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        made.run(steps)
    assert [p for p in (home / "store" / "tmp").iterdir() if p.is_dir()] == []
    assert made.outcomes.artifacts == {}
    return time.monotonic() - started


def test_ctrl_c_ends_steps_side_by_side_and_leaves_no_workspace(tmp_path: Path) -> None:
    asleep = threading.Barrier(2)
    assert interrupted_after(tmp_path, Sleep("a", asleep, 1), Sleep("b", asleep)) < 30


def test_the_second_ctrl_c_does_not_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "CANCEL_TERM_S", 4.0)
    alone = threading.Barrier(1)
    first, second = (
        interrupted_after(tmp_path / str(n), Sleep("it", alone, n, stubborn=True)) for n in (1, 2)
    )
    assert 4 < first < 12, "programs are left the time to end"
    assert second < 3


def test_what_is_left_follows_the_machine_and_what_ran_unasked() -> None:
    left = Remaining({"a": 10.0, "b": 10.0, "c": 20.0})
    assert (left.seconds, left.text()) == (40, "about 40 s left")
    left.ran("a", 10.0)
    assert left.seconds == pytest.approx(30)
    left.ran("b", 20.0)  # twice as long as expected
    assert left.seconds == pytest.approx(20 * 38 / 28)
    left.ran("another candidate's", 15.0)  # in the place of one that was expected
    assert left.seconds == pytest.approx(5 * 53 / 43)
    left.ran("c", 20.0)
    assert (left.seconds, left.text()) == (None, "")


def test_what_is_left_counts_down() -> None:
    left = Remaining({"a": 600.0})
    assert [left.text(s) for s in (0.0, 550.0, 700.0)] == [
        *("about 10 min 00 s left", "about 50 s left", "")
    ]


def test_what_is_left_is_shared_by_those_side_by_side() -> None:
    expected = {"a": 30.0, "b": 30.0, "t": 40.0}
    one, two = (Remaining(expected, alone={"t"}, lanes=lanes) for lanes in (1, 2))
    assert (one.seconds, two.seconds) == (100.0, 70.0)
    two.ran("t", 40.0, alone=True)
    assert two.seconds == pytest.approx(30)
    two.ran("a", 30.0)
    assert two.seconds == pytest.approx(15)
    two.ran("another", 30.0, alone=True)  # in the place of one that was to run next to others
    assert two.seconds is None


def speaking(folder: Path, **options: Any) -> tuple[io.StringIO, Executor]:
    """An executor, and what it says to people."""
    said = io.StringIO()
    output = Output(Mode.HUMAN, stderr=said)
    return said, Executor(Store(folder / "store"), output, logs=folder / "logs", **options)


def test_each_step_that_ran_says_what_is_left(tmp_path: Path) -> None:
    steps = [Join("a"), Join("b")]
    said, one = speaking(tmp_path, expected={step.key: 60.0 for step in steps})
    one.run(steps)
    first, second = said.getvalue().splitlines()
    assert re.fullmatch(r"step 1 of 2: join a, \d+\.\d s, about \d+ s left", first)
    assert re.fullmatch(r"step 2 of 2: join b, \d+\.\d s", second)


def test_what_was_stored_unasked_stands_for_what_was_expected(tmp_path: Path) -> None:
    known, dealt, last = Join("known"), Join("dealt"), Join("last")
    with Executor(Store(tmp_path / "store"), Output(Mode.QUIET), logs=tmp_path) as before:
        seconds = before.run([known, dealt]).artifacts[dealt.key].seconds
    expected = {known.key: 0.0, "typical": 60 + seconds, last.key: 20.0}
    said, one = speaking(tmp_path, expected=expected)
    one.run([known, dealt])
    assert one.remaining.seconds == pytest.approx(80)
    one.run([last])
    assert said.getvalue().startswith("step 1 of 1: join last")


def test_steps_count_on_over_runs_and_none_is_counted_that_was_stored(tmp_path: Path) -> None:
    a, b, c = Join("a"), Join("b"), Join("c")
    run(tmp_path, a)
    seen: list[str] = []
    said, one = speaking(tmp_path, watch=lambda step: seen.append(step.label))
    one.run([a, b])
    one.run([b, c])
    assert seen == ["join b", "join c"]
    lines = [line.partition(",")[0] for line in said.getvalue().splitlines()]
    assert lines == ["step 1 of 1: join b", "step 2 of 2: join c"]


@dataclass
class Board:
    """Which steps run now, and which ran at the same time."""

    running: set[str] = field(default_factory=set)
    together: set[frozenset[str]] = field(default_factory=set)
    most: int = 0
    order: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


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
        board = self.board
        with board.lock:
            board.order.append(self.word)
            board.together |= {frozenset({self.word, other}) for other in board.running}
            board.running.add(self.word)
            board.most = max(board.most, len(board.running))
        time.sleep(self.seconds)
        with board.lock:
            board.running.discard(self.word)
        return Text(self.word)


class Timing(Watched):
    """The same, timed."""

    kind: ClassVar[str] = "timing"
    timed: ClassVar[bool] = True


def test_remeasure_times_again_and_keeps_what_is_not_timed(tmp_path: Path) -> None:
    board = Board()
    top = Timing("timing", board, below=(Watched("made", board),))
    assert run(tmp_path, top).ran == ["watched made", "timing timing"]
    assert run(tmp_path, top).ran == []
    assert run(tmp_path, top, remeasure=True).ran == ["timing timing"]


def test_a_step_begins_once_its_own_inputs_are_there(tmp_path: Path) -> None:
    """No wave: what follows the quick one does not wait for the slow one."""
    board = Board()
    slow = Watched("slow", board, 1.0)
    after = Watched("after", board, below=(Watched("quick", board),))
    run(tmp_path, slow, after, jobs=2)
    assert frozenset({"slow", "after"}) in board.together


@pytest.mark.parametrize("jobs", [1, 2])
def test_as_many_as_jobs_side_by_side_and_no_more(tmp_path: Path, jobs: int) -> None:
    board = Board()
    outcomes = run(tmp_path, *(Watched(str(n), board) for n in range(6)), jobs=jobs)
    assert len(outcomes.artifacts) == 6
    assert board.most == jobs


@pytest.mark.parametrize(("jobs", "last"), [(1, "c"), (2, "b")])
def test_side_by_side_what_takes_longest_begins_first(tmp_path: Path, jobs: int, last: str) -> None:
    board = Board()
    steps = [Watched("a", board, 0.3), Watched("b", board, 0.1), Watched("c", board, 0.5)]
    run(tmp_path, *steps, jobs=jobs, expected={step.key: step.seconds for step in steps})
    assert board.order[2] == last


def test_what_does_not_fit_waits_and_what_fits_goes_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cook.graph.execute.available_memory_bytes", lambda: 1000)
    board = Board()
    sizes = {"large": 600, "larger": 700, "small": 200, "huge": 5000}
    steps = [Watched(word, board, 0.3, memory_bytes=size) for word, size in sizes.items()]
    outcomes = run(tmp_path, *steps, jobs=4)
    assert len(outcomes.artifacts) == 4, "what never fits next to others runs alone"
    assert set(board.order[:2]) == {"large", "small"}, "larger waits for large"
    assert not any({"huge"} & pair for pair in board.together)
    assert frozenset({"large", "larger"}) not in board.together


def test_a_device_is_one_steps_at_a_time(tmp_path: Path) -> None:
    board = Board()
    on_it = [Watched(f"on-{n}", board, device=True) for n in range(3)]
    run(tmp_path, *on_it, Watched("other", board, 0.3), jobs=4)
    assert board.together
    assert all("other" in pair for pair in board.together)


def test_nothing_runs_next_to_a_timing_and_timings_keep_their_order(tmp_path: Path) -> None:
    board = Board()
    first = [Timing(f"t{n}", board) for n in range(3)]
    after = Watched("after", board, below=(first[0],))
    outcomes = run(tmp_path, *first, after, Watched("before", board), jobs=4)
    assert len(outcomes.artifacts) == 5
    assert board.together == set()
    # What a timing makes possible does not come between timings whose order was chosen.
    assert board.order == ["before", "t0", "t1", "t2", "after"]


def test_nothing_of_another_cook_runs_next_to_a_timing(tmp_path: Path) -> None:
    """Two cooks, two homes, one machine."""
    board = Board()
    timings = [Timing(f"t{n}", board) for n in range(3)]
    thread = threading.Thread(target=lambda: run(tmp_path / "one", *timings))
    thread.start()
    run(tmp_path / "other", *(Watched(f"o{n}", board) for n in range(6)), jobs=2)
    thread.join()
    assert len(board.order) == 9
    assert not any(word.startswith("t") for pair in board.together for word in pair)


def test_one_step_alone_wants_its_inputs_stored(tmp_path: Path) -> None:
    below = Join("a")
    top = Join("top", (below,))
    with pytest.raises(PrerequisiteError, match="join top: its input join a is not made yet"):
        executor(tmp_path).run_one(top)
    executor(tmp_path).run_one(below)
    artifact, ran = executor(tmp_path).run_one(top)
    assert (ran, artifact.result) == (True, {"text": "top(a())"})


@dataclass(frozen=True)
class Runs(Join):
    """Uses a program as its engine, and has it replaced while it runs if ``replaces``."""

    program: Path = field(default=Path(), compare=False)
    replaces: bool = False

    def uses(self) -> Any:
        """As much of an engine as is looked at: its files."""
        hashes = {self.program.name: hashlib.sha256(b"a build").hexdigest()}
        return SimpleNamespace(
            files=(self.program,),
            identity=EngineIdentity(Flavour.LLAMA_CPP, "b1", None, "digest"),
            facts=SimpleNamespace(files=hashes),
        )

    def run(self, bench: Workbench) -> Text:
        if self.replaces:
            self.program.write_text("another build")
        return super().run(bench)


def test_an_engine_replaced_since_it_was_found_makes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "llama-quantize"
    file.write_text("another build, while sources were read")
    with pytest.raises(PrerequisiteError, match=f"{file} was replaced since this began"):
        run(tmp_path, Runs("first", program=file))


def test_an_engine_replaced_under_a_run_makes_nothing_more(tmp_path: Path) -> None:
    """What it made would be kept under the key of the build that it was."""
    file = tmp_path / "llama-quantize"
    file.write_text("a build")
    fine = Runs("fine", program=file)
    replacing = Runs("replacing", (fine,), program=file, replaces=True)
    later = Runs("later", (fine,), program=file)
    touched = executor(tmp_path / "touched")
    touched.run([fine])
    file.write_text("a build")
    assert touched.run([Runs("after", program=file)]).ran == ["join fine", "join after"]
    outcomes = run(tmp_path, fine, replacing, later)
    assert outcomes.ran == ["join fine"]
    for step in (replacing, later):
        error = outcomes.failures[step.key].error
        assert f"{file} was replaced while this ran" in error.message
