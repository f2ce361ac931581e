"""One search from start to end: what each span costs, the best mix of a size, and the verdict.

Prompts are dealt three ways and never shared: the imatrix is calibrated on text of its own, the
search sees one half of the recipe's prompts, the verdict is from the other.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from cook.build.prepare import prepare
from cook.engines.base import DraftSettings
from cook.errors import InputError
from cook.files import atomic_write
from cook.formats.sensitivity_csv import Sensitivities, read_sensitivities
from cook.graph.execute import Executor
from cook.graph.store import Store
from cook.output import Output
from cook.paths import cook_home
from cook.record.find import keep_search
from cook.record.search_record import Family, FinalistTiming, SearchRecord
from cook.report.search_show import explained, shown_search
from cook.report.show import show
from cook.scoring.allocation import fastest
from cook.scoring.kappa import predicted_length
from cook.scoring.noise import LogSpread, noise_of
from cook.search.evaluate import Replays
from cook.search.findings import Explored, acceptance_law, findings
from cook.search.found_recipe import with_quant
from cook.search.job import EVALUATIONS, SearchJob, SearchRequest
from cook.search.judge import CONFIDENCE, Contender, Judged, judge
from cook.search.ledger import Ledger
from cook.search.pace import ByCycle, BySecond, Clock, CycleCost, fastest_length, law_of
from cook.search.refine import Refinement
from cook.search.sensitivity import Sensitivity, kld, nll
from cook.search.space import Mix, Space
from cook.steps.quantize import QuantizeStep
from cook.units import plural, short_size, size

COARSE = 0.45
"""Share of the budget that coarse spans may take."""
SPANS = 0.65
"""Share of the budget for the costs of all spans; the rest is for whole mixes."""
FITTED = 5
"""Sizes whose allocations the law of acceptance is fitted to, where speed is sought."""
RIVALS = 2
"""Mixtures of the engine's own that stand in the final: the largest that fit."""


@dataclass(frozen=True)
class Found:
    """What a search ended with: its record, where that lies, and the recipe that it wrote."""

    record: SearchRecord
    record_path: Path
    recipe_path: Path


def answer(request: SearchRequest, output: Output, *, wide: bool, explain: bool) -> None:
    """Search, and print what was found: the finalists, and with ``explain`` the spans."""
    found = search(request, output)
    output.emit(found.record)
    show(shown_search(found.record), output, wide=wide)
    if explain:
        show(explained(found.record), output, wide=wide)
    if found.record.found_recipe is not None:
        output.say(f"confirm it: cook build {found.recipe_path}")
    output.say(f"kept as {found.record_path}; cook report --search shows it as a page")


def search(request: SearchRequest, output: Output) -> Found:
    """Find the best mix, and write it as a recipe; what was found out is kept as a record.

    InputError for a recipe that cannot be searched from, and a size that nothing fits into.
    """
    began = time.monotonic()
    _require_place(request.output, request.replaces)
    prepared = prepare(
        request.recipe,
        engines=(request.engine,) if request.engine else (),
        demo=request.demo,
        threads=request.threads,
        unsafe_args=request.unsafe_args,
        output=output,
    )
    job = SearchJob.of(request, prepared)
    published = _published(request.from_csv, job) if request.from_csv is not None else None
    for warning in prepared.warnings:
        output.warn(warning)
    _require_room(job.space, request.size_bytes)
    home = cook_home()
    with Executor(
        Store(home / "store"),
        output,
        logs=home / "logs",
        jobs=request.jobs,
        threads=request.threads,
    ) as executor:
        replays = Replays(job.deployed, job.space, executor)
        replays.prepare()
        max_bytes = _max_bytes(job, executor)
        clock = Clock.of(job, replays) if request.maximize.timed else None
        timed = _pace(job, clock) if clock is not None else None
        if timed is not None:
            settings = DraftSettings(timed.n_max)
            job = replace(job, deployed=replace(job.deployed, settings=settings))
            replays = replace(replays, deployed=job.deployed)
        pace: CycleCost = timed or ByCycle()
        ledger = Ledger(replays, job.rounds, request.budget, pace.cycle)
        output.say(
            f"searching among {plural(len(job.space.ties), 'tie')} of tensors, "
            f"up to {plural(max(map(len, job.space.types)), 'type')} each, "
            f"in files of at most {size(max_bytes)}"
        )
        hand = [mix for _, types in job.given() if (mix := job.space.mix_of(types)) is not None]
        aims = Aims(max_bytes, pace, job.deployed.settings.n_max, request.seed, published)
        found = explored(job.space, ledger, aims, hand)
        entrants = list(_entrants(job, found, replays))
        contenders = _contenders(job, replays, entrants)
        timing = noise = None
        if clock is not None and timed is not None:
            files = [one.file for one in entrants]
            contenders, timing, noise = _timed(contenders, files, clock, timed)
    judged = judge(contenders, CONFIDENCE, noise)
    text = _recipe_text(job, contenders, judged)
    seconds = time.monotonic() - began
    record = findings(job, found, contenders, judged, timing, text, seconds)
    if text is not None:
        with atomic_write(request.output) as file:
            file.write(text.encode())
    return Found(record, keep_search(record), request.output)


