"""What to run, and how it went: the records of :mod:`cook.engines.process`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from cook.engines.outcome import Outcome, failure

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
