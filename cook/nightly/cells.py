"""Run one cell: build its recipe with every timing taken anew, judge it, remember the night."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cook.build.phases import Phase, phase_of
from cook.build.prepare import Prepared, prepare
from cook.build.run import Built, build, raise_for
from cook.errors import CookError, Interrupted, PrerequisiteError, StepError
from cook.graph.step import Step
from cook.nightly.cell_outcome import (
    RECORD,
    REGRESSION_EXIT,
    CellOutcome,
    CellStatus,
    write_outcome,
)
from cook.nightly.gates import Judgement, judge
from cook.nightly.history import append, read_history
from cook.nightly.night import Night, Series, night_of
from cook.nightly.pipeline import Cell, LoadedPipeline
from cook.output import Output
from cook.paths import cook_home
from cook.provenance import machine
from cook.record.record import Record, write_record
from cook.units import duration

SILENT_S = 60.0
"""From the last line on, until a step is told that begins no phase."""
MAX_REASON = 160
"""Characters of a failure on a summary line; all of it is in the report."""


def run_cell(
    loaded: LoadedPipeline,
    cell: Cell,
    output: Output,
    *,
    jobs: int = 1,
    threads: int | None = None,
    scheduler: str | None = None,
    into: Path | None = None,
    told: Callable[[str], None] = lambda _: None,
) -> CellOutcome:
    """One cell's night: its outcome, which is also written with the record under ``into``.

    A failure of the cell is told in the outcome, not raised; only an interruption is. ``told`` is
    given a line when the cell starts, at each phase of its build, and at a step that begins a
    minute after the last line.
    """
    progress = CellProgress(cell.name, told)
    started = time.monotonic()
    directory = into or kept_in(loaded)
    outcome: CellOutcome
    try:
        prepared = prepare(
            cell.loaded,
            engines=cell.engines,
            demo=cell.demo,
            threads=threads,
            named_engines=True,
            output=output,
        )
        before = read_history(loaded.history).last_good_of(_series(cell, prepared))
        built = build(
            prepared,
            output,
            jobs=jobs,
            threads=threads,
            scheduler=scheduler,
            remeasure=True,
            again=before.pick if before is not None else None,
            watch=progress.begins,
        )
        outcome = _judged(loaded, cell, built, started)
        write_record(built.record, directory / cell.name / RECORD)
    except Interrupted:
        raise
    except CookError as error:
        outcome = _failed(cell, error, started)
    write_outcome(outcome, directory)
    return outcome


def kept_in(loaded: LoadedPipeline) -> Path:
    """Where the cells of a pipeline leave their outcomes, unless told where."""
    return cook_home() / "sweeps" / loaded.pipeline.name


class CellProgress:
    """Where a cell is, in lines for a log that nobody watches."""

    def __init__(self, cell: str, told: Callable[[str], None]) -> None:
        self._cell = cell
        self._told = told
        self._started = self._last = time.monotonic()
        self._phases: set[Phase] = set()
        told(f"{cell}: started")

    def begins(self, step: Step[Any]) -> None:
        """A step begins to run."""
        phase, now = phase_of(step.kind), time.monotonic()
        if phase in self._phases and now - self._last < SILENT_S:
            return
        named = f" ({step.label})" if phase in self._phases else ""
        self._phases.add(phase)
        self._last = now
        self._told(f"{self._cell}: {phase}{named}, after {duration(now - self._started)}")


def _series(cell: Cell, prepared: Prepared) -> Series:
    """The series that the night of this build will belong to."""
    engines = "+".join(layout.engine.name for layout in prepared.layouts)
    text = hashlib.sha256(prepared.loaded.text.encode()).hexdigest()
    return cell.name, text, engines, machine().digest


def _judged(loaded: LoadedPipeline, cell: Cell, built: Built, started: float) -> CellOutcome:
    """Gate tonight against the last good night and append it to the history."""
    night = night_of(built.record, cell.name)
    history = read_history(loaded.history)
    policy = loaded.pipeline.gates.policy(len(loaded.cells))
    judgement = judge(night, history.last_good(night), policy, history)
    error = _error(built)
    failures = (error.message,) if error else ()
    regressions = tuple(f"{f.gate} of {f.subject}" for f in judgement.regressions)
    append(loaded.history, night.judged(failures, regressions))
    status = CellStatus.OK
    exit_code = 0
    if judgement.regressions:
        status, exit_code = CellStatus.REGRESSION, REGRESSION_EXIT
    elif error is not None:
        status, exit_code = CellStatus.FAILED, _failure_exit(error)
    seconds = time.monotonic() - started
    return CellOutcome(
        cell=cell.name,
        recipe=night.recipe,
        engine=cell.engine_label,
        status=status,
        exit_code=exit_code,
        created=night.created,
        seconds=seconds,
        summary=_summary(status, night, built.record, judgement, error, seconds),
        error=error.message if error else None,
        pick=night.pick,
        findings=judgement.findings,
        notes=(*judgement.notes, *history.warnings),
        causes=judgement.causes,
        against=judgement.before.created if judgement.before else None,
        record=RECORD,
    )


def _error(built: Built) -> CookError | None:
    try:
        raise_for(built)
    except CookError as error:
        return error
    return None


def _failure_exit(error: CookError) -> int:
    """What a sweep exits with for a cell that failed: 5 for want of something, else 1. Whatever is
    wrong with a cell's model or recipe, the sweep's own command line was right."""
    missing = PrerequisiteError.exit_code
    return missing if error.exit_code == missing else StepError.exit_code


def _failed(cell: Cell, error: CookError, started: float) -> CellOutcome:
    """A cell that never came to a record."""
    seconds = time.monotonic() - started
    first = _short(error)
    mend = f" ({error.hint})" if error.hint else ""
    return CellOutcome(
        cell=cell.name,
        recipe=cell.loaded.recipe.name,
        engine=cell.engine_label,
        status=CellStatus.FAILED,
        exit_code=_failure_exit(error),
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        seconds=seconds,
        summary=f"failed: {first}{mend}",
        error=error.message,
    )


def _summary(
    status: CellStatus,
    night: Night,
    record: Record,
    judgement: Judgement,
    error: CookError | None,
    seconds: float,
) -> str:
    """One line: verdict, pick with its figures, what it is compared with, time taken."""
    parts = [str(status)]
    if judgement.regressions:
        worst = judgement.regressions[0]
        parts = [f"REGRESSION: {worst.gate} of {worst.subject}: {worst.text}"]
        if len(judgement.regressions) > 1:
            parts[0] += f" and {len(judgement.regressions) - 1} more"
        kinds = dict.fromkeys(str(cause.kind) for cause in judgement.causes)
        parts[0] += f" (changed: {', '.join(kinds) or 'nothing known'})"
    elif error is not None:
        parts = [f"failed: {_short(error)}"]
    winner = record.candidate(night.pick) if night.pick else None
    if winner is not None:
        text = f"pick {winner.name}"
        if winner.speedup is not None and winner.draft is not None:
            text += f" {winner.speedup:.2f}x as fast as no draft end to end"
        if winner.live is not None and (rate := winner.live.acceptance_rate) is not None:
            text += f", acceptance {rate:.1%} ({winner.live.accepted}/{winner.live.drafted})"
        parts.append(text)
    before = judgement.before
    parts.append(f"against {before.created}" if before else "first night")
    parts.append(duration(seconds) or "")
    return "; ".join(parts)


def _short(error: CookError) -> str:
    """The head of a message, on one line."""
    first = error.message.splitlines()[0]
    return first if len(first) <= MAX_REASON else f"{first[: MAX_REASON - 3]}..."


def newest_here(loaded: LoadedPipeline, cell: Cell) -> Night | None:
    """The newest night of a cell on this machine."""
    return read_history(loaded.history).newest(cell.name, machine().digest)
