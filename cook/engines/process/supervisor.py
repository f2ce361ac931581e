"""The only place that starts programs.

A :class:`Supervisor` runs argv lists (never a shell) in a session and process group of their
own, stdin closed, in a working directory of their own (ik_llama.cpp writes ``llama.log`` where
it stands), with exactly the environment it is given. Both output streams go raw to separate
files of the step, in bounded memory and up to a bounded size. A run ends on its own, by its
wall or stall time-out, or with cook: on an exception, on :meth:`Supervisor.cancel`, and, by
:mod:`cook.engines.process.keeper`, even when cook is killed with -9. Its whole session ends with
it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import selectors
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import IO

from cook.engines.process import child, system
from cook.engines.process.keeper import end_sessions
from cook.engines.process.outcome import Outcome, ProcessResult, ProcessSpec, classify
from cook.errors import Interrupted, StepError

TERM_GRACE_S = 5.0
_TICK_S, _END_TICK_S = 0.25, 0.01


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
        self._started = self._last_output = time.monotonic()
        with contextlib.ExitStack() as stack:
            self._logs = {
                name: stack.enter_context(
                    child.Capture(self.folder / f"{name}.log", spec.max_log_bytes)
                )
                for name in ("stdout", "stderr")
            }
            self._popen = child.spawn(spec, self._cwd)
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
                    end_sessions([self.pid])
                    raise
                finally:
                    self._reap()
        finally:
            shutil.rmtree(self._cwd, ignore_errors=True)
        return self._result(verdict)

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
                if child.has_exited(self.pid):
                    break
                peak = system.peak_rss_bytes(self.pid)
                self._peak_rss_bytes = max(self._peak_rss_bytes, peak)
                now = time.monotonic()
                if kill_at is None:
                    verdict = self._must_end(now, work)
                    if verdict is not None:
                        with contextlib.suppress(ProcessLookupError, PermissionError):
                            os.killpg(self.pid, signal.SIGTERM)
                        kill_at = now + TERM_GRACE_S
                elif now > kill_at or self._supervisor.cancelled_now:
                    end_sessions([self.pid])
                    kill_at = now + TERM_GRACE_S
            # The leader is a zombie, so its group number is still ours: end what it left.
            end_sessions([self.pid])
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
        try:
            chunk = os.read(fd, 1 << 16)
        except BlockingIOError:
            return not child.has_exited(self.pid)
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
        child.release(self.pid)
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

    def _result(self, verdict: Outcome | None) -> ProcessResult:
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
