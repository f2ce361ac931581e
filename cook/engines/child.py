"""One running program and the loop that watches it, to its end or ours."""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import shutil
import signal
import threading
import time
from pathlib import Path

from cook.engines import proc
from cook.engines.capture import Capture
from cook.engines.outcome import Outcome, classify
from cook.engines.spawn import exit_fd, has_exited, spawn
from cook.engines.spec import ProcessResult, ProcessSpec
from cook.errors import InternalError, Interrupted, StepError

TERM_GRACE_S = 5.0
_TICK_S = 0.25


class Child:
    """One running program and the loop that watches it."""

    def __init__(self, log_dir: Path, cancelled: threading.Event, spec: ProcessSpec) -> None:
        if cancelled.is_set():
            raise Interrupted(f"{spec.name}: not started, cook is stopping")
        self.cancelled, self.spec = cancelled, spec
        self.stop: threading.Event | None = None
        self.folder = _new_folder(log_dir, spec.name)
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
            self.popen = spawn(spec, self.cwd)
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
