"""The supervisor: capture, time-outs, memory, and nothing left running."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import IO

import pytest

from cook.engines.process import keeper, supervisor
from cook.engines.process.outcome import (
    Outcome,
    ProcessResult,
    ProcessSpec,
    classify,
    failure,
    tail,
)
from cook.engines.process.supervisor import Running, Supervisor
from cook.errors import Interrupted, PrerequisiteError, StepError

ROOT = Path(__file__).parents[3]
ENV = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}


def python(code: str, **options: object) -> ProcessSpec:
    argv = (sys.executable, "-IS", "-c", textwrap.dedent(code))
    return ProcessSpec(argv, "step", ENV, **options)  # type: ignore[arg-type]


def run(logs: Path, code: str, **options: object) -> ProcessResult:
    return Supervisor(logs).run(python(code, **options))


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def wait_gone(*pids: int) -> bool:
    end = time.monotonic() + 5.0
    while any(map(alive, pids)) and time.monotonic() < end:
        time.sleep(0.02)
    return not any(map(alive, pids))


def test_streams_and_surroundings_are_its_own(tmp_path: Path) -> None:
    code = r"""
        import json, os, sys
        open("llama.log", "w").write("x")
        print(json.dumps([sorted(os.environ), sys.stdin.read(), os.getcwd(), os.getsid(0)]))
        os.write(2, b"err\r1\xff\x00")
    """
    result = run(tmp_path, code).check()
    names, stdin, cwd, session = json.loads(result.stdout.read_bytes())
    assert result.stderr.read_bytes() == b"err\r1\xff\x00"
    assert result.returncode == 0
    assert set(names) <= {"PATH", "LANG", "LC_CTYPE"}
    assert stdin == ""
    assert Path(cwd).parent == result.stdout.parent
    assert not Path(cwd).exists()
    assert session != os.getsid(0)


def test_each_run_has_a_log_folder_of_its_own(tmp_path: Path) -> None:
    runner = Supervisor(tmp_path)
    folders = {runner.run(python("")).stdout.parent.name for _ in range(3)}
    assert folders == {"step", "step-2", "step-3"}
    assert json.loads((tmp_path / "step" / "command.json").read_text())[0] == sys.executable


def test_output_callback_sees_chunks_without_newlines(tmp_path: Path) -> None:
    seen: list[tuple[str, bytes]] = []
    code = "import os,time; os.write(1,b'[1]'); time.sleep(.3); os.write(1,b'2,')"
    run(tmp_path, code, on_output=lambda stream, chunk: seen.append((stream, chunk))).check()
    assert seen == [("stdout", b"[1]"), ("stdout", b"2,")]


def test_log_size_is_bounded_and_keeps_both_ends(tmp_path: Path) -> None:
    code = "import os\nos.write(2, b'first')\nfor _ in range(64): os.write(2, b'x' * 65536)\n"
    code += "os.write(2, b'last')"
    result = run(tmp_path, code, max_log_bytes=100_000).check()
    text = result.stderr.read_bytes()
    assert len(text) < 150_000
    assert text.startswith(b"first")
    assert text.endswith(b"last")
    assert b"bytes left out here" in text
    assert result.stderr_tail.endswith("last")


def test_peak_memory_is_the_programs_own(tmp_path: Path) -> None:
    ballast = bytearray(300 << 20)  # cook's own memory must not be counted
    ballast[::4096] = b"x" * len(ballast[::4096])
    small = run(tmp_path, "import time; time.sleep(.4)").check()
    code = "import time; b = bytearray(200 << 20); b[::4096] = b'x' * 51200; time.sleep(.4)"
    large = run(tmp_path, code)
    del ballast
    assert 2 << 20 < small.peak_rss_bytes < 60 << 20
    assert 200 << 20 < large.peak_rss_bytes < 260 << 20


def test_wall_time_out_kills_the_whole_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "TERM_S", 0.5)
    code = """
        import os, signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = os.fork()
        if child: print(os.getpid(), child, flush=True)
        while True: time.sleep(1)
    """
    started = time.monotonic()
    result = run(tmp_path, code, timeout_s=0.5)
    assert result.outcome is Outcome.TIMED_OUT
    assert time.monotonic() - started < 9
    leader, child = map(int, result.stdout.read_text().split())
    assert wait_gone(leader, child)


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        ("time.sleep(60)", Outcome.STALLED),
        ("end = time.process_time() + 1.2\nwhile time.process_time() < end: pass", Outcome.OK),
        ("for _ in range(12): print('.', end='', flush=True); time.sleep(.15)", Outcome.OK),
    ],
    ids=["idle", "silent work", "output"],
)
def test_stall_is_silence_without_work(tmp_path: Path, code: str, outcome: Outcome) -> None:
    result = run(tmp_path, f"import time\n{code}", stall_timeout_s=0.8)
    assert result.outcome is outcome
    assert result.seconds < 10


def test_what_a_program_leaves_running_is_ended(tmp_path: Path) -> None:
    code = """
        import os, time
        child = os.fork()
        if child: print(child, flush=True)
        else: time.sleep(3600)
    """
    result = run(tmp_path, code).check()
    assert result.seconds < 10
    assert wait_gone(int(result.stdout.read_text()))


@pytest.mark.parametrize(
    "deaf",
    [False, pytest.param(True, id="deaf, as a server in the midst of a request is")],
)
def test_cancel_ends_runs_in_other_threads_and_refuses_new_ones(tmp_path: Path, deaf: bool) -> None:
    runner = Supervisor(tmp_path)
    results: list[ProcessResult] = []
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
    spec = python(code if deaf else "import time; time.sleep(60)")
    thread = threading.Thread(target=lambda: results.append(runner.run(spec)))
    thread.start()
    time.sleep(0.3)
    runner.cancel()
    thread.join(supervisor.TERM_S - 1)  # sooner than a program that is stopped one by one
    assert not thread.is_alive()
    assert results[0].outcome is Outcome.INTERRUPTED
    with pytest.raises(Interrupted):
        results[0].check()
    with pytest.raises(Interrupted):
        runner.run(python(""))


def test_an_exception_in_the_caller_kills_the_program(tmp_path: Path) -> None:
    pids: list[int] = []

    def explode(stream: str, chunk: bytes) -> None:
        pids.append(int(chunk))
        raise KeyboardInterrupt

    code = "import os, time; print(os.getpid(), flush=True); time.sleep(3600)"
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, code, on_output=explode)
    assert wait_gone(pids[0])


FAMILY = """
    import os, time
    child = os.fork()
    if child == 0:
        grandchild = os.fork()
        if grandchild == 0:
            os.setpgid(0, 0)
            print("own", os.getpid(), flush=True)
    else:
        print("leader", os.getpid(), child, flush=True)
    time.sleep(3600)
