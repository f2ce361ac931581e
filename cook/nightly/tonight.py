"""A night of a pipeline: its cells are run, or planned, accepted, reported; how the night ends."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cook.errors import CookError, GateError, InputError, StepError
from cook.files import atomic_write
from cook.graph.execute import Remaining
from cook.nightly.cell_outcome import CellOutcome, CellStatus, read_outcomes, worst
from cook.nightly.junit import junit
from cook.nightly.pipeline import Cell, LoadedPipeline, load_pipeline
from cook.nightly.summary import publish, summary
from cook.output import Mode, Output, to_json
from cook.provenance import machine
from cook.units import plural

SUMMARY = "summary.md"
JUNIT = "junit.xml"


@dataclass(frozen=True)
class NightRequest:
    """What ``cook sweep`` was asked; at most one of ``plan`` to ``all_cells``.

    ``into``: where records and reports go; ``verbose``: the builds' own words are shown as well.
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


def tonight(asked: NightRequest, output: Output) -> None:
    """Do it; GateError when something got worse, StepError when a cell failed."""
    loaded = load_pipeline(asked.pipeline, unsafe_args=asked.unsafe_args)
    if asked.plan:
        _plan(loaded, output)
    elif asked.accept is not None:
        _accept(loaded, asked.accept, output)
    elif asked.report:
        outcomes = read_outcomes(asked.report)
        for outcome in outcomes:
            output.data(_line(outcome))
        report(loaded.pipeline.name, outcomes, output, asked.into)
    else:
        _run(loaded, asked, output)


def report(title: str, outcomes: Sequence[CellOutcome], output: Output, into: Path | None) -> None:
    """Write ``summary.md`` and ``junit.xml`` under ``into``, fill the running job's summary.

    Raises as :func:`raise_for`.
    """
    output.emit({"pipeline": title, "exit_code": worst(outcomes), "cells": list(outcomes)})
    text = summary(title, outcomes)
    if into is not None:
        into.mkdir(parents=True, exist_ok=True)
        for name, content in ((SUMMARY, text.encode()), (JUNIT, junit(outcomes))):
            with atomic_write(into / name) as stream:
                stream.write(content)
        output.say(f"wrote {into / SUMMARY} and {into / JUNIT}")
    publish(text)
    raise_for(outcomes)


def raise_for(outcomes: Sequence[CellOutcome]) -> None:
    """GateError (exit 4) when anything got worse, else StepError with the failure's status."""
    worse = [o for o in outcomes if o.regressions]
    failed = [o for o in outcomes if o.exit_code and not o.regressions]
    if worse:
        hint = "if it is meant: cook sweep PIPELINE --accept CELL takes tonight for good"
        raise GateError(f"{plural(len(worse), 'cell')} got worse: {_names(worse)}", hint=hint)
    if failed:
        error: CookError = StepError(
            f"{plural(len(failed), 'cell')} failed: {_names(failed)}",
            hint="cook sweep PIPELINE --cell CELL runs one again",
        )
        error.exit_code = worst(failed)
        raise error


def _names(outcomes: Sequence[CellOutcome]) -> str:
    return ", ".join(o.cell for o in outcomes)


def _line(outcome: CellOutcome) -> str:
    """``demo-bundled: ok; pick ...``."""
    return f"{outcome.cell}: {outcome.summary}"


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


def _run(loaded: LoadedPipeline, asked: NightRequest, output: Output) -> None:
    from cook.nightly.cells import kept_in, run_cell

    # The lines of the cells are the output: what their builds say stays aside unless asked for.
    silent = output if asked.verbose else Output(Mode.QUIET, output.stdout, output.stderr)
    outcomes: list[CellOutcome] = []
    chosen = _chosen(loaded, asked)
    remaining = _remaining(chosen, asked.into or kept_in(loaded))
    for cell, fresh in chosen:
        outcome = fresh or run_cell(
            loaded,
            cell,
            silent,
            jobs=asked.jobs,
            threads=asked.threads,
            scheduler=asked.scheduler,
            into=asked.into,
            told=output.say,
        )
        output.say(_line(outcome)) if output.mode is Mode.JSON else output.data(_line(outcome))
        outcomes.append(outcome)
        if fresh is None:
            remaining.ran(cell.name, outcome.seconds)
        if len(outcomes) < len(chosen):
            told = (f"{len(outcomes)} of {len(chosen)} cells", remaining.told())
            output.say(", ".join(filter(None, told)))
    if asked.cell is None:
        report(loaded.pipeline.name, outcomes, output, asked.into)
    else:  # the job that merges the cells reports
        output.emit({"pipeline": loaded.pipeline.name, "cells": outcomes})
        raise_for(outcomes)


def _remaining(chosen: Sequence[tuple[Cell, CellOutcome | None]], directory: Path) -> Remaining:
    """As long as each cell took the last time; of no use where one has not run before."""
    running = {cell.name for cell, fresh in chosen if fresh is None}
    expected: dict[str, float] = {}
    with suppress(InputError):  # what an earlier night left is nobody's fault now
        expected = {o.cell: o.seconds for o in read_outcomes([directory]) if o.cell in running}
    return Remaining(expected if expected.keys() == running else {})


def _chosen(loaded: LoadedPipeline, asked: NightRequest) -> list[tuple[Cell, CellOutcome | None]]:
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
        cell=cell.name,
        recipe=night.recipe,
        engine=cell.engine_label,
        status=CellStatus.FRESH,
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        summary=f"fresh: last night {night.created}, nothing changed{worse}",
        pick=night.pick,
        against=night.created,
    )
