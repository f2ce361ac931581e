"""A night of a pipeline: which cells are due, their builds with every timing taken again, their
verdicts, the reports, and how the night ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cook.errors import (
    CookError,
    GateError,
    InputError,
    Interrupted,
    PrerequisiteError,
    StepError,
)
from cook.files import atomic_write
from cook.graph.step import Step
from cook.job.plan import State, plan
from cook.job.prepare import Prepared, prepare
from cook.job.run import Built, build, raise_for
from cook.nightly.cell_outcomes import (
    RECORD,
    CellOutcome,
    CellStatus,
    exit_status,
    junit,
    publish,
    read_outcomes,
    summary,
    write_outcome,
)
from cook.nightly.gates import judge
from cook.nightly.history import Night, accept, append, night_of, read_history
from cook.nightly.pipeline import Cell, LoadedPipeline, load_pipeline
from cook.output import Mode, Output, json_text
from cook.paths import cook_home
from cook.provenance import machine
from cook.record.record import Record, write_record
from cook.units import duration, plural

TIMESTAMP = "%Y-%m-%dT%H:%M:%SZ"
MAX_REASON = 160
"""Characters of a failure on a summary line; all of it is in the report."""


@dataclass(frozen=True)
class NightRequest:
    """The command line of ``cook sweep``; at most one of ``plan`` to ``all_cells``.

    ``into``: where records and reports go; ``verbose``: what the builds print is shown as well.
    """

    pipeline: Path
    plan: bool = False
    cell: str | None = None
    report: tuple[Path, ...] = ()
    accept: str | None = None
    all_cells: bool = False
    into: Path | None = None
    verbose: bool = False
    jobs: int = 1
    threads: int | None = None
    scheduler: str | None = None
    unsafe_args: bool = False

    def __post_init__(self) -> None:
        names = ("--plan", "--cell", "--report", "--accept", "--all")
        values = (self.plan, self.cell, self.report, self.accept, self.all_cells)
        named = [name for name, value in zip(names, values, strict=True) if value]
        if len(named) > 1:
            raise InputError(f"{' and '.join(named)} cannot be asked together")


@dataclass(frozen=True)
class Due:
    """A cell, why it is due (``reason`` None: it is not), and its last night here."""

    cell: Cell
    reason: str | None
    last: Night | None


def due(
    loaded: LoadedPipeline, threads: int | None = None, now: datetime | None = None
) -> tuple[Due, ...]:
    """Every cell, in order. Runs nothing but header reads and the engines' own ``--version``."""
    history, here = read_history(loaded.history), machine().digest
    hours, now = loaded.pipeline.max_age_hours, now or datetime.now(UTC)
    found = ((cell, history.newest(cell.name, here)) for cell in loaded.cells)
    return tuple(Due(cell, _reason(cell, last, hours, now, threads), last) for cell, last in found)


def _reason(
    cell: Cell, last: Night | None, max_age_hours: float, now: datetime, threads: int | None
) -> str | None:
    if last is None:
        return "never run here"
    if last.failures:
        return "its last night failed"
    if last.regressions and not last.accepted:
        return "its last night was worse, and is not accepted"
    age = now - datetime.strptime(last.created, TIMESTAMP).replace(tzinfo=UTC)
    if (hours := age.total_seconds() / 3600) > max_age_hours:
        return f"its last night is {hours:.0f} hours old"
    if last.record.recipe_sha256 != cell.loaded.sha256:
        return "its recipe is not that of its last night"
    try:
        prepared = _prepared(cell, threads=threads, plan_only=True)
        planned = plan(prepared)
    except Interrupted:
        raise
    except CookError as error:
        # It is for the cell's own run to fail on this, where it is seen.
        return f"cannot be planned: {error.message.splitlines()[0]}"
    for engine in (layout.engine for layout in prepared.layouts):
        before = last.record.engines.get(engine.name)
        if before is None or before.digest != engine.facts.digest:
            return f"its engine {engine.name} is another build"
    waiting = [step for step in planned.steps if step.state is State.RUN]
    if not waiting:
        return None
    first = f"{waiting[0].label}: {waiting[0].reason}"
    return f"{len(waiting)} of {len(planned.steps)} steps would run ({first})"


def _prepared(cell: Cell, **options: Any) -> Prepared:
    return prepare(cell.loaded, engines=cell.engines, demo=cell.demo, named_engines=True, **options)


