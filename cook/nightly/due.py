"""Which cells of a pipeline are due: something they depend on changed, or their night is old."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from cook.build.plan import State, plan
from cook.errors import CookError, Interrupted
from cook.nightly.history import History, read_history
from cook.nightly.pipeline import Cell, LoadedPipeline
from cook.provenance import machine


@dataclass(frozen=True)
class Due:
    """A cell and why it is due; ``reason`` None: it is not."""

    cell: Cell
    reason: str | None

    @property
    def stale(self) -> bool:
        return self.reason is not None


def due(loaded: LoadedPipeline, now: datetime | None = None) -> tuple[Due, ...]:
    """Every cell, in order. Runs nothing but header reads and the engines' own ``--version``."""
    history = read_history(loaded.history)
    return tuple(Due(cell, _reason(cell, loaded, history, now)) for cell in loaded.cells)


def _reason(
    cell: Cell, loaded: LoadedPipeline, history: History, now: datetime | None
) -> str | None:
    from cook.build.prepare import prepare

    last = history.newest(cell.name, machine().digest)
    if last is None:
        return "never run here"
    if last.failures:
        return "its last night failed"
    age = _age_hours(last.created, now or datetime.now(UTC))
    if age > loaded.pipeline.max_age_hours:
        return f"its last night is {age:.0f} hours old"
    try:
        prepared = prepare(
            cell.loaded, engines=cell.engines, demo=cell.demo, plan_only=True, named_engines=True
        )
        planned = plan(prepared)
    except Interrupted:
        raise
    except CookError as error:
        # It is for the cell's own run to fail on this, where it is seen.
        return f"cannot be planned: {error.message.splitlines()[0]}"
    waiting = [step for step in planned.steps if step.state is State.RUN]
    if not waiting:
        return None
    first = waiting[0]
    return f"{len(waiting)} of {len(planned.steps)} steps would run ({first.label}: {first.reason})"


def _age_hours(created: str, now: datetime) -> float:
    try:
        then = datetime.strptime(created, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    except ValueError:
        return float("inf")
    return (now - then).total_seconds() / 3600


def matrix(found: tuple[Due, ...]) -> dict[str, list[dict[str, str]]]:
    """The stale cells as a GitHub Actions matrix: ``{"include": [{"cell": ...}, ...]}``."""
    return {
        "include": [
            {
                "cell": d.cell.name,
                "recipe": d.cell.loaded.recipe.name,
                "engine": d.cell.engine_label,
                "reason": d.reason or "",
            }
            for d in found
            if d.stale
        ]
    }
