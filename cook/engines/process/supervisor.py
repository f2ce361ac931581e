"""The only place that starts programs.

A :class:`Supervisor` runs argv lists (never a shell) in a session and process group of their own,
stdin closed, in a working directory of their own (ik_llama.cpp writes ``llama.log`` where it
stands), with exactly the environment it is given. Both output streams go raw to separate files of
the step, in bounded memory and up to a bounded size. A run ends on its own, by its wall or stall
time-out, or with cook: on an exception, on :meth:`Supervisor.cancel`, and even when cook is killed
with -9: the keeper (:mod:`cook.engines.process.keeper`) then ends the program's whole session, and
where the system has PDEATHSIG the program itself also dies with cook, should the keeper be gone as
well.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import fcntl
import functools
import json
import os
import re
import resource
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import IO, Self

from cook.engines.process import keeper, system
from cook.engines.process.outcome import Outcome, ProcessResult, ProcessSpec, classify
from cook.errors import Interrupted, PrerequisiteError, StepError

TAIL_BYTES = 16 << 10
_KEEPER_S = 5.0
"""The keeper has nothing left to do at the end; should it hang, cook does not."""


class Capture:
    """Writes raw bytes to ``path``, at most ``limit`` of them, and keeps the last 16 KiB.

    Beyond the limit only the end is kept: the log then says how much was left out and ends
    with the last bytes. ``error`` is set, not raised, when the log itself cannot be written.
    """

    def __init__(self, path: Path, limit: int) -> None:
        self.path = path
        self.dropped = 0
        self.error: OSError | None = None
        self._room = limit
        self._last = bytearray()
        self._file = path.open("wb", buffering=0)

    @property
    def tail(self) -> str:
        return bytes(self._last[-TAIL_BYTES:]).decode("utf-8", errors="replace")

    def write(self, chunk: bytes) -> None:
        self._last += chunk
        if len(self._last) > 4 * TAIL_BYTES:
            del self._last[:-TAIL_BYTES]
        keep = chunk[: self._room]
        self._room -= len(keep)
        self.dropped += len(chunk) - len(keep)
        self._put(keep)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.dropped:
            end = bytes(self._last[-min(TAIL_BYTES, self.dropped) :])
            self._put(f"\n[cook: {self.dropped - len(end)} bytes left out here]\n".encode() + end)
        self._file.close()

    def _put(self, data: bytes) -> None:
        try:
            while data and self.error is None:
                data = data[self._file.write(data) :]
        except OSError as error:
            self.error = error


# PDEATHSIG survives exec, so this little program becomes the engine's tool. It reports to the
# keeper before it does, so that no program runs that the keeper does not know of.
# A preexec_fn would do the same with a fork in a threaded process, which can deadlock.
_GUARD = """\
import os, sys
cook, keeper, program = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
if sys.platform == "linux":
    import ctypes
    ctypes.CDLL(None).prctl(1, 9)
if os.getppid() != cook:
    os._exit(125)
try:
    os.write(keeper, b"+%d\\n" % os.getpid())
except OSError:
    pass
os.close(keeper)
try:
    os.execv(program, sys.argv[3:])
except OSError as error:
    sys.stderr.write(f"{program}: {error.strerror}\\n")
    os._exit(126)