def run_cell(
    loaded: LoadedPipeline,
    cell: Cell,
    request: NightRequest,
    output: Output,
    say: Callable[[str], None] = lambda _: None,
) -> CellOutcome:
    """One cell's night: its outcome, which is also written with the record.

    A failure of the cell is in the outcome, not raised; only an interruption is. ``say`` is given a
    line when the cell starts and at each phase of its build. The accepted night's pick always runs
    live again.
    """
    started = time.monotonic()
    directory = request.into or cook_home() / "sweeps" / loaded.pipeline.name
    phases: set[str] = set()

    def watch(step: Step[Any]) -> None:
        if step.phase not in phases:
            phases.add(step.phase)
            say(f"{cell.name}: {step.phase}, after {duration(time.monotonic() - started)}")

    say(f"{cell.name}: started")
    try:
        prepared = _prepared(cell, threads=request.threads, output=output)
        engines = "+".join(layout.engine.name for layout in prepared.layouts)
        series = (cell.name, prepared.loaded.sha256, engines, machine().digest)
        before = read_history(loaded.history).reference(series)
        built = build(
            prepared,
            output,
            jobs=request.jobs,
            threads=request.threads,
            scheduler=request.scheduler,
            remeasure=True,
            again=before.accepted.pick if before is not None else None,
            reference=loaded.reference(cell),
            watch=watch,
        )
        outcome = _judged(loaded, cell, built, started)
        write_record(built.record, directory / cell.name / RECORD)
    except Interrupted:
        raise
    except CookError as error:
        hint = f" ({error.hint})" if error.hint else ""
        outcome = _outcome(
            cell,
            CellStatus.FAILED,
            f"failed: {_short(error)}{hint}",
            exit_code=_failure_exit(error),
            seconds=time.monotonic() - started,
            error=error.message,
        )
    write_outcome(outcome, directory)
    return outcome


def _judged(loaded: LoadedPipeline, cell: Cell, built: Built, started: float) -> CellOutcome:
    """Judge tonight against the accepted night and append it to the history."""
    night, history = night_of(built.record, cell.name), read_history(loaded.history)
    judgement = judge(night, history.reference(night.series), loaded.pipeline.gates)
    accepted, worse = judgement.accepted, judgement.regressions
    notes = [*judgement.notes, *history.warnings]
    if loaded.reference(cell) and not any(c.reference for c in night.live):
        notes.append("nothing ran on the reference build: speeds are compared with earlier nights")
    error: CookError | None = None
    try:
        raise_for(built)
    except CookError as failure:
        error = failure
    regressions = tuple(f"{f.gate} of {f.subject}" for f in worse)
    append(loaded.history, night.judged((error.message,) if error else (), regressions))
    status, exit_code, verdict = CellStatus.OK, 0, "ok"
    if worse:
        status, exit_code = CellStatus.REGRESSION, GateError.exit_code
        more = f" and {len(worse) - 1} more" if worse[1:] else ""
        verdict = f"REGRESSION: {regressions[0]}: {worse[0].text}{more}"
    elif error is not None:
        status, exit_code = CellStatus.FAILED, _failure_exit(error)
        verdict = f"failed: {_short(error)}"
    elif accepted is not None and judgement.unjudged_pick is not None:
        status = CellStatus.NOT_JUDGED
        verdict = f"not judged: {accepted.pick}: {judgement.unjudged_pick}"
    seconds = time.monotonic() - started
    against = accepted.created if accepted else None
    compared = f"against {against}" if against else "first night"
    parts = (verdict, _pick(built.record), compared, duration(seconds))
    return _outcome(
        cell,
        status,
        "; ".join(part for part in parts if part),
        created=night.created,
        exit_code=exit_code,
        seconds=seconds,
        error=error.message if error else None,
        pick=night.pick,
        findings=judgement.findings,
        notes=tuple(notes),
        power=judgement.power,
        against=against,
        record=RECORD,
    )


def _pick(record: Record) -> str | None:
    """The pick with its figures."""
    winner = record.candidate(record.pick.candidate) if record.pick.candidate else None
    if winner is None:
        return None
    text = f"pick {winner.name}"
    if winner.speedup is not None and winner.draft is not None:
        text += f" {winner.speedup:.2f}x as fast as no draft end to end"
    if winner.live is not None and (rate := winner.live.acceptance_rate) is not None:
        text += f", acceptance {rate:.1%} ({winner.live.accepted}/{winner.live.drafted})"
    return text


def fresh_outcome(cell: Cell, night: Night) -> CellOutcome:
    """The outcome of a cell that is not run, since nothing changed after ``night``."""
    summary = f"fresh: last night {night.created}, nothing changed"
    summary += f"; then worse: {', '.join(night.regressions)}" if night.regressions else ""
    return _outcome(cell, CellStatus.FRESH, summary, pick=night.pick, against=night.created)


def _outcome(
    cell: Cell, status: CellStatus, summary: str, *, created: str | None = None, **more: Any
) -> CellOutcome:
    return CellOutcome(
        cell=cell.name,
        recipe=cell.loaded.recipe.name,
        engine=cell.engine_label,
        status=status,
        created=created or time.strftime(TIMESTAMP, time.gmtime()),
        summary=summary,
        **more,
    )


