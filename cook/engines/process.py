"""The only place that starts programs.

A :class:`Supervisor` runs argv lists (never a shell) in a session and process group of their
own, stdin closed, in a working directory of their own (ik_llama.cpp writes ``llama.log`` where
it stands), with exactly the environment it is given. Both output streams go raw to separate
files of the step, in bounded memory and up to a bounded size. A run ends by itself, by its
wall or stall time-out, or with cook: on an exception, on :meth:`Supervisor.cancel`, and by
``PDEATHSIG`` even when cook is killed with -9. The whole group ends with it.
"""

from __future__ import annotations

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
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from cook.engines import proc
from cook.engines.capture import Capture
from cook.engines.outcome import Outcome, classify, failure
from cook.errors import InternalError, Interrupted, PrerequisiteError, StepError

TERM_GRACE_S = 5.0
_TICK_S = 0.25
# Dies with cook: PDEATHSIG survives exec, so this little program becomes the engine's tool.
# A preexec_fn would do the same with a fork in a threaded process, which can deadlock.
_GUARD = """\
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)
if os.getppid() != int(sys.argv[1]):
    os._exit(125)
try:
    os.execv(sys.argv[2], sys.argv[2:])
except OSError as error:
    sys.stderr.write(f"{sys.argv[2]}: {error.strerror}\\n")
    os._exit(126)
"""

OnOutput = Callable[[str, bytes], None]


@dataclass(frozen=True)
class ProcessSpec:
    """One program to run.

    ``argv[0]`` is an absolute path; ``name`` names the step's log folder and its messages;
    ``env`` is the whole environment. ``stall_timeout_s``: no output *and* hardly any processor
    time for so long (quantize says nothing within a tensor). ``writes``: directories checked
    for a full disk when the run fails. ``on_output(stream, chunk)`` sees raw chunks as they
    come. ``pipes`` leaves stdin and stdout to the caller (:meth:`Supervisor.start` only).
    """

    argv: tuple[str, ...]
    name: str
    env: Mapping[str, str]
    timeout_s: float | None = None
    stall_timeout_s: float | None = 900.0
    writes: tuple[Path, ...] = ()
    on_output: OnOutput | None = None
    max_log_bytes: int = 64 << 20
    pipes: bool = False
    guard: bool = True


@dataclass(frozen=True)
class ProcessResult:
    """How a run went. ``returncode`` as subprocess gives it; ``stdout``/``stderr`` are the logs.

    ``peak_rss_bytes`` is the program's own (mapped weights included), 0 where unknown. The
    tails are the last 16 KiB of each stream. ``truncated``: a log reached its size limit.
    """

    name: str
    argv: tuple[str, ...]
    returncode: int
    seconds: float
    peak_rss_bytes: int
    stdout: Path
    stderr: Path
    outcome: Outcome
    stdout_tail: str = ""
    stderr_tail: str = ""
    truncated: bool = False
    writes: tuple[Path, ...] = ()

    def check(self) -> ProcessResult:
        """Itself if the outcome is OK.

        Raises StepError, PrerequisiteError (cannot start) or Interrupted otherwise.
        """
        if self.outcome is not Outcome.OK:
            raise failure(self)
        return self


@dataclass
class Running:
    """A program started with :meth:`Supervisor.start`; ends with :meth:`stop`."""

    spec: ProcessSpec
    pid: int
    folder: Path
    stdin: IO[bytes] | None
    stdout: IO[bytes] | None
    _done: Future[ProcessResult] = field(default_factory=Future)
    _stop: threading.Event = field(default_factory=threading.Event)

    @property
    def stderr_log(self) -> Path:
        return self.folder / "stderr.log"

    def poll(self) -> ProcessResult | None:
        """The result once the program has ended, by itself or otherwise."""
        return self._done.result() if self._done.done() else None

    def wait(self, timeout_s: float | None = None) -> ProcessResult:
        """Wait for the end. TimeoutError when it is still running."""
        return self._done.result(timeout_s)

    def stop(self) -> ProcessResult:
        """SIGTERM, then SIGKILL to the whole group; the result (also if it had ended before)."""
        self._stop.set()
        return self._done.result()


class Supervisor:
    """Runs programs, each with its log folder under ``log_dir``. Safe to use from threads.

    ``on_progress(done, total)`` is told how far a tool is, in its own units (tensors, chunks).
    """

    def __init__(
        self, log_dir: Path, on_progress: Callable[[int, int | None], None] | None = None
    ) -> None:
        self.log_dir = log_dir.absolute()
        self.on_progress = on_progress
        self._cancelled = threading.Event()

    def cancel(self) -> None:
        """End every program that runs and refuse new ones (for a signal handler or a pool)."""
        self._cancelled.set()

    def run(self, spec: ProcessSpec) -> ProcessResult:
        """Run ``spec`` to its end; does not raise for its failure (see ProcessResult.check).

        An exception in the caller's thread, KeyboardInterrupt included, kills the group first.
        """
        if spec.pipes:
            raise InternalError("a program with pipes needs Supervisor.start")
        return _Child(self, spec).supervise()

    def start(self, spec: ProcessSpec) -> Running:
        """Start ``spec`` in the background (a server, a worker); the caller must stop it."""
        child = _Child(self, spec)
        popen = child.popen
        running = Running(
            spec,
            popen.pid,
            child.folder,
            popen.stdin if spec.pipes else None,
            popen.stdout if spec.pipes else None,
        )
        child.stop = running._stop

        def watch() -> None:
            try:
                running._done.set_result(child.supervise())
            except BaseException as error:
                running._done.set_exception(error)

        threading.Thread(target=watch, name=f"watch-{spec.name}", daemon=True).start()
        return running

    @property
    def cancelled(self) -> bool:
        return self._cancelled.is_set()