@dataclass(frozen=True)
class Aims:
    """What mixes are searched for: of at most ``max_bytes``, with the most tokens for what cycles
    cost by ``pace``, in drafts of ``n_max`` tokens. ``published``: costs that need no measuring."""

    max_bytes: int
    pace: CycleCost
    n_max: int
    seed: int = 0
    published: Sensitivities | None = None


def explored(space: Space, ledger: Ledger, aims: Aims, starts: Sequence[Mix]) -> Explored:
    """The spans' costs and the best whole mix, within the ledger's budget; ``starts`` are mixes
    that somebody made by hand."""
    sensitivity = Sensitivity.of(space, ledger, aims.published)
    total = ledger.left if np.isfinite(ledger.left) else float(EVALUATIONS)
    if aims.published is not None:
        sensitivity.compare(aims.max_bytes, (1 - COARSE) * total)
    sensitivity.settle(aims.max_bytes, (1 - COARSE) * total)
    sensitivity.refine(aims.max_bytes, (1 - SPANS) * total)
    agreement = sensitivity.agreement() if aims.published is not None else None
    also = _fast(sensitivity, aims) if aims.pace.law is not None else []
    refinement = Refinement(sensitivity, aims.max_bytes, np.random.default_rng(aims.seed))
    best = refinement.run([*also, *starts])
    return Explored(sensitivity, best, aims.max_bytes, agreement, aims.pace)


def _fast(sensitivity: Sensitivity, aims: Aims) -> list[Mix]:
    """The mix that is fastest by the laws of acceptance and of decode times; the former is fitted
    to allocations of some sizes, replayed whole."""
    space, ledger = sensitivity.space, sensitivity.ledger
    least = space.bytes_of(tuple(types[0] for types in space.types))
    sizes = np.linspace(max(least, space.fixed_bytes), aims.max_bytes, FITTED + 1)[1:]
    for size_bytes in sizes:
        mix, _ = sensitivity.allocated(int(size_bytes))
        ledger.whole([mix], "fit", "an allocation, for the law of acceptance")
    law, _ = acceptance_law(sensitivity, aims.n_max)
    if law is None:
        return []

    def speed(damage: float, seconds: float) -> float:
        return predicted_length(law, damage) / aims.pace.of_seconds(seconds)

    costs = sensitivity.costs(kld, aims.pace.seconds)
    found = fastest(costs, aims.max_bytes - space.fixed_bytes, speed)
    return [sensitivity.mix_of([c.costs[i].type for c, i in zip(costs, found.chosen, strict=True)])]


def _require_place(path: Path, replaces: bool) -> None:
    """InputError where the recipe could not be written: hours before it is."""
    if path.is_dir():
        raise InputError(f"{path} is a folder", hint=f"-o {path / 'searched.yaml'}")
    if path.exists() and not replaces:
        raise InputError(f"{path} exists", hint="-o another file, or --force")
    if not path.parent.is_dir():
        raise InputError(f"{path}: there is no folder {path.parent}", hint=f"mkdir {path.parent}")


def _published(path: Path, job: SearchJob) -> Sensitivities:
    """The table of ``path``; InputError where it is of another model."""
    table = read_sensitivities(path)
    columns = {name for row in table.rows.values() for name in row}
    if not any(t.name in columns for tie in job.space.ties for t in tie.tensors):
        raise InputError(
            f"{path}: none of its {plural(len(columns), 'column')} is a tensor of "
            f"{job.deployed.file.path.name}",
            hint="give the table of this model, or measure: leave --from-csv out",
        )
    return table


def _pace(job: SearchJob, clock: Clock) -> BySecond:
    """The law of decode times, for drafts of the length that is fastest for the largest mix."""
    pace = law_of(clock, np.random.default_rng(job.request.seed))
    replays = clock.replays
    prompts = tuple(name for share in job.rounds for name in share)
    (reference,) = replays([replays.space.largest], prompts)
    n_max = fastest_length(pace, clock.lengths, reference, job.deployed.settings.n_max)
    return replace(pace, n_max=n_max)


