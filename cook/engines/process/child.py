"""Starting one program so that it does not outlive cook, and keeping what it prints.

Two things see to that. The keeper (:mod:`cook.engines.process.keeper`) ends the program's whole
session when cook is gone. Where the system has PDEATHSIG, the program itself also dies with cook,
should the keeper be gone as well.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import functools
import os
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Self

from cook.engines.process import keeper
from cook.engines.process.outcome import ProcessSpec
from cook.errors import PrerequisiteError, StepError

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
        future.add_done_callback(_kill_spawned)
        raise


def _kill_spawned(future: Future[subprocess.Popen[bytes]]) -> None:
    if not future.cancelled() and future.exception() is None:
        keeper.end_sessions([future.result().pid])


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