"""


def spawn(spec: ProcessSpec, cwd: Path) -> subprocess.Popen[bytes]:
    """Start ``spec`` in ``cwd``; PrerequisiteError, or StepError where the system has no room."""
    program = spec.argv[0]
    if not os.access(program, os.X_OK):
        raise PrerequisiteError(
            f"{program} is missing or not executable", hint="`make setup` builds the bundled tools"
        )

    def popen() -> subprocess.Popen[bytes]:
        numbers = (str(os.getpid()), str(_keeper()))
        return subprocess.Popen(
            (sys.executable, "-I", "-S", "-c", _GUARD, *numbers, *spec.argv),
            pass_fds=(_keeper(),),
            stdin=subprocess.PIPE if spec.pipes else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=cwd,
            env=dict(spec.env),
            start_new_session=True,
            bufsize=0,
        )

    def kill(spawned: Future[subprocess.Popen[bytes]]) -> None:
        if not spawned.cancelled() and spawned.exception() is None:
            keeper.end_sessions([spawned.result().pid])

    future = _spawner().submit(popen)
    try:
        return future.result()
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE):
            message = f"{spec.name}: the system would not start it: {error.strerror}"
            raise StepError(message) from None
        message = f"{spec.name}: {program} cannot be run: {error.strerror}"
        raise PrerequisiteError(message) from None
    except BaseException:
        # Ctrl-C between the request and the answer: the child must not be lost.
        future.add_done_callback(kill)
        raise


@functools.cache
def _spawner() -> ThreadPoolExecutor:
    # PDEATHSIG is sent when the *thread* that started the child ends, so that thread must
    # live as long as cook: one for all, whichever thread asks.
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="cook-spawner")


@functools.cache
def _keeper() -> int:
    """The pipe to the keeper, which is started now; it ends when the pipe does."""
    reader, writer = os.pipe()
    try:
        running = subprocess.Popen(
            [sys.executable, "-I", "-S", keeper.__file__],
            stdin=reader,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )
    finally:
        os.close(reader)

    def end() -> None:
        # Waited for: where no process adopts orphans (a container), it would stay as a zombie.
        os.close(writer)
        with contextlib.suppress(subprocess.TimeoutExpired):
            running.wait(_KEEPER_S)

    atexit.register(end)
    return writer


def release(pid: int) -> None:
    """Have the keeper forget ``pid`` and its session, before its number is given back."""
    with contextlib.suppress(OSError):
        os.write(_keeper(), b"-%d\n" % pid)


def has_exited(pid: int) -> bool:
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


TERM_S, CANCEL_TERM_S = 5.0, 1.0  # to SIGKILL; the second where cook itself is stopping
_TICK_S, _END_TICK_S = 0.25, 0.01
CATCH_UP_S = 5.0


class Running:
    """One program that runs, and the loop that watches it to its end or ours.

    ``stdin`` and ``stdout`` are the program's where its spec leaves them to the caller.
    """

    def __init__(self, supervisor: Supervisor, spec: ProcessSpec) -> None:
        if supervisor.cancelled:
            raise Interrupted(f"{spec.name}: not started, cook is stopping")
        self.spec, self.folder = spec, _new_folder(supervisor.log_dir, spec.name)
        self._supervisor = supervisor
        self._cwd = self.folder / "cwd"
        self._cwd.mkdir()
        command = json.dumps(list(spec.argv), ensure_ascii=False, indent=1)
        (self.folder / "command.json").write_text(command + "\n", encoding="utf-8")
        self._oom_kills = system.oom_kills()
        self._peak_rss_bytes = 0
        self._done: Future[ProcessResult] = Future()
        self._must_stop = threading.Event()
        self._reading = threading.Lock()
        self._started = self._last_output = time.monotonic()
        with contextlib.ExitStack() as stack:
            self._logs = {
                name: stack.enter_context(Capture(self.folder / f"{name}.log", spec.max_log_bytes))
                for name in ("stdout", "stderr")
            }
            self._popen = spawn(spec, self._cwd)
            self._closing = stack.pop_all()
        # After the fork: what it handed on is at most this.
        self._own_peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        self.pid = self._popen.pid
        self.stdin: IO[bytes] | None = self._popen.stdin
        self.stdout: IO[bytes] | None = self._popen.stdout if spec.pipes else None
        read = {"stderr": self._popen.stderr, "stdout": None if spec.pipes else self._popen.stdout}
        self._streams = {name: stream for name, stream in read.items() if stream is not None}

    @property
    def stderr_log(self) -> Path:
        return self.folder / "stderr.log"

    def poll(self) -> ProcessResult | None:
        """The result once the program has ended, on its own or otherwise."""
        return self._done.result() if self._done.done() else None

    def wait(self, timeout_s: float | None = None) -> ProcessResult:
        """Wait for the end. TimeoutError when it is still running."""
        return self._done.result(timeout_s)

    def stop(self) -> ProcessResult:
        """SIGTERM, then SIGKILL to the whole group; the result (also if it had ended before)."""
        self._must_stop.set()
        return self._done.result()

    def catch_up(self) -> None:
        """Wait until what the program has written by now is in its logs."""
        deadline = time.monotonic() + CATCH_UP_S
        while time.monotonic() < deadline and self.poll() is None:
            with self._reading:
                if not any(map(_unread, self._streams.values())):
                    return
            time.sleep(0.005)

    def watch(self) -> None:
        """:meth:`supervise` for a thread: the result, or the exception, is for those who wait."""
        try:
            self._done.set_result(self.supervise())
        except BaseException as error:
            self._done.set_exception(error)

    def supervise(self) -> ProcessResult:
        """Watch the program to its end; an exception, KeyboardInterrupt included, kills it."""
        verdict = None
        try:
            with self._closing:
                try:
                    verdict = self._watch()
                except BaseException:
                    keeper.end_sessions([self.pid])
                    raise
                finally:
                    self._reap()
        finally:
            shutil.rmtree(self._cwd, ignore_errors=True)
        returncode, out, err = self._popen.returncode, self._logs["stdout"], self._logs["stderr"]
        if verdict is None:
            near_limit = self._peak_rss_bytes > 0.8 * system.memory_limit_bytes()
            verdict = classify(
                returncode,
                err.tail + "\n" + out.tail,
                oom_killed=near_limit or system.oom_kills() > self._oom_kills,
                writes=self.spec.writes,
            )
        return ProcessResult(
            name=self.spec.name,
            argv=self.spec.argv,
            returncode=returncode,
            seconds=time.monotonic() - self._started,
            peak_rss_bytes=self._peak_rss_bytes,
            stdout=out.path,
            stderr=err.path,
            outcome=verdict,
            stdout_tail=out.tail,
            stderr_tail=err.tail,
            writes=self.spec.writes,
        )

    def _watch(self) -> Outcome | None:
        """Read output until the program has ended; why it had to, if it had."""
        work = Work(self.pid, self.spec.stall_timeout_s)
        verdict: Outcome | None = None
        kill_at: float | None = None
        with selectors.DefaultSelector() as selector:
            for name, stream in self._streams.items():
                os.set_blocking(stream.fileno(), False)
                selector.register(stream, selectors.EVENT_READ, name)
            while True:
                # Streams end with the program, unless its children hold them.
                for key, _ in selector.select(_TICK_S if selector.get_map() else _END_TICK_S):
                    if not self._read(key.data, key.fd):
                        selector.unregister(key.fileobj)
                if has_exited(self.pid):
                    break
                peak = system.peak_rss_bytes(self.pid)
                self._peak_rss_bytes = max(self._peak_rss_bytes, peak)
                now = time.monotonic()
                if kill_at is None:
                    verdict = self._must_end(now, work)
                    if verdict is not None:
                        with contextlib.suppress(ProcessLookupError, PermissionError):
                            os.killpg(self.pid, signal.SIGTERM)
                        kill_at = now + (CANCEL_TERM_S if self._supervisor.cancelled else TERM_S)
                elif now > kill_at or self._supervisor.cancelled_now:
                    keeper.end_sessions([self.pid])
                    kill_at = now + TERM_S
            # The leader is a zombie, so its group number is still ours: end what it left.
            keeper.end_sessions([self.pid])
            for name, stream in self._streams.items():
                while self._read(name, stream.fileno()):
                    pass
        return verdict

    def _must_end(self, now: float, work: Work) -> Outcome | None:
        if self._supervisor.cancelled:
            return Outcome.INTERRUPTED
        if self._must_stop.is_set():
            return Outcome.OK
        if any(log.error for log in self._logs.values()):
            return Outcome.DISK_FULL
        timeout = self.spec.timeout_s
        if timeout is not None and now - self._started > timeout:
            return Outcome.TIMED_OUT
        return Outcome.STALLED if work.has_stalled(self._last_output) else None

    def _read(self, name: str, fd: int) -> bool:
        """Take one chunk; False at the end of the stream or when nothing is there now."""
        with self._reading:
            try:
                chunk = os.read(fd, 1 << 16)
            except BlockingIOError:
                return not has_exited(self.pid)
            except OSError:
                return False
            if not chunk:
                return False
            self._last_output = time.monotonic()
            self._logs[name].write(chunk)
        if self.spec.on_output is not None:
            self.spec.on_output(name, chunk)
        return True

    def _reap(self) -> None:
        release(self.pid)
        try:
            _, status, usage = os.wait4(self.pid, 0)
        except ChildProcessError:
            self._popen.returncode = -signal.SIGKILL
        else:
            self._popen.returncode = os.waitstatus_to_exitcode(status)
            # The kernel counts what the child had before its exec, that is cook's own
            # memory, as the child's: below that the sampled high-water mark is better.
            if usage.ru_maxrss * 1024 > self._own_peak_bytes:
                self._peak_rss_bytes = max(self._peak_rss_bytes, usage.ru_maxrss * 1024)
        for stream in self._streams.values():
            stream.close()


def _unread(stream: IO[bytes]) -> bool:
    """Whether the pipe holds bytes; not once it is closed."""
    with contextlib.suppress(ValueError, OSError):
        return any(fcntl.ioctl(stream, termios.FIONREAD, bytes(4)))
    return False


class Work:
    """Distinguishes a program that works in silence from one that hangs."""

    def __init__(self, pgid: int, stall_timeout_s: float | None) -> None:
        self._pgid, self._limit_s = pgid, stall_timeout_s
        self._since = self._looked = time.monotonic()
        self._activity = system.Activity(0.0, 0)

    def has_stalled(self, last_output: float) -> bool:
        """Whether it has not worked for as long as the limit, nor printed anything: ``last_output``
        is when it did, by the monotonic clock."""
        now = time.monotonic()
        if self._limit_s is None or now - self._looked < min(5.0, self._limit_s / 4):
            return False
        self._looked = now
        activity, before = system.group_activity(self._pgid), self._activity
        if activity is not None:
            # A hung program still wakes up now and then: that little is not work.
            worked = activity.cpu_s - before.cpu_s >= min(0.5, self._limit_s / 20)
            if worked or activity.major_faults - before.major_faults >= 50:
                self._activity, self._since = activity, now
        return now - max(self._since, last_output) > self._limit_s


class Supervisor:
    """Runs programs, each with its log folder under ``log_dir``. Safe to use from threads.

    ``on_progress(done, total)`` gets how far a tool is, in its own units (tensors, chunks).
    """

    def __init__(
        self, log_dir: Path, on_progress: Callable[[int, int | None], None] | None = None
    ) -> None:
        self.log_dir = log_dir.absolute()
        self.on_progress = on_progress
        self.cancelled = self.cancelled_now = False

    def cancel(self, *, now: bool = False) -> None:
        """End every program that runs and refuse new ones (for a signal handler or a pool).

        Each has its time to end, unless it must be ``now``.
        """
        self.cancelled_now |= now
        self.cancelled = True

    def run(self, spec: ProcessSpec) -> ProcessResult:
        """Run ``spec`` to its end; does not raise for its failure (see ProcessResult.check).

        An exception in the caller's thread, KeyboardInterrupt included, kills the group first.
        """
        return Running(self, spec).supervise()

    def start(self, spec: ProcessSpec) -> Running:
        """Start ``spec`` in the background (a server, a worker); the caller must stop it."""
        running = Running(self, spec)
        threading.Thread(target=running.watch, name=f"watch-{spec.name}", daemon=True).start()
        return running


def ask(*argv: str, env: Mapping[str, str] | None = None, timeout_s: float = 60.0) -> ProcessResult:
    """Run a program for a short answer, in cook's own environment unless another is given.

    The whole answer is in the tails; the logs are gone. PrerequisiteError when it is no program.
    """
    with tempfile.TemporaryDirectory(prefix="cook-ask-") as logs:
        given = dict(os.environ) if env is None else env
        spec = ProcessSpec(argv, Path(argv[0]).name, given, timeout_s=timeout_s)
        result = Supervisor(Path(logs)).run(spec)
        out, err = (path.read_text("utf-8", "replace") for path in (result.stdout, result.stderr))
        return replace(result, stdout_tail=out, stderr_tail=err)


def _new_folder(log_dir: Path, name: str) -> Path:
    """A fresh log folder ``<name>``, ``<name>-2``, ... (two cooks may share ``log_dir``)."""
    stem = re.sub(r"[^\w.+-]+", "-", name).strip("-.")[:80] or "step"
    log_dir.mkdir(parents=True, exist_ok=True)
    for number in range(1, 100_000):
        folder = log_dir / (stem if number == 1 else f"{stem}-{number}")
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
            return folder
    raise StepError(f"{log_dir} holds too many logs of {stem}", hint="remove old logs")
