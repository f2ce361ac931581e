"""The plan: for every step whether it would run and why, with sizes, time, disk and memory.

How long a step takes on this machine is learned from those that it ran."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import NormalDist, median
from timeit import repeat
from typing import TYPE_CHECKING, Any

import numpy as np

from cook.engines.environment import engine_threads
from cook.graph.execute import closure
from cook.graph.step import READ_BYTES_S, Cost, Step
from cook.graph.store import Artifact, Store
from cook.job.decide import (
    BLOCK_PROMPTS,
    BLOCKS,
    FEW_BLOCKS,
    FILES,
    MOST_SEATS,
    TURN_SEATS,
    fit_together,
)
from cook.job.layout import Configuration, Layout, checks_of, dealt_into
from cook.output import Mode, Output, right
from cook.paths import cook_home, free_bytes
from cook.provenance import available_memory_bytes, machine
from cook.recipe.active import ActiveBytes
from cook.recipe.groups import Group
from cook.scoring.compare import APART, START, TURN
from cook.steps.copies import SpliceHeadStep
from cook.steps.deal import DealStep, Dealt
from cook.steps.work import Phase, model_bytes, trunk_bytes
from cook.units import duration, plural, size

if TYPE_CHECKING:
    from cook.job.prepare import Prepared


REQUEST = 0.02
"""Standard deviation of a request's log time beside others of its prompt: 1 to 4 % in slices."""
FLOPS = 60e9
"""Of a product of matrices on the reference machine of :mod:`cook.graph.step`."""
PROBE_BYTES = 64 << 20
"""Of memory, over all cores: more than most caches, and less than a plan takes itself."""
PROBE_ROWS = 768
PROBES = 8
"""The fastest counts: what else runs at the moment only slows a probe down."""


@dataclass(frozen=True)
class MachinePace:
    """Seconds that this machine takes for a nominal second, by kind of step."""

    kinds: Mapping[tuple[str, str | None], float]
    """(kind, digest of the engine) -> median over the steps that were run here."""
    machine: tuple[float, float]
    """Memory's and processor's, of kinds that were not: the median of all that were, or probed."""
    probed: bool

    @classmethod
    def of(cls, history: Sequence[Artifact]) -> MachinePace:
        found: defaultdict[tuple[str, str | None], list[float]] = defaultdict(list)
        for artifact in history:
            if artifact.nominal_s:
                engine = artifact.key_parts.get("engine") or {}
                for digest in {engine.get("digest"), None}:
                    ratio = artifact.seconds / artifact.nominal_s
                    found[artifact.kind, digest].append(ratio)
        kinds = {key: median(ratios) for key, ratios in found.items()}
        if not kinds:
            probed = READ_BYTES_S / memory_bytes_s(), FLOPS / processor_flops()
            return cls({}, probed, probed=True)
        every = median(kinds[key] for key in kinds if key[1] is None)
        return cls(kinds, (every, every), probed=False)

    def seconds(self, step: Step[Any], cost: Cost | None) -> tuple[float | None, str | None]:
        """About how long ``step``, which costs so much, takes here, and what that is estimated
        from; or None, and why."""
        if cost is None:
            return None, "its size is known only when its inputs are there"
        engine = (step.key_parts["engine"] or {}).get("digest")
        for digest, whose in ((engine, "this"), (None, "another")):
            if (pace := self.kinds.get((step.kind, digest))) is not None:
                return cost.nominal_s * pace, f"as {whose} engine's here, by size"
        how = "by size and a probe of this machine" if self.probed else "by size and other steps"
        return cost.seconds(*self.machine), how


