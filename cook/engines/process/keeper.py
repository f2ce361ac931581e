"""The keeper: a second program that ends what cook leaves running when it is killed.

Every program that cook starts leads a session of its own. It reports this to the keeper through a
pipe whose only lasting writer is cook; when cook is gone, by whatever end, the pipe ends, and the
keeper kills every session still held: the program, what it started, and what that put into process
groups of its own, as compilers' drivers and ninja do. ``PDEATHSIG`` alone would kill the first of
them and leave the rest.

Run as a script by :mod:`cook.engines.process.supervisor`, isolated; so it imports the standard
library only.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

_ROUNDS = 100
"""A program that forks while it is being killed is caught in a later round."""


def end_sessions(leaders: Collection[int]) -> None:
    """SIGKILL to every process of the sessions that ``leaders`` lead (by process id)."""
    for leader in leaders:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, signal.SIGKILL)
    for _ in range(_ROUNDS):
        members = []  # living processes; none where the system has no /proc
        with suppress(FileNotFoundError):
            for process in Path("/proc").iterdir():
                with suppress(OSError, ValueError):
                    pid = int(process.name)
                    # pid (name) state ppid group session; a name may hold anything.
                    stat = (process / "stat").read_bytes().rpartition(b")")[2]
                    state, _, _, session = stat.split()[:4]
                    if int(session) in leaders and state not in (b"Z", b"X"):
                        members.append(pid)
        if not members:
            return
        for pid in members:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def main() -> None:
    """Hold what standard input names (``+PID`` a line, ``-PID`` to let go) until it ends."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    held: set[int] = set()
    rest = b""
    while chunk := os.read(0, 1 << 16):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            (held.add if line.startswith(b"+") else held.discard)(int(line[1:]))
    end_sessions(held)


if __name__ == "__main__":
    main()