"""


def cook_that_runs(program: str, logs: Path) -> tuple[subprocess.Popen[bytes], IO[bytes]]:
    """A cook whose one step is ``program``, and what that prints."""
    code = f"""
        import sys
        from pathlib import Path
        from cook.engines.process.outcome import ProcessSpec
        from cook.engines.process.supervisor import Supervisor
        spec = ProcessSpec((sys.executable, "-IS", "-c", {textwrap.dedent(program)!r}), "step",
                           {ENV!r}, on_output=lambda s, c: print(c.decode(), end="", flush=True))
        Supervisor(Path({str(logs)!r})).run(spec)
    """
    cook = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
    )
    assert cook.stdout is not None
    return cook, cook.stdout


def keepers_of(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    children = [int(child) for task in tasks for child in task.read_text().split()]
    return [c for c in children if b"keeper.py" in Path(f"/proc/{c}/cmdline").read_bytes()]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_nothing_that_a_program_started_survives_cook_killed(
    tmp_path: Path, number: signal.Signals
) -> None:
    """Neither a child nor one in a process group of its own, as ninja's are."""
    cook, printed = cook_that_runs(FAMILY, tmp_path)
    words = (printed.readline() + printed.readline()).split()
    pids = [int(word) for word in words if word.isdigit()]
    assert len(pids) == 3
    assert all(map(alive, pids))
    (keeping,) = keepers_of(cook.pid)
    cook.send_signal(number)
    cook.wait(10)
    printed.close()
    assert wait_gone(*pids, keeping)


def test_without_its_keeper_a_program_still_dies_with_cook(tmp_path: Path) -> None:
    sleeper = "import os, time; print(os.getpid(), flush=True); time.sleep(3600)"
    cook, printed = cook_that_runs(sleeper, tmp_path)
    pid = int(printed.readline())
    for number in keepers_of(cook.pid):
        os.kill(number, signal.SIGKILL)
    cook.kill()
    cook.wait(10)
    printed.close()
    assert wait_gone(pid)


def test_the_keeper_is_gone_before_cook_is(tmp_path: Path) -> None:
    """Where no one adopts orphans, as in many containers, each cook would leave a zombie."""
    code = """
        import os
        from pathlib import Path
        from cook.engines.process.supervisor import ask
        ask("/bin/true")
        task = Path(f"/proc/{os.getpid()}/task")
        print(*(c for t in task.glob("*/children") for c in t.read_text().split()))
    """
    argv = [sys.executable, "-c", textwrap.dedent(code)]
    (pid,) = subprocess.run(argv, stdout=subprocess.PIPE, cwd=ROOT, check=True).stdout.split()
    assert not Path(f"/proc/{int(pid)}").exists()


def test_the_keeper_leaves_alone_what_cook_released(tmp_path: Path) -> None:
    """A process number may be another's by the time that cook ends."""
    argv = [sys.executable, "-IS", keeper.__file__]
    with subprocess.Popen(["/bin/sleep", "60"], start_new_session=True) as other:
        subprocess.run(argv, input=f"+{other.pid}\n-{other.pid}\n".encode(), check=True)
        assert alive(other.pid)
        subprocess.run(argv, input=f"+{other.pid}\n".encode(), check=True)
        assert other.wait(10) == -signal.SIGKILL