def memory_bytes_s() -> float:
    """Bytes a second that all cores together read from memory, as it is now."""
    cores = engine_threads()
    with ThreadPoolExecutor(cores) as pool:
        blocks = list(pool.map(np.ones, [PROBE_BYTES // cores // 8] * cores))
        return _rate(lambda: list(pool.map(np.sum, blocks))) * sum(block.nbytes for block in blocks)


def processor_flops() -> float:
    """Floating-point operations a second of a product of matrices, likewise."""
    matrix = np.ones((PROBE_ROWS, PROBE_ROWS), np.float32)
    return _rate(lambda: matrix @ matrix) * 2 * PROBE_ROWS**3


def _rate(work: Callable[[], object]) -> float:
    """How often ``work`` is done in a second, at best."""
    return 1 / min(repeat(work, number=1, repeat=PROBES))


LATER = (
    "then, known only once predicted: prompts dealt to the finalists, once more where that decides "
    "nothing and the live budget allows, and the pick's output compared with that without a draft"
)


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
    """One step of the plan. ``seconds`` None: not known, for ``seconds_reason``; else that says
    what they are estimated from. ``loads``: models it reads into memory, ``memory_bytes`` of them
    at once."""

    label: str
    kind: str
    key: str
    state: State
    reason: Reason
    detail: str
    size_bytes: int | None
    seconds: float | None
    seconds_reason: str | None
    loads: int = 0
    memory_bytes: int = 0
    timed: bool = False


@dataclass(frozen=True)
class PlannedPhase:
    """Steps of one phase. ``seconds`` are those that are known; of ``unknown`` steps none are.

    ``steps`` in all, ``to_run`` of them would run, and all figures are of these. ``later``: how
    many of these follow only once candidates are predicted, and stand for two typical ones.
    """

    phase: Phase
    steps: int
    to_run: int
    later: int
    seconds: float
    unknown: int
    disk_bytes: int
    memory_bytes: int
    loads: int


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
class DraftReads:
    """What one token reads of a draft's weights."""

    draft: str
    active: ActiveBytes


@dataclass(frozen=True)
class PlannedDealing:
    """One pass of all prompts over the finalists.

    ``together``: their servers are alive at once, else in turns. ``starts`` of each of ``servers``,
    one a block, and ``smallest_difference`` between two of them that so many starts can decide,
    a share, if these differ by ``start_sd`` (requests: ``REQUEST``). ``seconds`` None: not known.
    """

    together: bool
    servers: int
    starts: int
    prompts: int
    start_sd: float
    smallest_difference: float
    confidence: float
    seconds: float | None

    @classmethod
    def of(
        cls, deals: Sequence[DealStep], later: Sequence[Planned], confidence: float
    ) -> PlannedDealing:
        """That of ``deals``, of which ``later`` has the times."""
        seconds = [s.seconds for s in later if s.kind == DealStep.kind and s.state is State.RUN]
        known = [one for one in seconds if one is not None]
        starts = len(deals)
        start_sd = START if deals[0].together else APART if starts > 1 else TURN
        prompts = sum(len(deal.servers[0].prompts) for deal in deals)
        variance = 2 * (start_sd**2 / starts + REQUEST**2 / prompts)
        quantile = NormalDist().inv_cdf(0.5 + confidence / 2)
        return cls(
            together=deals[0].together,
            servers=len(deals[0].servers),
            starts=starts,
            prompts=prompts,
            start_sd=start_sd,
            smallest_difference=math.expm1(quantile * math.sqrt(variance)),
            confidence=confidence,
            seconds=sum(known) if len(known) == len(seconds) else None,
        )

    @property
    def loads(self) -> int:
        return self.servers * self.starts


@dataclass(frozen=True)
class Plan:
    """The whole plan.

    ``dealing``: how prompts are dealt to the finalists, None without a score; ``later_steps``: what
    follows once candidates are forecast, for drafts of middling size at the middle length;
    ``budget_minutes``: of live runs, the first pass at most twice.
    """

    recipe: str
    engine: str
    steps: tuple[Planned, ...]
    needs: tuple[Need, ...]
    dealing: PlannedDealing | None
    later: str | None
    """What a build adds that cannot be planned before it has begun."""
    warnings: tuple[str, ...]
    later_steps: tuple[Planned, ...] = ()
    budget_minutes: float | None = None
    phases: tuple[PlannedPhase, ...] = ()
    reads: tuple[DraftReads, ...] = ()
    """Of every draft whose header tells, in the recipe's order."""

    @property
    def stale(self) -> bool:
        """Whether a build would run anything."""
        return any(step.state is State.RUN for step in self.steps)


def plan(prepared: Prepared) -> Plan:
    """What a build of ``prepared`` would do, from the store and file headers alone."""
    recipe, layouts = prepared.recipe, prepared.layouts
    certain = prepared.steps()
    deals, followed = later_steps(layouts)
    after = closure(followed)
    planner = _Planner(Store(cook_home() / "store"), certain.values())
    steps = tuple(planner.planned(step) for step in certain.values())
    later = tuple(planner.planned(step) for key, step in after.items() if key not in certain)
    phases = {step.key: step.phase for step in (certain | after).values()}
    slots = max(recipe.score.slots) if recipe.score is not None else 1
    more = f"; the same of the choice on up to {slots} slots" if slots > 1 else ""
    return Plan(
        recipe=recipe.name,
        engine=", ".join(f"{m.engine.name} {m.engine.identity.build}" for m in layouts),
        steps=steps,
        needs=tuple(_needs(layouts, steps, prepared.left_bytes)),
        dealing=PlannedDealing.of(deals, later, recipe.pick.confidence) if deals else None,
        later=LATER + more if deals else None,
        warnings=prepared.warnings,
        later_steps=later,
        budget_minutes=recipe.score.live_budget.minutes if recipe.score is not None else None,
        phases=tuple(_phases(steps, later, phases)),
        reads=tuple(
            DraftReads(draft.name, draft.active)
            for layout in layouts
            for draft in layout.drafts
            if draft.active is not None
        ),
    )


class _Planner:
    """Plans steps one after the other: what an earlier one makes, the next finds made."""

    def __init__(self, store: Store, steps: Iterable[Step[Any]]) -> None:
        self._store = store
        self._history = list(store.entries())
        self._pace = MachinePace.of(self._history)
        stored = (step for step in steps if store.find(step.kind, step.key) is not None)
        self._pieces = {piece for step in stored for piece in step.shared_bytes()}
        """Those that are made by then; a stored step's are taken to be there."""

    def planned(self, step: Step[Any]) -> Planned:
        name = (step.label, step.kind, step.key)
        if (artifact := self._store.find(step.kind, step.key)) is not None:
            return Planned(
                *(*name, State.STORED, Reason.STORED, ""),
                size_bytes=artifact.size_bytes,
                seconds=0.0,
                seconds_reason=None,
                timed=step.timed,
            )
        reason, detail = self._reason(step)
        size_bytes, cost = step.disk_bytes(), step.cost()
        if pieces := step.shared_bytes():
            new_bytes = sum(size for piece, size in pieces.items() if piece not in self._pieces)
            self._pieces.update(pieces)
            size_bytes = None if size_bytes is None else size_bytes + new_bytes
            if cost is not None:
                share = new_bytes / (sum(pieces.values()) or 1)
                cost = replace(cost, arithmetic_s=cost.arithmetic_s * share)
        seconds, how = self._pace.seconds(step, cost)
        return Planned(
            *(*name, State.RUN, reason, detail),
            size_bytes=size_bytes,
            seconds=seconds,
            seconds_reason=how,
            loads=len(cost.loads) if cost is not None else 0,
            memory_bytes=step.needs().memory_bytes,
            timed=step.timed,
        )

    def _reason(self, step: Step[Any]) -> tuple[Reason, str]:
        """Why it runs, and which part of its key changed."""
        if step.provisional:
            return Reason.UNHASHED, ""
        if self._store.path(step.kind, step.key).exists():
            return Reason.GONE, ""
        alike = [a for a in self._history if a.kind == step.kind and a.label == step.label]
        if not alike:
            return Reason.NEW, ""
        before, now = max(alike, key=lambda a: a.created).key_parts, step.key_parts
        if before.get("version") != now["version"]:
            return Reason.VERSION, ""
        engines = [parts.get("engine") for parts in (before, now)]
        if engines[0] != engines[1]:
            return Reason.ENGINE, " to ".join(str(engine["build"]) for engine in engines if engine)
        if before.get("machine") != now.get("machine"):
            return Reason.MACHINE, ""
        if differing := _differing(before.get("inputs", {}), now["inputs"]):
            return Reason.INPUT, ", ".join(differing)
        return Reason.PARAMETERS, ", ".join(_differing(before.get("params", {}), now["params"]))


def _differing(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    names = [*now, *(name for name in before if name not in now)]
    return [name for name in names if before.get(name) != now.get(name)]


def _phases(
    steps: Sequence[Planned], later: Sequence[Planned], phases: Mapping[str, str]
) -> Iterator[PlannedPhase]:
    """The sums over the steps of each phase, which ``phases`` has by key."""
    for phase in Phase:
        certain = [s for s in steps if phases[s.key] == phase]
        after = [s for s in later if phases[s.key] == phase]
        running = [s for s in (*certain, *after) if s.state is State.RUN]
        if not certain and not after:
            continue
        yield PlannedPhase(
            phase=phase,
            steps=len(certain) + len(after),
            to_run=len(running),
            later=sum(s.state is State.RUN for s in after),
            seconds=sum(s.seconds for s in running if s.seconds is not None),
            unknown=sum(s.seconds is None for s in running),
            disk_bytes=sum(s.size_bytes or 0 for s in running),
            memory_bytes=max((s.memory_bytes for s in running), default=0),
            loads=sum(s.loads for s in running),
        )


def later_steps(layouts: Sequence[Layout]) -> tuple[list[DealStep], list[Step[Any]]]:
    """One pass of the prompts over no draft and typical candidates; and with it all that follows
    once candidates are forecast."""
    bare = [m.baseline for m in layouts if m.baseline is not None]
    if not bare:
        return [], []
    typical = [c for m in layouts for c in _typical(m)]
    together = fit_together([*bare, *typical], machine().memory_bytes)
    seated = [*bare, *typical[: min(FILES, MOST_SEATS if together else TURN_SEATS)]]
    prompts = bare[0].live.prompts
    most = max(1, len(prompts) // BLOCK_PROMPTS)
    blocks = dealt_into(prompts, min(BLOCKS if together else FEW_BLOCKS, most))
    deals = [
        DealStep(tuple(replace(c.live, prompts=share) for c in seated), number, together)
        for number, share in enumerate(blocks)
    ]
    finalists = [c for c in typical if c.name in deals[0].names]
    dealt = {c.key: Dealt(tuple(deals), c.name) for c in (*bare, *finalists)}
    return deals, [*deals, *checks_of(layouts, finalists, dealt.get)]


def _typical(layout: Layout) -> list[Configuration]:
    """Candidates to reckon with where forecasts will choose: one of every file, those of middling
    size first, at the middle length; all where no file drafts."""
    drafting = [(c, c.draft, s) for c in layout.grid if c.draft and (s := c.key.settings)]
    if not drafting:
        return list(layout.grid)
    lengths = sorted({settings.n_max for _, _, settings in drafting})
    middle = lengths[len(lengths) // 2]
    of = {draft.name: (c, draft) for c, draft, settings in drafting if settings.n_max == middle}
    by_size = [c for c, _ in sorted(of.values(), key=lambda one: model_bytes(one[1].model) or 0)]
    half = (len(by_size) - 1) // 2
    return [by_size[half], *by_size[half + 1 :], *by_size[:half][::-1]]


def show_plan(planned: Plan, output: Output, *, steps: bool = False) -> None:
    """Print a plan, a line a phase, with ``steps`` a line a step; in json mode the whole of it."""
    output.emit(planned)
    for warning in planned.warnings:
        output.warn(warning)
    if steps:
        rows = [
            (s.label, s.state, _why(s), size(s.size_bytes), duration(s.seconds))
            for s in planned.steps
        ]
        output.table(rows, ["step", "state", "reason", *right("disk", "time")])
    else:
        _show_phases(planned, output)
    _show_reads(planned.reads, output)
    running = [s for s in planned.steps if s.state is State.RUN]
    reasons = Counter(_why(s) for s in running if s.reason is not Reason.NEW)
    for reason, count in reasons.most_common():
        output.say(f"{plural(count, 'step')}: {reason}")
    if (dealing := planned.dealing) is not None:
        how = "alive together" if dealing.together else "in turns"
        took = f", about {duration(dealing.seconds)}" if dealing.seconds is not None else ""
        output.say(
            f"finalists: {plural(dealing.prompts, 'prompt')} to "
            f"{plural(dealing.servers, 'server')} {how}, {plural(dealing.starts, 'start')} each, "
            f"{plural(dealing.loads, 'model load')}{took}; it can decide a difference of "
            f"{100 * dealing.smallest_difference:.1f} % ({dealing.confidence:.0%}) where starts of "
            f"one server differ by {dealing.start_sd:.1%} and requests by {REQUEST:.0%}"
        )
    if planned.later:
        typical = any(p.later for p in planned.phases) and not steps
        output.say(f"* of typical candidates; {planned.later}" if typical else planned.later)
    later = [s for s in planned.later_steps if s.state is State.RUN]
    text = f"{len(running)} of {len(planned.steps)} steps would run"
    output.say(text + (f", {_about(running)}" if running else ""))
    if running and later:
        output.say(f"in all {_about([*running, *later])}")
    guessed = dict.fromkeys(s.seconds_reason for s in (*running, *later) if s.seconds_reason)
    if guessed:
        output.say(f"times reckoned {'; '.join(guessed)}")
    if planned.dealing is not None and planned.budget_minutes is not None:
        text = f"score.live_budget: {planned.budget_minutes:g} minutes of live runs; "
        output.say(text + "the first pass over the prompts may take twice that")
    for need in planned.needs:
        line = f"{need.name}: needs {size(need.needed_bytes) or 'unknown'}"
        line += f", has {size(need.available_bytes) or 'unknown'}"
        (output.warn if need.short else output.say)(line)


def _why(step: Planned) -> str:
    return f"{step.reason}: {step.detail}" if step.detail else str(step.reason)


def _show_phases(planned: Plan, output: Output) -> None:
    def time(p: PlannedPhase) -> str | None:
        if not p.unknown:
            return duration(p.seconds)
        return f"{duration(p.seconds)} + ?" if p.seconds else "?"

    rows = [
        (
            p.phase,
            f"{p.to_run} of {p.steps}" + (" *" if p.later else ""),
            time(p) if p.to_run else None,
            size(p.disk_bytes or None),
            size(p.memory_bytes or None),
            p.loads or None,
        )
        for p in planned.phases
    ]
    titles = ("steps to run", "time", "disk", "memory", "model loads")
    output.table(rows, ["phase", *right(*titles)])


READS_SHOWN = 16
"""Drafts whose reads a plan prints; the document has all."""
_READ_COLUMNS: Mapping[str, tuple[Group, ...]] = {
    "attention": (Group.ATTENTION,),
    "experts": (Group.ROUTED_EXPERTS,),
    "shared": (Group.SHARED_EXPERTS,),
    "output": (Group.OUTPUT,),
    "dense": (Group.DENSE_FFN,),
    "other": (Group.ROUTER, Group.EMBEDDINGS, Group.OTHER),
}


def _show_reads(reads: Sequence[DraftReads], output: Output) -> None:
    """What a token reads of each draft, by group; of models without experts it is their size."""
    found = [r for r in reads if any(g.group is Group.ROUTED_EXPERTS for g in r.active.groups)]
    if not found or output.mode is Mode.QUIET:  # a script reads one table
        return
    rows = [
        (
            read.draft,
            size(read.active.read_bytes),
            *(f"{100 * read.active.share(*groups):.0f} %" for groups in _READ_COLUMNS.values()),
        )
        for read in found[:READS_SHOWN]
    ]
    output.data("")
    output.table(rows, ["draft", *right("a token reads", *_READ_COLUMNS)])
    if len(found) > READS_SHOWN:
        output.say(f"and {plural(len(found) - READS_SHOWN, 'more draft')}: --json has all")


def _about(steps: Sequence[Planned]) -> str:
    known = sum(s.seconds for s in steps if s.seconds is not None)
    unknown = sum(s.seconds is None for s in steps)
    loads = sum(s.loads for s in steps)
    text = f"about {duration(known)}, {plural(loads, 'model load')}"
    return text + (f", and {plural(unknown, 'step')} of unknown length" if unknown else "")


def _needs(layouts: Sequence[Layout], steps: Sequence[Planned], left_bytes: int) -> Iterator[Need]:
    """Of disk, memory, and what has to come from the Hub first."""
    running = [s for s in steps if s.state is State.RUN]
    sizes = [s.size_bytes for s in running]
    disk = None if None in sizes else sum(size or 0 for size in sizes)
    yield Need("disk", disk, free_bytes(cook_home()))
    memory, target = 0, layouts[0].target
    if target is not None and running:
        drafts = [draft for layout in layouts for draft in layout.drafts]
        held = trunk_bytes if all(draft.head is None for draft in drafts) else model_bytes
        inside = (target, *(d.model for d in drafts if isinstance(d.model, SpliceHeadStep)))
        apart = (model_bytes(d.model) or 0 for d in drafts if d.model not in inside)
        memory = round((held(target) or 0) + max(apart, default=0))
    yield Need("memory", memory, available_memory_bytes())
    if left_bytes:
        from cook.hub.download import free_cache_bytes

        yield Need("download", left_bytes, free_cache_bytes())
