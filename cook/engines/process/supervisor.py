"""The only place that starts programs.

A :class:`Supervisor` runs argv lists (never a shell) in a session and process group of their
own, stdin closed, in a working directory of their own (ik_llama.cpp writes ``llama.log`` where
it stands), with exactly the environment it is given. Both output streams go raw to separate
files of the step, in bounded memory and up to a bounded size. A run ends by itself, by its
wall or stall time-out, or with cook: on an exception, on :meth:`Supervisor.cancel`, and, by
:mod:`cook.engines.process.keeper`, even when cook is killed with -9. Its whole session ends with
it.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from cook.engines.process.child import Cancelling, Child
from cook.engines.process.outcome import OnOutput, ProcessResult, ProcessSpec
from cook.errors import InternalError

__all__ = ["OnOutput", "ProcessResult", "ProcessSpec", "Running", "Supervisor", "ask"]


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
        self._cancelled = Cancelling()

    def cancel(self, *, now: bool = False) -> None:
        """End every program that runs and refuse new ones (for a signal handler or a pool).

        Each has its time to end by itself, unless it must be ``now``.
        """
        self._cancelled.set(now=now)

    def run(self, spec: ProcessSpec) -> ProcessResult:
        """Run ``spec`` to its end; does not raise for its failure (see ProcessResult.check).

        An exception in the caller's thread, KeyboardInterrupt included, kills the group first.
        """
        if spec.pipes:
            raise InternalError("a program with pipes needs Supervisor.start")
        return Child(self.log_dir, self._cancelled, spec).supervise()

    def start(self, spec: ProcessSpec) -> Running:
        """Start ``spec`` in the background (a server, a worker); the caller must stop it."""
        child = Child(self.log_dir, self._cancelled, spec)
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


def ask(*argv: str, env: Mapping[str, str] | None = None, timeout_s: float = 60.0) -> ProcessResult:
    """Run a program for a short answer, in cook's own environment unless another is given.

    The answer is in the tails; the logs are gone. PrerequisiteError when it is no program.
    """
    with tempfile.TemporaryDirectory(prefix="cook-ask-") as logs:
        given = dict(os.environ) if env is None else env
        spec = ProcessSpec(argv, Path(argv[0]).name, given, timeout_s=timeout_s)
        return Supervisor(Path(logs)).run(spec)
