"""A night as a whole: from the cells' outcomes to lines, a job summary and JUnit XML."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cook.errors import CookError, GateError, StepError
from cook.files import atomic_write
from cook.nightly.junit import junit
from cook.nightly.outcome import CellOutcome, worst
from cook.nightly.summary import markdown, publish
from cook.output import Output
from cook.units import plural

SUMMARY = "summary.md"
JUNIT = "junit.xml"


def report(title: str, outcomes: Sequence[CellOutcome], output: Output, into: Path | None) -> None:
    """Write ``summary.md`` and ``junit.xml`` under ``into``, fill the running job's summary.

    Raises GateError (exit 4) when anything got worse, else StepError with the failure's status.
    """
    output.emit({"pipeline": title, "exit_code": worst(outcomes), "cells": list(outcomes)})
    text = markdown(title, outcomes)
    if into is not None:
        into.mkdir(parents=True, exist_ok=True)
        for name, content in ((SUMMARY, text.encode()), (JUNIT, junit(outcomes))):
            with atomic_write(into / name) as stream:
                stream.write(content)
        output.say(f"wrote {into / SUMMARY} and {into / JUNIT}")
    publish(text)
    raise_for(outcomes)


def line(outcome: CellOutcome) -> str:
    """``demo-bundled: ok; pick ...``."""
    return f"{outcome.cell}: {outcome.summary}"


def raise_for(outcomes: Sequence[CellOutcome]) -> None:
    """The exit of a night."""
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