def _failure_exit(error: CookError) -> int:
    """5 where something is missing, else 1: the sweep's own command line was right."""
    missing = PrerequisiteError.exit_code
    return missing if error.exit_code == missing else StepError.exit_code


def _short(error: CookError) -> str:
    """The head of a message, on one line."""
    first = error.message.splitlines()[0]
    return first if len(first) <= MAX_REASON else f"{first[: MAX_REASON - 3]}..."


SUMMARY = "summary.md"
JUNIT = "junit.xml"


def run_night(request: NightRequest, output: Output) -> None:
    """Do it; GateError when something got worse, StepError when a cell failed."""
    loaded = load_pipeline(request.pipeline, unsafe_args=request.unsafe_args)
    if request.plan:
        print_due(loaded, request.threads, output)
        return
    if (name := request.accept) is not None:
        night = accept(loaded.history, loaded.cell(name).name, machine().digest)
        output.emit({"accepted": name, "night": night.created})
        output.data(f"{name}: the night of {night.created} is what later nights are compared with")
        return
    if request.report:
        found = read_outcomes(request.report)
        for outcome in found:
            output.data(f"{outcome.cell}: {outcome.summary}")
        report(loaded.pipeline.name, found, output, request.into)
        return
    # The lines of the cells are the output: what their builds print is shown only on request.
    silent = output if request.verbose else Output(Mode.QUIET, output.stdout, output.stderr)
    if request.cell is not None:
        chosen = [Due(loaded.cell(request.cell), "named", None)]
    elif request.all_cells:
        chosen = [Due(cell, "all", None) for cell in loaded.cells]
    else:
        chosen = [*due(loaded, request.threads)]
    outcomes: list[CellOutcome] = []
    for d in chosen:
        if d.reason is None and d.last is not None:
            outcome = fresh_outcome(d.cell, d.last)
        else:
            outcome = run_cell(loaded, d.cell, request, silent, output.say)
        line = f"{outcome.cell}: {outcome.summary}"
        output.say(line) if output.mode is Mode.JSON else output.data(line)
        if outcome.power is not None:
            output.say(f"{outcome.cell}: {outcome.power}")
        outcomes.append(outcome)
        if len(outcomes) < len(chosen):
            output.say(f"{len(outcomes)} of {len(chosen)} cells")
    if request.cell is None:
        report(loaded.pipeline.name, outcomes, output, request.into)
    else:  # the job that merges the cells reports
        output.emit({"pipeline": loaded.pipeline.name, "cells": outcomes})
        raise_for_cells(outcomes)


def print_due(loaded: LoadedPipeline, threads: int | None, output: Output) -> None:
    """The cells that are due, as the matrix of a CI job."""
    found = due(loaded, threads)
    keys = ("cell", "recipe", "engine", "reason")
    stale = [(d.cell, d.reason) for d in found if d.reason]
    rows = [(c.name, c.loaded.recipe.name, c.engine_label, reason) for c, reason in stale]
    matrix = {"include": [dict(zip(keys, row, strict=True)) for row in rows]}
    output.emit(matrix)
    output.data(json_text(matrix, indent=None))  # one line, as $GITHUB_OUTPUT wants it
    for d in found:
        output.say(f"{d.cell.name}: {d.reason or 'fresh'}")


def report(title: str, outcomes: Sequence[CellOutcome], output: Output, into: Path | None) -> None:
    """Write ``summary.md`` and ``junit.xml`` under ``into``, fill the running job's summary.

    Raises as :func:`raise_for_cells`.
    """
    output.emit({"pipeline": title, "exit_code": exit_status(outcomes), "cells": list(outcomes)})
    text = summary(title, outcomes)
    if into is not None:
        into.mkdir(parents=True, exist_ok=True)
        for name, content in ((SUMMARY, text.encode()), (JUNIT, junit(outcomes))):
            with atomic_write(into / name) as stream:
                stream.write(content)
        output.say(f"wrote {into / SUMMARY} and {into / JUNIT}")
    publish(text)
    raise_for_cells(outcomes)


def raise_for_cells(outcomes: Sequence[CellOutcome]) -> None:
    """GateError (exit 4) when anything got worse, else StepError with the failure's status."""
    worse = [o.cell for o in outcomes if o.regressions]
    failed = [o for o in outcomes if o.exit_code and not o.regressions]
    if worse:
        hint = "if it is meant: cook sweep PIPELINE --accept CELL"
        raise GateError(f"{plural(len(worse), 'cell')} got worse: {', '.join(worse)}", hint=hint)
    if failed:
        error: CookError = StepError(
            f"{plural(len(failed), 'cell')} failed: {', '.join(o.cell for o in failed)}",
            hint="cook sweep PIPELINE --cell CELL runs one again",
        )
        error.exit_code = exit_status(failed)
        raise error
