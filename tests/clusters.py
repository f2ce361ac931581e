"""A real dask cluster on loopback: a scheduler and workers, each a process of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent
START_S = 60.0


@dataclass
class Processes:
    """``folder`` is for logs and scratch; every worker is under a nanny, which starts it again."""

    folder: Path
    home: Path
    address: str = ""
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, name: str, *argv: str, home: Path | None = None) -> Path:
        """A program of dask's; its log."""
        log = self.folder / f"{name}-{len(self.running)}.log"
        environment = {
            **os.environ,
            "COOK_HOME": str(home or self.home),
            "PYTHONPATH": str(ROOT),
            "TMPDIR": str(self.folder),
        }
        with log.open("wb") as stream:
            started = subprocess.Popen(
                [sys.executable, "-m", "distributed.cli.dask_" + name, *argv],
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                env=environment,
                start_new_session=True,
            )
        self.running.append(started)
        return log

    def scheduler(self) -> None:
        log = self.start("scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard")
        self.address = said(log, r"Scheduler at:\s+(tcp://127\.0\.0\.1:\d+)")

    def worker(self, resources: str = "", *, home: Path | None = None) -> subprocess.Popen[bytes]:
        """One more worker of one thread; its nanny."""
        given = ("--resources", resources) if resources else ()
        scratch = str(self.folder / "scratch")
        options = ("--nthreads", "1", "--no-dashboard", "--local-directory", scratch)
        log = self.start("worker", self.address, *options, *given, home=home)
        said(log, r"(Starting established connection)")
        return self.running[-1]

    def stop(self, process: subprocess.Popen[bytes]) -> None:
        self.running.remove(process)
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def close(self) -> None:
        while self.running:
            self.stop(self.running[-1])


@contextmanager
def cluster(folder: Path, home: Path, workers: int = 2) -> Iterator[Processes]:
    processes = Processes(folder, home)
    try:
        processes.scheduler()
        for _ in range(workers):
            processes.worker()
        yield processes
    finally:
        processes.close()


def said(log: Path, pattern: str) -> str:
    """What ``pattern`` finds in a log, once it is there."""
    deadline = time.monotonic() + START_S
    while True:
        found = re.search(pattern, log.read_text(errors="replace"))
        if found:
            return found[1]
        assert time.monotonic() < deadline, log.read_text(errors="replace")[-3000:]
        time.sleep(0.1)


def children(pid: int) -> list[int]:
    """Living processes that ``pid`` has started."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, parent, *_ = path.read_bytes().rpartition(b")")[2].split()
            if int(parent) == pid and state != b"Z":
                found.append(int(path.parent.name))
    return found


def worker_pids(processes: Processes) -> list[int]:
    """The workers themselves, which their nannies start again."""
    found = [child for process in processes.running[1:] for child in children(process.pid)]
    return [pid for pid in found if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
