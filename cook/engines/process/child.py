"""One running program and the loop that watches it, to its end or ours.

No program outlives cook, and two things see to it. The keeper
(:mod:`cook.engines.process.keeper`) ends the program's whole session when cook is gone. Where the
system has PDEATHSIG, the program itself also dies with cook, should the keeper be gone as well.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import functools
import json
import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from cook.engines.process import keeper, system
from cook.engines.process.keeper import end_sessions
from cook.engines.process.outcome import Outcome, ProcessResult, ProcessSpec, classify
from cook.errors import InternalError, Interrupted, PrerequisiteError, StepError

TERM_GRACE_S = 5.0
_TICK_S = 0.25


@dataclass
class Cancelling:
    """Whether what runs is to end, and ``at_once``, without its time to end by itself."""

    at_once: bool = False
    _asked: threading.Event = field(default_factory=threading.Event)

    def set(self, *, now: bool = False) -> None:
        self.at_once |= now
        self._asked.set()

    def is_set(self) -> bool:
        return self._asked.is_set()


class Child:
    """One running program and the loop that watches it."""

    def __init__(self, log_dir: Path, cancelled: Cancelling, spec: ProcessSpec) -> None:
        if cancelled.is_set():
            raise Interrupted(f"{spec.name}: not started, cook is stopping")
        self.cancelled, self.spec = cancelled, spec
        self.stop: threading.Event | None = None
        self.folder = _new_folder(log_dir, spec.name)
        self.cwd = self.folder / "cwd"
        self.cwd.mkdir()
        command = json.dumps(list(spec.argv), ensure_ascii=False, indent=1)
        (self.folder / "command.json").write_text(command + "\n", encoding="utf-8")
        self.oom_kills = system.oom_kills()
        self.captures = {
            name: Capture(self.folder / f"{name}.log", spec.max_log_bytes)
            for name in ("stdout", "stderr")
        }
        self.peak_rss_bytes = 0
        self.verdict: Outcome | None = None
        self.started = time.monotonic()
        try:
            self.popen = spawn(spec, self.cwd)
        except BaseException:
            for capture in self.captures.values():
                capture.close()
            raise
        # After the fork: what it handed on is at most this.
        self.own_peak_bytes = system.own_peak_rss_bytes()

    def supervise(self) -> ProcessResult:
        try:
            self._watch()
        except BaseException:
            self._kill_group(signal.SIGKILL)
            self._reap()
            raise
        finally:
            for capture in self.captures.values():
                capture.close()
            shutil.rmtree(self.cwd, ignore_errors=True)
        return self._result()

    def _watch(self) -> None:
        spec, popen = self.spec, self.popen
        progress = _Progress(popen.pid, spec.stall_timeout_s)
        streams = {"stderr": popen.stderr} | ({} if spec.pipes else {"stdout": popen.stdout})
        with selectors.DefaultSelector() as selector, exit_fd(popen.pid) as ended:
            if ended is not None:
                selector.register(ended, selectors.EVENT_READ, "exit")
            for name, stream in streams.items():
                if stream is None:
                    raise InternalError(f"no pipe for {name}")
                os.set_blocking(stream.fileno(), False)
                selector.register(stream, selectors.EVENT_READ, name)
            kill_at: float | None = None
            while True:
                timeout = _TICK_S if ended is not None else 0.02
                for key, _ in selector.select(timeout):
                    if key.data != "exit" and not self._read(key.data, key.fd, progress):
                        selector.unregister(key.fileobj)
                if has_exited(popen.pid):
                    break
                self.peak_rss_bytes = max(self.peak_rss_bytes, system.peak_rss_bytes(popen.pid))
                now = time.monotonic()
                if kill_at is None:
                    self.verdict = self._must_end(now, progress)
                    if self.verdict is not None:
                        self._kill_group(signal.SIGTERM)
                        kill_at = now + TERM_GRACE_S
                elif now > kill_at or self.cancelled.at_once:
                    self._kill_group(signal.SIGKILL)
                    kill_at = now + TERM_GRACE_S
            # The leader is a zombie, so its group number is still ours: end what it left.
            self._kill_group(signal.SIGKILL)
            for name, stream in streams.items():
                while stream is not None and self._read(name, stream.fileno(), progress):
                    pass
        self._reap()

    def _must_end(self, now: float, progress: _Progress) -> Outcome | None:
        if self.cancelled.is_set():
            return Outcome.INTERRUPTED
        if self.stop is not None and self.stop.is_set():
            return Outcome.OK
        if any(capture.error for capture in self.captures.values()):
            return Outcome.DISK_FULL
        timeout = self.spec.timeout_s
        if timeout is not None and now - self.started > timeout:
            return Outcome.TIMED_OUT
        return Outcome.STALLED if progress.stalled(now) else None

    def _read(self, name: str, fd: int, progress: _Progress) -> bool:
        """Take one chunk; False at the end of the stream or when nothing is there now."""
        try:
            chunk = os.read(fd, 1 << 16)
        except BlockingIOError:
            return not has_exited(self.popen.pid)
        except OSError:
            return False
        if not chunk:
            return False
        progress.output()
        self.captures[name].write(chunk)
        if self.spec.on_output is not None:
            self.spec.on_output(name, chunk)
        return True

    def _kill_group(self, number: signal.Signals) -> None:
        if self.popen.returncode is not None:
            return
        if number == signal.SIGKILL:
            end_sessions([self.popen.pid])
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.popen.pid, number)

    def _reap(self) -> None:
        popen = self.popen
        if popen.returncode is None:
            let_go(popen.pid)
            try:
                _, status, usage = os.wait4(popen.pid, 0)
            except ChildProcessError:
                popen.returncode = -signal.SIGKILL
            else:
                popen.returncode = os.waitstatus_to_exitcode(status)
                # The kernel counts what the child had before its exec, that is cook's own
                # memory, as the child's: below that the sampled high-water mark is better.
                if usage.ru_maxrss * 1024 > self.own_peak_bytes:
                    self.peak_rss_bytes = max(self.peak_rss_bytes, usage.ru_maxrss * 1024)
        closing = (popen.stderr,) if self.spec.pipes else (popen.stdout, popen.stderr)
        for stream in closing:
            if stream is not None:
                stream.close()

    def _result(self) -> ProcessResult:
        seconds = time.monotonic() - self.started
        returncode = self.popen.returncode
        if returncode is None:
            raise InternalError("a process was not waited for")
        out, err = self.captures["stdout"], self.captures["stderr"]
        near_limit = self.peak_rss_bytes > 0.8 * system.memory_limit_bytes()
        oom_killed = near_limit or system.oom_kills() > self.oom_kills
        outcome = self.verdict
        if outcome is None:
            text = err.tail + "\n" + out.tail
            writes = self.spec.writes
            outcome = classify(returncode, text, oom_killed=oom_killed, writes=writes)
        return ProcessResult(
            name=self.spec.name,
            argv=self.spec.argv,
            returncode=returncode,
            seconds=seconds,
            peak_rss_bytes=self.peak_rss_bytes,
            stdout=out.path,
            stderr=err.path,
            outcome=outcome,
            stdout_tail=out.tail,
            stderr_tail=err.tail,
            truncated=out.truncated or err.truncated,
            writes=self.spec.writes,
        )


class _Progress:
    """Tells a program that works in silence from one that hangs."""

    def __init__(self, pgid: int, stall_timeout_s: float | None) -> None:
        self.pgid, self.limit_s = pgid, stall_timeout_s
        self.since = self.looked = time.monotonic()
        self.activity = system.Activity(0.0, 0)

    def output(self) -> None:
        self.since = time.monotonic()

    def stalled(self, now: float) -> bool:
        if self.limit_s is None or now - self.looked < min(5.0, self.limit_s / 4):
            return False
        self.looked = now
        activity = system.group_activity(self.pgid)
        if activity is not None:
            # A hung program still wakes up now and then: that little is not work.
            worked = activity.cpu_s - self.activity.cpu_s >= min(0.5, self.limit_s / 20)
            if worked or activity.major_faults - self.activity.major_faults >= 50:
                self.activity, self.since = activity, now
        return now - self.since > self.limit_s


TAIL_BYTES = 16 << 10


class Capture:
    """Writes raw bytes to ``path``, at most ``limit`` of them, and keeps the last 16 KiB.

    Beyond the limit only the end is kept: the log then says how much was left out and ends
    with the last bytes. ``error`` is set, not raised, when the log itself cannot be written.
    """

    def __init__(self, path: Path, limit: int) -> None:
        self.path, self.limit = path, limit
        self.written = self.dropped = 0
        self.error: OSError | None = None
        self._last = bytearray()
        self._file = path.open("wb", buffering=0)

    @property
    def truncated(self) -> bool:
        return self.dropped > 0

    @property
    def tail(self) -> str:
        return bytes(self._last[-TAIL_BYTES:]).decode("utf-8", errors="replace")

    def write(self, chunk: bytes) -> None:
        self._last += chunk
        if len(self._last) > 4 * TAIL_BYTES:
            del self._last[:-TAIL_BYTES]
        keep = chunk[: max(0, self.limit - self.written)]
        self.dropped += len(chunk) - len(keep)
        self._put(keep)
        self.written += len(keep)

    def close(self) -> None:
        if self._file.closed:
            return
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


def _new_folder(log_dir: Path, name: str) -> Path:
    """A fresh log folder ``<name>``, ``<name>-2``, ... (two cooks may share ``log_dir``)."""
    stem = re.sub(r"[^\w.+-]+", "-", name).strip("-.")[:80] or "step"
    log_dir.mkdir(parents=True, exist_ok=True)
    for number in range(1, 100_000):
        folder = log_dir / (stem if number == 1 else f"{stem}-{number}")
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        return folder
    raise StepError(f"{log_dir} holds too many logs of {stem}", hint="remove old logs")


# PDEATHSIG survives exec, so this little program becomes the engine's tool. It tells the keeper
# before it does, so that no program runs that the keeper does not know of.
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
    argv: tuple[str, ...] = spec.argv
    if not os.access(argv[0], os.X_OK):
        raise PrerequisiteError(
            f"{argv[0]} is missing or not executable", hint="`make setup` builds the bundled tools"
        )

    def popen() -> subprocess.Popen[bytes]:
        guard: tuple[str, ...] = ()
        if spec.guard:
            told = (str(os.getpid()), str(_keeper()))
            guard = (sys.executable, "-I", "-S", "-c", _GUARD, *told)
        return subprocess.Popen(
            (*guard, *argv),
            pass_fds=(_keeper(),) if spec.guard else (),
            stdin=subprocess.PIPE if spec.pipes else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=cwd,
            env=dict(spec.env),
            start_new_session=True,
            bufsize=0,
        )

    future = _spawner().submit(popen)
    try:
        return future.result()
    except OSError as error:
        raise _unspawnable(spec, error) from None
    except BaseException:
        # Ctrl-C between the request and the answer: the child must not be lost.
        future.add_done_callback(_kill_spawned)
        raise


def _kill_spawned(future: Future[subprocess.Popen[bytes]]) -> None:
    if not future.cancelled() and future.exception() is None:
        keeper.end_sessions([future.result().pid])


def _unspawnable(spec: ProcessSpec, error: OSError) -> PrerequisiteError | StepError:
    if error.errno in (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE):
        return StepError(f"{spec.name}: the system would not start it: {error.strerror}")
    return PrerequisiteError(f"{spec.name}: {spec.argv[0]} cannot be run: {error.strerror}")


@functools.cache
def _spawner() -> ThreadPoolExecutor:
    # PDEATHSIG is sent when the *thread* that started the child ends, so that thread must
    # live as long as cook: one for all, whichever thread asks.
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="cook-spawner")


_KEEPER_S = 5.0
"""The keeper has nothing left to do at the end; should it hang, cook does not."""


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
        # Waited for: where nobody adopts orphans (a container), it would stay as a zombie.
        os.close(writer)
        with contextlib.suppress(subprocess.TimeoutExpired):
            running.wait(_KEEPER_S)

    atexit.register(end)
    return writer


def let_go(pid: int) -> None:
    """Tell the keeper that ``pid`` and its session are ended; before its number is given back."""
    with contextlib.suppress(OSError):
        os.write(_keeper(), b"-%d\n" % pid)


@contextlib.contextmanager
def exit_fd(pid: int) -> Iterator[int | None]:
    """A descriptor that becomes readable when ``pid`` ends, where the system has such."""
    try:
        fd = os.pidfd_open(pid) if sys.platform == "linux" else None
    except OSError:
        fd = None
    try:
        yield fd
    finally:
        if fd is not None:
            os.close(fd)


def has_exited(pid: int) -> bool:
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True