def _require_room(space: Space, limit: int, option: str = "--size", beside: int = 0) -> None:
    """InputError where no mix fits into ``limit`` bytes; ``beside``: what of the ``option`` is
    taken by other things."""
    smallest = space.bytes_of(tuple(types[0] for types in space.types))
    if smallest > limit:
        least = smallest + beside
        taken = f", and KV cache and buffers take {size(beside)}" if beside else ""
        raise InputError(
            f"no mix fits into {option} {size(limit + beside)}: the smallest has "
            f"{size(smallest)}{taken}",
            hint=f"{option} {short_size(least + least // 20)}, or smaller types: --type",
        )


def _max_bytes(job: SearchJob, executor: Executor) -> int:
    """Of a file no larger than asked for, which fits into the memory asked for beside its KV cache
    and buffers: these are measured on the recipe's own first quant."""
    limit = job.request.size_bytes
    if job.request.memory_bytes is not None:
        memory = job.drafts[0].memory
        assert memory is not None, "the recipe has a score"
        executor.run([memory])
        taken = executor.outcomes.result(memory)
        if taken is None:
            raise executor.outcomes.failures[memory.key].error
        beside = taken.kv_bytes + taken.compute_bytes
        limit = min(limit, job.request.memory_bytes - beside)
        _require_room(job.space, job.request.memory_bytes - beside, "--memory", beside)
    return limit


@dataclass(frozen=True)
class Entrant:
    """A mix that stands in the final: its tensors' types, and what makes its file."""

    name: str
    family: Family
    types: Mapping[str, str]
    file: QuantizeStep


def _entrants(job: SearchJob, found: Explored, replays: Replays) -> Iterator[Entrant]:
    """The recipe's own quants as the recipe makes them, the engine's mixtures, the allocations by
    KLD and by perplexity alone, and what the search found."""
    space, limit = job.space, found.max_bytes
    own = [one for one in job.given() if job.size_of(one[1]) <= limit]
    for draft, types in own:
        assert draft.quantize is not None, "a search is from quants"
        yield Entrant(draft.name, "given", types, draft.quantize)
    fitting = sorted(
        ((name, types) for name, types in job.mixtures() if job.size_of(types) <= limit),
        key=lambda one: -job.size_of(one[1]),
    )

    def here(name: str, family: Family, types: Mapping[str, str]) -> Entrant:
        return Entrant(name, family, types, replays.quantized_as(types))

    for name, types in fitting[:RIVALS]:
        if dict(types) not in [dict(given) for _, given in own]:
            yield here(f"{name} of the engine", "engine", types)
    best_kld, _ = found.sensitivity.allocated(limit, kld)
    best_nll, _ = found.sensitivity.allocated(limit, nll)
    yield here("least KLD", "kld", space.tensor_types(best_kld))
    yield here("least perplexity", "perplexity", space.tensor_types(best_nll))
    yield here(job.found_name, "found", space.tensor_types(found.best))


def _contenders(job: SearchJob, replays: Replays, entrants: Sequence[Entrant]) -> list[Contender]:
    """``entrants``, replayed on the prompts of the verdict."""
    replies = replays.of_files([one.file for one in entrants], job.verdict)
    return [
        Contender(f.name, f.family, f.types, job.size_of(f.types), one)
        for f, one in zip(entrants, replies, strict=True)
    ]


def _timed(
    contenders: Sequence[Contender], files: Sequence[QuantizeStep], clock: Clock, pace: BySecond
) -> tuple[list[Contender], FinalistTiming, LogSpread | None]:
    """``contenders`` with what their cycles take, measured on their ``files``; how that was done,
    and how far the logarithm of what was measured may be off: None where nothing tells it."""
    timed = clock.timed(files)
    cycles = timed.cycles(pace.n_max)
    # One mix may stand there under several names: its times say nothing of noise twice.
    distinct = list({file.key: row for row, file in enumerate(files)}.values())
    told = len(distinct) > 1 and cycles.shape[1] > 1
    noise = noise_of(np.log(cycles[distinct])) if told else None
    measured_s = np.median(timed.single_s, axis=1)
    off = np.abs(np.array([pace.decode_s(c.types) for c in contenders]) / measured_s - 1)
    timing = FinalistTiming(
        passes=cycles.shape[1],
        noise=noise.half_width(CONFIDENCE) if noise else None,
        law_error=float(off.mean()),
        law_largest_error=float(off.max()),
    )
    seconds = np.median(cycles, axis=1).tolist()
    found = [replace(c, cycle=s) for c, s in zip(contenders, seconds, strict=True)]
    return found, timing, noise.of_median if noise else None


def _recipe_text(job: SearchJob, contenders: list[Contender], judged: Judged) -> str | None:
    """The recipe to write, with the mix that has the most beside those given, so that a tie can be
    built and measured further; None where one of these has the most."""
    best = next(c for c in contenders if c.name == judged.leader)
    if best.family == "given":
        return None
    return with_quant(
        job.prepared.loaded,
        job.found_name,
        best.types,
        job.space,
        job.model,
        job.layout.engine,
        job.request.output,
    )
