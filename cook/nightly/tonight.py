"""A night of a pipeline: its cells are run, or planned, accepted, reported; how the night ends."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cook.errors import CookError, GateError, StepError
from cook.files import atomic_write
from cook.nightly import cells
from cook.nightly.cell_outcome import CellOutcome, read_outcomes, worst
from cook.nightly.cells import NightRequest
from cook.nightly.history import accept
from cook.nightly.junit import junit
from cook.nightly.pipeline import LoadedPipeline, load_pipeline
from cook.nightly.summary import publish, summary
from cook.output import Mode, Output, json_text
from cook.provenance import machine
from cook.units import plural

SUMMARY = "summary.md"
JUNIT = "junit.xml"


def tonight(request: NightRequest, output: Output) -> None:
    """Do it; GateError when something got worse, StepError when a cell failed."""
    loaded = load_pipeline(request.pipeline, unsafe_args=request.unsafe_args)
    if request.plan:
        found = cells.due(loaded)
        keys = ("cell", "recipe", "engine", "reason")
        stale = [
            (d.cell.name, d.cell.loaded.recipe.name, d.cell.engine_label, d.reason)
            for d in found
            if d.reason
        ]
        matrix = {"include": [dict(zip(keys, values, strict=True)) for values in stale]}
        output.emit(matrix)
        output.data(json_text(matrix, indent=None))  # one line, as $GITHUB_OUTPUT wants it
        for d in found:
            output.say(f"{d.cell.name}: {d.reason or 'fresh'}")
    elif request.accept is not None:
        name = request.accept
        night = accept(loaded.history, loaded.cell(name).name, machine().digest)
        output.emit({"accepted": name, "night": night.created})
        output.data(f"{name}: the night of {night.created} is what later nights are compared with")
    elif request.report:
        outcomes = read_outcomes(request.report)
        for outcome in outcomes:
            output.data(f"{outcome.cell}: {outcome.summary}")
        report(loaded.pipeline.name, outcomes, output, request.into)
    else:
        _run(loaded, request, output)


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
        error.exit_code = worst(failed)
        raise error


def _run(loaded: LoadedPipeline, request: NightRequest, output: Output) -> None:
    # The lines of the cells are the output: what their builds print is shown only on request.
    silent = output if request.verbose else Output(Mode.QUIET, output.stdout, output.stderr)
    if request.cell is not None:
        chosen: list[cells.Due] = [cells.Due(loaded.cell(request.cell), "named", None)]
    elif request.all_cells:
        chosen = [cells.Due(cell, "all", None) for cell in loaded.cells]
    else:
        chosen = [*cells.due(loaded)]
    outcomes: list[CellOutcome] = []
    for d in chosen:
        if d.reason is None and d.last is not None:
            outcome = cells.fresh(d.cell, d.last)
        else:
            outcome = cells.run_cell(loaded, d.cell, request, silent, output.say)
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
        raise_for(outcomes)
