"""What ``cook sweep`` does with what it was asked."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from cook.errors import InputError
from cook.nightly.ending import line, raise_for, report
from cook.nightly.outcome import VERSION, CellOutcome, CellStatus, read_outcomes
from cook.nightly.pipeline import Cell, LoadedPipeline, load_pipeline
from cook.output import Mode, Output, to_json
from cook.provenance import machine


@dataclass(frozen=True)
class SweepRequest:
    """The part of the command line that says what to do; at most one of the first four."""

    plan: bool = False
    cell: str | None = None
    report: tuple[Path, ...] = ()
    accept: str | None = None
    all_cells: bool = False

    def check(self) -> None:
        """InputError where it asks for two things at once."""
        given = {
            "--plan": self.plan,
            "--cell": self.cell is not None,
            "--report": bool(self.report),
            "--accept": self.accept is not None,
            "--all": self.all_cells,
        }
        named = [name for name, value in given.items() if value]
        if len(named) > 1:
            raise InputError(f"{' and '.join(named)} cannot be asked together")


def sweep(
    pipeline: Path,
    asked: SweepRequest,
    output: Output,
    *,
    into: Path | None = None,
    verbose: bool = False,
    jobs: int = 1,
    threads: int | None = None,
    unsafe_args: bool = False,
) -> None:
    """Do it; GateError when something got worse, StepError when a cell failed."""
    asked.check()
    loaded = load_pipeline(pipeline, unsafe_args=unsafe_args)
    if asked.plan:
        _plan(loaded, output)
    elif asked.accept is not None:
        _accept(loaded, asked.accept, output)
    elif asked.report:
        outcomes = read_outcomes(asked.report)
        for outcome in outcomes:
            output.data(line(outcome))
        report(loaded.pipeline.name, outcomes, output, into)
    else:
        _run(loaded, asked, output, into, verbose, jobs, threads)


def _plan(loaded: LoadedPipeline, output: Output) -> None:
    """One line of JSON, as ``$GITHUB_OUTPUT`` wants it."""
    from cook.nightly.due import due, matrix

    found = due(loaded)
    document = matrix(found)
    output.emit(document)
    output.data(to_json(document, indent=None))
    for d in found:
        output.say(f"{d.cell.name}: {d.reason or 'fresh'}")


def _accept(loaded: LoadedPipeline, name: str, output: Output) -> None:
    from cook.nightly.history import accept

    night = accept(loaded.history, loaded.cell(name).name, machine().digest)
    output.emit({"accepted": name, "night": night.created})
    output.data(f"{name}: the night of {night.created} is what later nights are compared with")


def _run(
    loaded: LoadedPipeline,
    asked: SweepRequest,
    output: Output,
    into: Path | None,
    verbose: bool,
    jobs: int,
    threads: int | None,
) -> None:
    from cook.nightly.cells import run_cell

    # The lines of the cells are the output: what their builds say stays aside unless asked for.
    silent = output if verbose else Output(Mode.QUIET, output.stdout, output.stderr)
    outcomes = []
    for cell, fresh in _chosen(loaded, asked):
        outcome = fresh or run_cell(loaded, cell, silent, jobs=jobs, threads=threads, into=into)
        output.say(line(outcome)) if output.mode is Mode.JSON else output.data(line(outcome))
        outcomes.append(outcome)
    if asked.cell is None:
        report(loaded.pipeline.name, outcomes, output, into)
    else:  # the job that merges the cells reports
        output.emit({"pipeline": loaded.pipeline.name, "cells": outcomes})
        raise_for(outcomes)


def _chosen(loaded: LoadedPipeline, asked: SweepRequest) -> list[tuple[Cell, CellOutcome | None]]:
    """The cells, each with its outcome where it is fresh and so not run."""
    from cook.nightly.due import due

    if asked.cell is not None:
        return [(loaded.cell(asked.cell), None)]
    if asked.all_cells:
        return [(cell, None) for cell in loaded.cells]
    return [(d.cell, None if d.stale else _fresh(loaded, d.cell)) for d in due(loaded)]


def _fresh(loaded: LoadedPipeline, cell: Cell) -> CellOutcome:
    from cook.nightly.cells import newest_here

    night = newest_here(loaded, cell)
    assert night is not None, "a cell without a night is stale"
    worse = f"; then worse: {', '.join(night.regressions)}" if not night.good else ""
    return CellOutcome(
        version=VERSION,
        cell=cell.name,
        recipe=night.recipe,
        engine=cell.engine_label,
        status=CellStatus.FRESH,
        exit_code=0,
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        seconds=0.0,
        summary=f"fresh: last night {night.created}, nothing changed{worse}",
        error=None,
        pick=night.pick,
        findings=(),
        notes=(),
        against=night.created,
        record=None,
    )
