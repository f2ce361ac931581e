"""One build from start to end: run the layout's steps, fit the live score into its budget,
compare outputs, and hand everything to the record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cook.engines.discover import engine_at
from cook.errors import GateError, InputError, PrerequisiteError, StepError
from cook.graph.execute import Executor, Outcomes, RemoteExecutor, closure
from cook.graph.step import Step
from cook.graph.store import Store
from cook.job.assemble import assemble, draft_records, over_limits
from cook.job.decide import decide
from cook.job.layout import Layout, checks_of
from cook.job.plan import plan
from cook.job.prepare import Prepared
from cook.job.slot_speeds import run_slots
from cook.output import Output
from cook.paths import cook_home, free_bytes
from cook.record.find import keep_record
from cook.record.record import Excluded, Record
from cook.units import plural, size


@dataclass(frozen=True)
class Built:
    """What a build ended with: the record, where it lies, and which steps really ran."""

    record: Record
    path: Path
    ran: tuple[str, ...]
    failures: tuple[str, ...]
    files: tuple[Path, ...]
    """Every file the answer depends on: what was read, and what is stored."""


def build(
    prepared: Prepared,
    output: Output,
    *,
    jobs: int = 1,
    threads: int | None = None,
    fresh: bool = False,
    remeasure: bool = False,
    again: str | None = None,
    watch: Callable[[Step[Any]], None] = lambda _: None,
    scheduler: str | None = None,
    reference: Mapping[str, Path] | None = None,
) -> Built:
    """Run everything ``prepared`` asks for and pick; failures block only what needs them.

    ``fresh`` runs every step again, stored or not; ``remeasure`` only what is timed. ``again``
    names a candidate that is dealt every prompt, to be compared with an earlier build, and
    ``reference`` by engine another build of it, on which what runs live runs as well.
    ``watch`` is called with every step that begins to run. ``scheduler``: the address of a dask
    cluster that makes what is not timed.
    """
    home, planned, layouts = cook_home(), plan(prepared), prepared.layouts
    expected = {
        step.key: step
        for step in (*planned.steps, *planned.later_steps)
        if step.seconds is not None
    }
    remote_executor: AbstractContextManager[RemoteExecutor | None] = nullcontext()
    if scheduler is not None:
        from cook.graph.cluster import connected

        remote_executor = connected(scheduler, threads=threads, fresh=fresh)
    with (
        remote_executor as remote,
        Executor(
            Store(home / "store"),
            output,
            logs=home / "logs",
            jobs=jobs,
            threads=threads,
            fresh=fresh,
            remeasure=remeasure,
            expected={key: step.seconds or 0.0 for key, step in expected.items()},
            alone=frozenset(key for key, step in expected.items() if step.timed),
            watch=watch,
            remote=remote,
        ) as executor,
    ):
        outcomes = executor.outcomes
        _require_room(executor.store, layouts)
        executor.run(step for layout in layouts for step in layout.making())
        with _nothing_removed(outcomes):
            # A draft over the limits is neither replayed nor run live: it may not even fit. What it
            # takes to know has been measured by now.
            drafts, limits = draft_records(layouts, outcomes), prepared.recipe.pick.subject_to
            over = {d.quant: why for d in drafts if (why := over_limits(d, limits)) is not None}
            qualified = tuple(layout.without(over) for layout in layouts)
            excluded = [
                Excluded(c.name, over[c.draft.name])
                for layout in layouts
                for c in layout.grid
                if c.draft is not None and c.draft.name in over
            ]
            sizes = {draft.quant: draft.file_bytes for draft in drafts}
            others = {name: engine_at(name, path) for name, path in (reference or {}).items()}
            recipe = prepared.recipe
            decision = decide(qualified, recipe, excluded, executor, sizes, again, others)
            if decision is not None:
                dealt = decision.dealing.dealt
                decision.checks = tuple(checks_of(qualified, decision.finalists, dealt))
                executor.run(decision.checks)
                if max(decision.score.slots) > 1:
                    run_slots(qualified, decision, executor)
            record = assemble(prepared, outcomes, decision)
    path = keep_record(record)
    return Built(
        record,
        path,
        ran=tuple(outcomes.ran),
        failures=tuple(
            failure.error.message.splitlines()[0]
            for failure in outcomes.failures.values()
            if failure.blocked_by is None and not failure.optional
        ),
        files=(
            *prepared.files,
            *(
                path
                for artifact in outcomes.artifacts.values()
                for path in (artifact.meta, *(artifact.file(f.name) for f in artifact.files))
            ),
        ),
    )


@contextmanager
def _nothing_removed(outcomes: Outcomes) -> Iterator[None]:
    """What cannot be read because another cook's ``store gc`` took it is no fault of the recipe."""
    try:
        yield
    except (InputError, FileNotFoundError) as error:
        gone = [a for a in outcomes.artifacts.values() if not a.meta.exists()]
        if not gone:
            raise
        raise StepError(
            f"{gone[0].label}: removed from the store while it was needed",
            hint="the same command makes it again",
        ) from error


def raise_for(built: Built, again: str | None = None) -> None:
    """The exit of a build: 1 when a step failed, 4 when nothing qualifies. ``again``: the option
    with which the same command does not go on."""
    if built.failures:
        count = len(built.failures)
        raise StepError(
            f"{plural(count, 'step')} failed: {'; '.join(built.failures[:3])}",
            hint="what succeeded is stored; the same command again"
            f"{f' without {again}' if again else ''} runs only what is missing",
        )
    if built.record.candidates and built.record.pick.candidate is None:
        raise GateError(built.record.pick.sentence, hint="loosen `pick.subject_to`")


def _require_room(store: Store, layouts: Sequence[Layout]) -> None:
    """Refuse before anything runs when the disk can't hold what would be made."""
    steps = [step for layout in layouts for step in layout.making()]
    missing = [s for s in closure(steps).values() if store.find(s.kind, s.key) is None]
    needed = sum(step.disk_bytes() or 0 for step in missing)
    free = free_bytes(store.root)
    if needed > free:
        raise PrerequisiteError(
            f"{store.root}: {size(needed)} are needed and {size(free)} are free",
            hint="free some space (`cook store gc` helps), or set COOK_HOME to a larger disk",
        )
