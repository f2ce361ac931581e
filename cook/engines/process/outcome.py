"""What to run, what became of it, and the error that says so.

Engines crash, hang and lie: an exit status alone proves nothing
(docs/internals/engines.md#how-a-run-ends). :func:`classify` reads what the system and the last
output say; an adapter that finds its marker or artifact missing after a clean exit says
:attr:`Outcome.SILENT_FAILURE` itself. :mod:`cook.engines.process.supervisor` does the running.
"""

from __future__ import annotations

import re
import shutil
import signal
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from cook.errors import CookError, Interrupted, PrerequisiteError, StepError

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


class Outcome(StrEnum):
    """How a run ended; everything but ``OK`` is a failed step."""

    OK = "ok"
    CRASH = "crash"
    TOOL_ERROR = "tool error"
    SILENT_FAILURE = "silent failure"
    OUT_OF_MEMORY = "out of memory"
    DISK_FULL = "disk full"
    STALLED = "stalled"
    TIMED_OUT = "timed out"
    INTERRUPTED = "interrupted"
    UNRUNNABLE = "unrunnable"


@dataclass(frozen=True)
class ProcessResult:
    """How a run went. ``returncode`` as subprocess gives it; ``stdout``/``stderr`` are the logs.

    ``peak_rss_bytes`` is the program's own (mapped weights included), 0 where unknown. The
    tails are the last 16 KiB of each stream.
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
    writes: tuple[Path, ...] = ()

    def check(self) -> ProcessResult:
        """Itself if the outcome is OK.

        Raises StepError, PrerequisiteError (cannot start) or Interrupted otherwise.
        """
        if self.outcome is not Outcome.OK:
            raise failure(self)
        return self


TAIL_LINES = 12
_FULL_DISK_BYTES = 1 << 20
_ASSERT = re.compile(
    r"(?:\S+:\d+: )?GGML_(?:ASSERT|ABORT)\([^\n]*|terminate called after throwing[^\n]*"
    r"(?:\n\s*what\(\):[^\n]*)?|\S+:\d+: fatal error[^\n]*"
)
# llama-quantize says of a write that failed only that its stream did.
_DISK_FULL = re.compile(
    r"no space left on device|ENOSPC|disk quota exceeded|file too large"
    r"|basic_ios::clear: iostream error",
    re.IGNORECASE,
)
_OUT_OF_MEMORY = re.compile(
    r"failed to allocate|unable to allocate|cannot allocate memory|std::bad_alloc"
    r"|out of memory|cudaMalloc failed|ErrorOutOfDeviceMemory|failed to fit",
    re.IGNORECASE,
)
_LIBRARY = re.compile(r"error while loading shared libraries: ([^\s:]+)")
# Control characters of a hostile or progress-drawing program must not reach the terminal.
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f\x80-\x9f]")


def classify(returncode: int, output: str, *, oom_killed: bool, writes: Iterable[Path]) -> Outcome:
    """Outcome of a process that ended on its own.

    ``returncode`` is as subprocess gives it (negative: the signal), ``output`` the end of its
    two streams, ``oom_killed`` whether the machine was out of memory when it died, ``writes``
    the directories it wrote to.
    """
    if returncode == 0:
        return Outcome.OK
    if tells_of_full_disk(output) or any(_is_full(path) for path in writes):
        return Outcome.DISK_FULL
    if returncode == -signal.SIGKILL and oom_killed:
        return Outcome.OUT_OF_MEMORY
    if _OUT_OF_MEMORY.search(output):
        return Outcome.OUT_OF_MEMORY
    if returncode in (126, 127):
        return Outcome.UNRUNNABLE
    if returncode < 0 or returncode > 128:
        return Outcome.CRASH
    return Outcome.TOOL_ERROR


def _is_full(path: Path) -> bool:
    try:
        return shutil.disk_usage(path).free < _FULL_DISK_BYTES
    except OSError:
        return False


def failure(
    result: ProcessResult,
    outcome: Outcome | None = None,
    detail: str | None = None,
    hint: str | None = None,
) -> CookError:
    """The error for ``result``: what happened, the end of the log, a hint, and the log's path.

    ``outcome`` overrides the run's own (an adapter knows of silent failures); ``detail`` is the
    adapter's finding. Interruptions and programs that cannot start have their own classes.
    """
    outcome = outcome or result.outcome
    # Errors are on stderr nearly always; stdout is shown only when it is all there is.
    output = result.stderr_tail or result.stdout_tail
    sentence, usual_hint = _explained(
        outcome, result, result.stderr_tail + "\n" + result.stdout_tail
    )
    what = f"{result.name}: {sentence}" + (f": {detail}" if detail else "")
    if outcome is Outcome.INTERRUPTED:
        return Interrupted(what)
    if outcome is Outcome.UNRUNNABLE:
        return PrerequisiteError(what, hint=hint or usual_hint)
    lines = [f"  | {line}" for line in tail(output).splitlines()]
    message = "\n".join((what, *lines)) if lines else f"{what} (it printed nothing)"
    return StepError(message, hint=hint or usual_hint, log=result.stderr)


_CRASH_HINTS = {
    -signal.SIGKILL: "someone killed it, most often the system for want of memory",
    -signal.SIGBUS: "a mapped file became shorter while it was read, or the disk is full",
    -signal.SIGILL: "the engine was built for another processor",
}


def _explained(outcome: Outcome, result: ProcessResult, output: str) -> tuple[str, str | None]:
    """What happened, and what to do about it."""
    after = f"after {result.seconds:.0f} s"
    match outcome:
        case Outcome.CRASH:
            sentence = f"crashed with {signal_name(result.returncode)} {after}"
            if found := _ASSERT.search(output):
                sentence += f": {' '.join(clean(found.group()).split())}"
            return sentence, _CRASH_HINTS.get(result.returncode)
        case Outcome.TOOL_ERROR:
            return f"failed with exit status {result.returncode} {after}", None
        case Outcome.OUT_OF_MEMORY:
            gib = result.peak_rss_bytes / 2**30
            sentence = f"ran out of memory {after}" + (f", peak {gib:.2f} GiB" if gib else "")
            hint = "use fewer things at once, a smaller context or batch, or a machine with more"
            return sentence, f"{hint} memory"
        case Outcome.STALLED:
            why = "it gave no output and used no processor time for too long"
            hint = "a slow disk or a hung device; the whole log is in the file named below"
            return f"was stopped {after}: {why}", hint
        case Outcome.TIMED_OUT:
            return f"was stopped {after}: over its time limit", None
        case Outcome.SILENT_FAILURE:
            return "exited 0 but did not do its work", None
        case Outcome.UNRUNNABLE:
            if library := _LIBRARY.search(output):
                hint = "rebuild the engine, or `make setup` for the bundled one"
                return f"cannot start: shared library {library.group(1)} is missing", hint
            hint = "was it built for this machine? `make setup` rebuilds the bundled engine"
            return f"cannot start: {tail(output, 1) or 'exit status 127'}", hint
        case Outcome.DISK_FULL:
            full = next((p for p in result.writes if _is_full(p)), None)
            where = f" on the file system of {full}" if full else ""
            hint = f"free disk space{where}; `cook store gc` removes what no recipe needs"
            return f"ran out of disk space {after}", hint
    return f"{outcome.value} {after}", None


def tells_of_full_disk(output: str) -> bool:
    """Whether ``output`` says that there was no room to write."""
    return _DISK_FULL.search(output) is not None


def signal_name(returncode: int) -> str:
    """``"SIGSEGV"`` for -11 or 139; ``"signal 77"`` where the number has no name."""
    number = -returncode if returncode < 0 else returncode - 128
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def tail(output: str, lines: int = TAIL_LINES) -> str:
    """The last ``lines`` lines that are not blank, each cut at 300 characters."""
    printed = [line.rstrip()[:300] for line in clean(output).splitlines() if line.strip()]
    return "\n".join(printed[-lines:])


def clean(text: str) -> str:
    """``text`` without terminal control sequences, safe to print."""
    return _CONTROL.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))
