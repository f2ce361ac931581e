"""The plan: for every step whether it would run and why, with sizes, time, disk and memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median
from typing import TYPE_CHECKING, Any

from cook.graph.execute import closure
from cook.graph.step import Input, Source, Step, decode
from cook.graph.store import Artifact, Store
from cook.output import Column, Output
from cook.paths import cook_home, free_bytes
from cook.provenance import available_memory_bytes
from cook.units import duration, size

if TYPE_CHECKING:
    from cook.build.layout import Layout
    from cook.build.prepare import Prepared

ROUGH_BYTES_PER_SECOND = 4e9
"""Memory bandwidth assumed for a server's speed before anything was measured here."""


LATER = (
    "then, known only once predicted: live runs of the choice and its closest rival, "
    "their outputs compared with the baseline's"
)
RACE = "replays of the drafts that stay in the race on more prompts, "


class State(StrEnum):
    STORED = "stored"
    RUN = "run"


class Reason(StrEnum):
    """Why a step would run. ``detail`` of the planned step names the part that changed."""

    STORED = "stored"
    NEW = "never made"
    GONE = "was made, but its artifact is gone or damaged"
    ENGINE = "the engine changed"
    PARAMETERS = "parameters changed"
    INPUT = "an input changed"
    VERSION = "this cook measures it in another way"
    MACHINE = "timed on another machine"
    UNHASHED = "the source was not hashed yet"


@dataclass(frozen=True)
class Planned:
    """One step of the plan. ``seconds`` None: no such step was timed here yet."""

    label: str
    kind: str
    key: str
    state: State
    reason: Reason
    detail: str
    size_bytes: int | None
    seconds: float | None
    seconds_reason: str | None


@dataclass(frozen=True)
class Need:
    """A resource: what the steps to run take, and what there is; None is unknown."""

    name: str
    needed_bytes: int | None
    available_bytes: int | None

    @property
    def short(self) -> bool:
        return (
            self.needed_bytes is not None
            and self.available_bytes is not None
            and self.needed_bytes > self.available_bytes
        )


@dataclass(frozen=True)
class Plan:
    """The whole plan. ``live_hours`` is the whole grid, ``left_out`` what the budget drops."""

    recipe: str
    engine: str
    steps: tuple[Planned, ...]
    needs: tuple[Need, ...]
    live_hours: float | None
    live_hours_reason: str | None
    left_out: tuple[str, ...]
    later: str | None
    """What a build adds that cannot be planned before it has begun."""
    warnings: tuple[str, ...]

    @property
    def stale(self) -> bool:
        """Whether a build would run anything."""
        return any(step.state is State.RUN for step in self.steps)


def plan(prepared: Prepared) -> Plan:
    """What a build of ``prepared`` would do, from the store and file headers alone."""
    from cook.build.layout import interleaved
    from cook.build.run import within_budget

    recipe = prepared.recipe
    store = Store(cook_home() / "store")
    history = list(store.entries())
    hours: float | None = None
    reason: str | None = None
    left_out: tuple[str, ...] = ()
    layouts = prepared.layouts
    grid = tuple(c for layout in layouts for c in layout.grid)
    baselines = [layout.baseline for layout in layouts if layout.baseline is not None]
    wanted: list[Step[Any]] = [step for layout in layouts for step in layout.making()]
    replayed = any(layout.forecast is not None for layout in layouts)
    if replayed:
        # Which drafts are replayed to the end is known only once they race.
        wanted += [s for layout in layouts if layout.forecast for s in layout.forecast.certain()]
        grid = ()  # which candidates go live is known only once they are predicted
    elif baselines and recipe.score is not None:
        seconds, reason = _configuration_seconds(layouts[0], history)
        budget_s = recipe.score.live_budget.minutes * 60
        whole = len(baselines) + len(grid)
        grid, dropped = within_budget(grid, seconds, budget_s, len(baselines))
        left_out = tuple(e.candidate for e in dropped)
        hours = seconds * whole / 3600 if seconds is not None else None
    wanted += interleaved([*baselines, *grid])
    wanted += [c.compare for c in grid if c.compare is not None]
    steps = tuple(_planned(step, store, history) for step in closure(wanted).values())
    return Plan(
        recipe=recipe.name,
        engine=", ".join(f"{m.engine.name} {m.engine.identity.build}" for m in layouts),
        steps=steps,
        needs=(*_needs(layouts, steps), *_download(prepared.left_bytes)),
        live_hours=hours,
        live_hours_reason=reason,
        left_out=left_out,
        later=_later(layouts) if replayed else None,
        warnings=(*prepared.warnings, *_known_of_types(layouts, store)),
    )


def _later(layouts: Sequence[Layout]) -> str:
    races = any(layout.forecast is not None and layout.forecast.rounds > 1 for layout in layouts)
    return LATER.replace(": ", f": {RACE}", 1) if races else LATER


def _known_of_types(layouts: Sequence[Layout], store: Store) -> Iterator[str]:
    """What was measured before of the types that the quants use."""
    for step in (layout.types for layout in layouts if layout.types is not None):
        artifact = store.find(step.kind, step.key)
        if artifact is not None:
            yield from decode(step, artifact).warnings