def test_only_the_spawner_starts_programs() -> None:
    """What is started elsewhere would outlive cook."""
    starting = re.compile(
        r"subprocess\.(run|Popen|call|check_|getoutput)|os\.(system|popen|spawn|posix_spawn|fork)"
        r"|from subprocess|multiprocessing|prefer=.processes"
    )
    found = [p for p in (ROOT / "cook").rglob("*.py") if starting.search(p.read_text())]
    assert found == [Path(supervisor.__file__)]


def test_background_program_with_pipes(tmp_path: Path) -> None:
    code = "import sys\nfor line in sys.stdin: print(line.strip().upper(), flush=True)"
    running = Supervisor(tmp_path).start(python(code, pipes=True, stall_timeout_s=None))
    running.stdin.write(b"hello\n")
    assert running.stdout.readline() == b"HELLO\n"
    assert running.poll() is None
    result = running.stop()
    assert result.outcome is Outcome.OK
    assert not alive(running.pid)
    running.stdin.close()
    running.stdout.close()


def test_a_log_has_what_was_written_before_it_is_asked_for(tmp_path: Path) -> None:
    """However far behind the reading is."""
    mark = tmp_path / "written"
    code = f"""
        import os, time
        for number in range(40):
            os.write(2, b"%06d\\n" % number * 1000)
        open({str(mark)!r}, "w").close()
        time.sleep(60)
    """
    slow = python(code, stall_timeout_s=None, on_output=lambda *_: time.sleep(0.1))
    running = Supervisor(tmp_path / "logs").start(slow)
    while not mark.exists():
        time.sleep(0.01)
    behind = running.stderr_log.stat().st_size
    running.catch_up()
    assert behind < running.stderr_log.stat().st_size == 40 * 7_000
    running.stop()
    running.catch_up()


def test_a_program_started_from_a_thread_outlives_the_thread(tmp_path: Path) -> None:
    box: list[Running] = []
    runner = Supervisor(tmp_path)
    spec = python("import time; time.sleep(60)", stall_timeout_s=None)
    thread = threading.Thread(target=lambda: box.append(runner.start(spec)))
    thread.start()
    thread.join()
    time.sleep(0.5)
    assert box[0].poll() is None
    box[0].stop()


def test_programs_that_cannot_start(tmp_path: Path) -> None:
    runner = Supervisor(tmp_path)
    with pytest.raises(PrerequisiteError, match="missing or not executable"):
        runner.run(ProcessSpec((str(tmp_path / "no"),), "step", ENV))
    wrong = tmp_path / "other-architecture"
    wrong.write_bytes(b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x02\x00\xb7\x00" + bytes(100))
    wrong.chmod(0o755)
    with pytest.raises(PrerequisiteError, match="cannot start"):
        runner.run(ProcessSpec((str(wrong),), "step", ENV)).check()


@pytest.mark.parametrize(
    ("returncode", "output", "outcome"),
    [
        (0, "failed to allocate", Outcome.OK),
        (1, "", Outcome.TOOL_ERROR),
        (-11, "", Outcome.CRASH),
        (139, "", Outcome.CRASH),
        (-6, "x.c:1: GGML_ASSERT(a) failed", Outcome.CRASH),
        (-6, "terminate called ... instance of 'std::bad_alloc'", Outcome.OUT_OF_MEMORY),
        (1, "alloc_buffer: failed to allocate buffer of size 9", Outcome.OUT_OF_MEMORY),
        (1, "write: No space left on device", Outcome.DISK_FULL),
        (127, "error while loading shared libraries: libggml.so: x", Outcome.UNRUNNABLE),
        (-9, "", Outcome.CRASH),
    ],
)
def test_classification(returncode: int, output: str, outcome: Outcome, tmp_path: Path) -> None:
    assert classify(returncode, output, oom_killed=False, writes=(tmp_path,)) is outcome
    if returncode == -9:
        assert classify(-9, "", oom_killed=True, writes=()) is Outcome.OUT_OF_MEMORY


def test_the_error_has_the_assertion_the_tail_and_the_log(tmp_path: Path) -> None:
    code = """
        import os, sys
        for i in range(40): print("line", i, file=sys.stderr)
        sys.stderr.write("[ 1/21] converting .. /b/ggml.c:7: GGML_ASSERT(n == 1) failed\\n")
        sys.stderr.flush(); os.abort()
    """
    result = run(tmp_path, code)
    error = failure(result)
    assert isinstance(error, StepError)
    assert "crashed with SIGABRT" in error.message
    assert "GGML_ASSERT(n == 1) failed" in error.message.splitlines()[0]
    assert len(error.message.splitlines()) <= 13
    assert error.log == result.stderr


def test_a_tail_is_safe_to_print() -> None:
    hostile = "a\x1b[2Jb\x1b]0;t\x07\n\n\x9bc\r50%\rd\n" + "x" * 999
    lines = tail(hostile).splitlines()
    assert lines == ["ab]0;t", "c", "50%", "d", "x" * 300]
