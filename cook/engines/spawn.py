"""Starting one program so that it cannot outlive cook; only cook.engines.child calls this."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from cook.engines.spec import ProcessSpec
from cook.errors import PrerequisiteError, StepError

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


@functools.cache
def _spawner() -> ThreadPoolExecutor:
    # PDEATHSIG is sent when the *thread* that started the child ends, so that thread must
    # live as long as cook: one for all, whichever thread asks.
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="cook-spawner")


def spawn(spec: ProcessSpec, cwd: Path) -> subprocess.Popen[bytes]:
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