def show_plan(planned: Plan, output: Output) -> None:
    """Print a plan; in json mode the whole of it as one document."""
    output.emit(planned)
    output.table(
        [
            (
                step.label,
                step.state,
                step.reason if not step.detail else f"{step.reason}: {step.detail}",
                size(step.size_bytes),
                duration(step.seconds),
            )
            for step in planned.steps
        ],
        ["step", "state", "reason", Column("size", "right"), Column("time", "right")],
    )
    for warning in planned.warnings:
        output.warn(warning)
    if planned.live_hours is not None:
        output.say(
            f"live score of the whole grid: about {planned.live_hours:.2f} hours "
            f"({planned.live_hours_reason})"
        )
    if planned.left_out:
        output.say(f"left out by score.live_budget: {', '.join(planned.left_out)}")
    if planned.later:
        output.say(planned.later)
    for need in planned.needs:
        told = f"{need.name}: needs {size(need.needed_bytes) or 'unknown'}"
        told += f", has {size(need.available_bytes) or 'unknown'}"
        (output.warn if need.short else output.say)(told)
    unknown = sum(1 for s in planned.steps if s.state is State.RUN and s.seconds is None)
    total = sum(s.seconds or 0 for s in planned.steps if s.state is State.RUN)
    count = sum(s.state is State.RUN for s in planned.steps)
    text = f"{count} of {len(planned.steps)} steps would run"
    if count:
        text += f", about {duration(total)}"
        text += f" and {unknown} steps never timed here" if unknown else ""
    output.say(text)


def _planned(step: Step[Any], store: Store, history: Sequence[Artifact]) -> Planned:
    artifact = store.find(step.kind, step.key)
    if artifact is not None:
        reason, detail = Reason.STORED, ""
        estimate: tuple[float | None, str | None] = (0.0, None)
    else:
        reason, detail = _reason(step, store, history)
        estimate = _estimate(step, history)
    return Planned(
        label=step.label,
        kind=step.kind,
        key=step.key,
        state=State.STORED if artifact else State.RUN,
        reason=reason,
        detail=detail,
        size_bytes=artifact.size_bytes if artifact else step.predicted_bytes(),
        seconds=estimate[0],
        seconds_reason=estimate[1],
    )


def _reason(step: Step[Any], store: Store, history: Sequence[Artifact]) -> tuple[Reason, str]:
    if step.provisional:
        return Reason.UNHASHED, ""
    if store.path(step.kind, step.key).exists():
        return Reason.GONE, ""
    alike = [a for a in history if a.kind == step.kind and a.label == step.label]
    if not alike:
        return Reason.NEW, ""
    before = max(alike, key=lambda a: a.created).key_parts
    now = step.key_parts
    for part, reason in (
        ("version", Reason.VERSION),
        ("engine", Reason.ENGINE),
        ("machine", Reason.MACHINE),
    ):
        if before.get(part) != now.get(part):
            return reason, _changed(part, before.get(part), now.get(part))
    if differing := _differing(before.get("inputs", {}), now["inputs"]):
        return Reason.INPUT, ", ".join(differing)
    return Reason.PARAMETERS, ", ".join(_differing(before.get("params", {}), now["params"]))


def _changed(part: str, before: Any, now: Any) -> str:
    if part == "engine" and isinstance(before, Mapping) and isinstance(now, Mapping):
        return f"{before.get('build')} to {now.get('build')}"
    return ""


def _differing(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    names = [*now, *(name for name in before if name not in now)]
    return [name for name in names if before.get(name) != now.get(name)]


def _estimate(step: Step[Any], history: Sequence[Artifact]) -> tuple[float | None, str | None]:
    work = step.work()
    if work is None:
        alike = [a.seconds for a in history if a.kind == step.kind]
        return (median(alike), None) if alike else (None, "never timed here")
    rates = [
        a.seconds / a.work
        for a in history
        if a.kind == step.kind and a.work and a.key_parts.get("engine") == step.key_parts["engine"]
    ]
    return (median(rates) * work, None) if rates else (None, "never timed here with this engine")


def _configuration_seconds(layout: Layout, history: Sequence[Artifact]) -> tuple[float | None, str]:
    baseline = layout.baseline
    assert baseline is not None, "asked only where there is a live score"
    by_key = {a.key: a for a in history}
    stored = by_key.get(baseline.rounds[0].key)
    rounds = len(baseline.rounds)
    if stored is not None:
        outcome = stored.result
        asked = sum(run["wall_ms"] for run in outcome["runs"]) / 1000
        return (outcome["load_seconds"] + asked) * rounds, "measured: the stored baseline"
    target = layout.target
    if target is None:
        return None, "no target"
    tokens = sum(step.work() for step in baseline.rounds)
    seconds = tokens * target.size_bytes / ROUGH_BYTES_PER_SECOND
    return seconds, "rough: nothing measured here yet, weights read once a token at 4 GB/s"


def _needs(layouts: Sequence[Layout], steps: Sequence[Planned]) -> tuple[Need, ...]:
    running = [s for s in steps if s.state is State.RUN]
    sizes = [s.size_bytes for s in running]
    disk = None if any(s is None for s in sizes) else sum(s or 0 for s in sizes)
    target = layouts[0].target
    models = [target.size_bytes] if target else []
    if models and running:
        drafts = [_model_bytes(d.model) or 0 for layout in layouts for d in layout.drafts]
        models[0] += max(drafts, default=0)
    return (
        Need("disk", disk, free_bytes(cook_home())),
        Need("memory", models[0] if models and running else 0, available_memory_bytes()),
    )


def _download(left_bytes: int) -> tuple[Need, ...]:
    """What has to come from the Hub first, and the room in its cache."""
    if not left_bytes:
        return ()
    from cook.hub.download import free_cache_bytes

    return (Need("download", left_bytes, free_cache_bytes()),)


def _model_bytes(model: Input) -> int | None:
    return model.size_bytes if isinstance(model, Source) else model.predicted_bytes()