class _Child:
    """One running program and the loop that watches it."""

    def __init__(self, supervisor: Supervisor, spec: ProcessSpec) -> None:
        if supervisor.cancelled:
            raise Interrupted(f"{spec.name}: not started, cook is stopping")
        self.supervisor, self.spec = supervisor, spec
        self.stop: threading.Event | None = None
        self.folder = _new_folder(supervisor.log_dir, spec.name)
        self.cwd = self.folder / "cwd"
        self.cwd.mkdir()
        command = json.dumps(list(spec.argv), ensure_ascii=False, indent=1)
        (self.folder / "command.json").write_text(command + "\n", encoding="utf-8")
        self.oom_kills = proc.oom_kills()
        self.captures = {
            name: Capture(self.folder / f"{name}.log", spec.max_log_bytes)
            for name in ("stdout", "stderr")
        }
        self.peak_rss_bytes = 0
        self.verdict: Outcome | None = None
        self.own_peak_bytes = proc.own_peak_rss_bytes()
        self.started = time.monotonic()
        try:
            self.popen = _spawn(spec, self.cwd)
        except BaseException:
            for capture in self.captures.values():
                capture.close()
            raise

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
        with selectors.DefaultSelector() as selector, _exit_fd(popen.pid) as exit_fd:
            if exit_fd is not None:
                selector.register(exit_fd, selectors.EVENT_READ, "exit")
            for name, stream in streams.items():
                if stream is None:
                    raise InternalError(f"no pipe for {name}")
                os.set_blocking(stream.fileno(), False)
                selector.register(stream, selectors.EVENT_READ, name)
            kill_at: float | None = None
            while True:
                timeout = _TICK_S if exit_fd is not None else 0.02
                for key, _ in selector.select(timeout):
                    if key.data != "exit" and not self._read(key.data, key.fd, progress):
                        selector.unregister(key.fileobj)
                if _has_exited(popen.pid):
                    break
                self.peak_rss_bytes = max(self.peak_rss_bytes, proc.peak_rss_bytes(popen.pid))
                now = time.monotonic()
                if kill_at is None:
                    self.verdict = self._must_end(now, progress)
                    if self.verdict is not None:
                        self._kill_group(signal.SIGTERM)
                        kill_at = now + TERM_GRACE_S
                elif now > kill_at:
                    self._kill_group(signal.SIGKILL)
                    kill_at = now + TERM_GRACE_S
            # The leader is a zombie, so its group number is still ours: end what it left.
            self._kill_group(signal.SIGKILL)
            for name, stream in streams.items():
                while stream is not None and self._read(name, stream.fileno(), progress):
                    pass
        self._reap()

    def _must_end(self, now: float, progress: _Progress) -> Outcome | None:
        if self.supervisor.cancelled:
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
            return not _has_exited(self.popen.pid)
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
        if self.popen.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.popen.pid, number)

    def _reap(self) -> None:
        popen = self.popen
        if popen.returncode is None:
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
        near_limit = self.peak_rss_bytes > 0.8 * proc.memory_limit_bytes()
        oom_killed = near_limit or proc.oom_kills() > self.oom_kills
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
        self.activity = proc.Activity(0.0, 0)

    def output(self) -> None:
        self.since = time.monotonic()

    def stalled(self, now: float) -> bool:
        if self.limit_s is None or now - self.looked < min(5.0, self.limit_s / 4):
            return False
        self.looked = now
        activity = proc.group_activity(self.pgid)
        if activity is not None:
            # A hung program still wakes up now and then: that little is not work.
            worked = activity.cpu_s - self.activity.cpu_s >= min(0.5, self.limit_s / 20)
            if worked or activity.major_faults - self.activity.major_faults >= 50:
                self.activity, self.since = activity, now
        return now - self.since > self.limit_s


@functools.cache
def _spawner() -> ThreadPoolExecutor:
    # PDEATHSIG is sent when the *thread* that started the child ends, so that thread must
    # live as long as cook: one for all, whichever thread asks.
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="cook-spawner")


def _spawn(spec: ProcessSpec, cwd: Path) -> subprocess.Popen[bytes]:
    argv: tuple[str, ...] = spec.argv
    if not os.access(argv[0], os.X_OK):
        raise PrerequisiteError(
            f"{argv[0]} is missing or not executable", hint="`make setup` builds the bundled tools"
        )
    if spec.guard and sys.platform == "linux":
        argv = (sys.executable, "-I", "-S", "-c", _GUARD, str(os.getpid()), *argv)

    def popen() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            argv,
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
        with contextlib.suppress(ProcessLookupError):
            os.killpg(future.result().pid, signal.SIGKILL)


def _unspawnable(spec: ProcessSpec, error: OSError) -> PrerequisiteError | StepError:
    if error.errno in (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE):
        return StepError(f"{spec.name}: the system would not start it: {error.strerror}")
    return PrerequisiteError(f"{spec.name}: {spec.argv[0]} cannot be run: {error.strerror}")


@contextlib.contextmanager
def _exit_fd(pid: int) -> Iterator[int | None]:
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


def _has_exited(pid: int) -> bool:
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


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
