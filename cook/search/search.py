"""One search from start to end: what each span costs, the best mix of a size, and the verdict.

Prompts are dealt three ways and never shared: the imatrix is calibrated on text of its own, the
search sees one half of the recipe's prompts, the verdict is from the other.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from cook.files import atomic_write
from cook.graph.execute import Executor
from cook.graph.store import Store
from cook.job.prepare import prepare
from cook.output import Output
from cook.paths import cook_home
from cook.record.find import keep_search
from cook.record.search_record import Family, FinalistTiming, SearchRecord
from cook.report.search_view import explained, shown_search
from cook.report.show import show
from cook.scoring.allocation import fastest
from cook.scoring.fits import LogSpread, WholeMix, noise_of, predicted_length
from cook.search.evaluate import Ledger, Replays
from cook.search.findings import Explored, acceptance_law, findings
from cook.search.judge import CONFIDENCE, Contender, judge, replayed_mix
from cook.search.pace import Clock, CycleTimes, measured_pace
from cook.search.prepared import PreparedSearch, SearchRequest
from cook.search.sensitivity import Sensitivity, nll
from cook.search.space import Mix
from cook.steps.quantize import QuantizeStep
from cook.units import plural, size

SPANS = 0.65
"""Share of the budget that the costs of spans may take; the rest is for whole mixes."""
WHOLE = 6
"""Sizes whose allocations are replayed whole: the law of acceptance is fitted to them."""
RIVALS = 2
"""Mixtures of the engine's own that stand in the final: the largest that fit."""


def print_search(request: SearchRequest, output: Output, *, wide: bool, explain: bool) -> None:
    """Search, write the recipe with what was found, and print it: the finalists, and with
    ``explain`` the spans. What was found out is kept as a record."""
    record = search(request, output)
    if record.found_recipe is not None:
        with atomic_write(request.output) as file:
            file.write(record.found_recipe.encode())
    kept = keep_search(record)
    output.emit(record)
    show(shown_search(record), output, wide=wide)
    if explain:
        show(explained(record), output, wide=wide)
    if record.found_recipe is not None:
        output.say(f"confirm it: cook build {request.output}")
    output.say(f"kept as {kept}; cook report --search shows it as a page")


def search(request: SearchRequest, output: Output) -> SearchRecord:
    """The record of the search for the best mix.

    InputError for a recipe that cannot be searched from, and a size that nothing fits into.
    """
    began = time.monotonic()
    request.require_place()
    prepared = prepare(
        request.recipe,
        engines=(request.engine,) if request.engine else (),
        demo=request.demo,
        threads=request.threads,
        unsafe_args=request.unsafe_args,
        output=output,
    )
    ready = PreparedSearch.of(request, prepared)
    published = ready.published()
    for warning in prepared.warnings:
        output.warn(warning)
    ready.require_room(request.size_bytes)
    home = cook_home()
    with Executor(
        Store(home / "store"),
        output,
        logs=home / "logs",
        jobs=request.jobs,
        threads=request.threads,
    ) as executor:
        replays = Replays(ready.deployed, ready.space, executor)
        replays.prepare()
        max_bytes = _max_bytes(ready, executor)
        clock = pace = timing = noise = None
        if request.maximize.timed:
            clock = Clock.of(replays)
            pace = measured_pace(clock, ready.prompts)
            settings = replace(ready.deployed.settings, n_max=pace.n_max)
            ready = replace(ready, deployed=replace(ready.deployed, settings=settings))
            replays = replace(replays, deployed=ready.deployed)
        output.say(
            f"searching among {plural(len(ready.space.ties), 'tie')} of tensors, "
            f"up to {plural(max(map(len, ready.space.types)), 'type')} each, "
            f"in files of at most {size(max_bytes)}"
        )
        ledger = Ledger(replays, ready.prompts, request.budget)
        sensitivity = Sensitivity.of(ready.space, ledger, published)
        found = explored(sensitivity, max_bytes, ready.deployed.settings.n_max, pace)
        contenders, files = _finalists(ready, found, replays)
        if clock is not None and pace is not None:
            contenders, timing, noise = _timed(contenders, files, clock, pace)
    judged = judge(contenders, CONFIDENCE, noise)
    seconds = time.monotonic() - began
    # A tie is written as well, so that it can be built and measured further.
    leader = next(c for c in contenders if c.name == judged.leader)
    text = ready.recipe_with(leader.types) if leader.family != "given" else None
    return findings(ready, found, contenders, judged, timing, text, seconds)


def explored(
    sensitivity: Sensitivity, max_bytes: int, n_max: int, pace: CycleTimes | None = None
) -> Explored:
    """The spans' costs, within the ledger's budget, and the best mix of at most ``max_bytes``: of
    least KLD, or with ``pace`` the fastest in drafts of ``n_max`` tokens."""
    space, ledger, published = sensitivity.space, sensitivity.ledger, sensitivity.table
    until = min(WHOLE, (1 - SPANS) * ledger.left)
    if published is not None:
        sensitivity.compare(max_bytes, until)
    sensitivity.settle(max_bytes, until)
    sensitivity.split(max_bytes, until)
    least = space.least_bytes(sensitivity.spans)
    sizes = np.linspace(least, max_bytes, WHOLE + 1)[:0:-1]
    whole: dict[Mix, WholeMix] = {}
    for size_bytes in sizes:  # the largest first: a small budget is for the size that is sought
        mix, allocation = sensitivity.allocated(int(size_bytes))
        if ledger.left >= 1 or not whole:
            replies = ledger.replay(mix, "candidate", f"least KLD in {size(int(size_bytes))}")
            whole[mix] = WholeMix(allocation.damage, replayed_mix(replies))
    law, warnings = acceptance_law(replayed_mix(sensitivity.base), list(whole.values()), n_max)
    best, _ = sensitivity.allocated(max_bytes)
    if pace is not None and law is not None:

        def speed(damage: float, seconds: float) -> float:
            return predicted_length(law, damage) / pace.cycle_s(seconds)

        costs = sensitivity.costs(seconds=pace.span_s)
        best = sensitivity.mix_of(fastest(costs, max_bytes - space.fixed_bytes, speed))
    csv = sensitivity.agreement() if published is not None else None
    return Explored(sensitivity, best, max_bytes, law, warnings, csv, pace)


def _max_bytes(ready: PreparedSearch, executor: Executor) -> int:
    """Of a file no larger than asked for, which fits with its KV cache and buffers into the memory
    asked for: these are measured on the recipe's own first quant."""
    limit = ready.request.size_bytes
    if ready.request.memory_bytes is not None:
        memory = ready.drafts[0].memory
        assert memory is not None, "the recipe has a score"
        executor.run([memory])
        taken = executor.outcomes.result(memory)
        if taken is None:
            raise executor.outcomes.failures[memory.key].error
        others = taken.kv_bytes + taken.compute_bytes
        limit = min(limit, ready.request.memory_bytes - others)
        ready.require_room(ready.request.memory_bytes - others, "--memory", others)
    return limit


def _finalists(
    ready: PreparedSearch, found: Explored, replays: Replays
) -> tuple[list[Contender], list[QuantizeStep]]:
    """All that stand in the final, replayed on the prompts of the verdict, and their files: the
    recipe's own quants as the recipe makes them, the engine's mixtures, the allocations by KLD and
    by perplexity alone, and what the search found."""
    space, limit = ready.space, found.max_bytes
    entered: list[tuple[str, Family, Mapping[str, str], QuantizeStep]] = [
        (draft.name, "given", types, draft.quantize)
        for draft, types in ready.given()
        if draft.quantize is not None and ready.size_of(types) <= limit
    ]
    own = [types for _, _, types, _ in entered]

    def enter(name: str, family: Family, types: Mapping[str, str]) -> None:
        entered.append((name, family, types, replays.file_of(types)))

    fitting = [(name, types) for name, types in ready.mixtures() if ready.size_of(types) <= limit]
    for name, types in sorted(fitting, key=lambda one: -ready.size_of(one[1]))[:RIVALS]:
        if types not in own:
            enter(f"{name} of the engine", "engine", types)
    least_kld, _ = found.sensitivity.allocated(limit)
    least_nll, _ = found.sensitivity.allocated(limit, nll)
    if found.best != least_kld:
        enter("least KLD", "kld", space.tensor_types(least_kld))
    if least_nll not in (found.best, least_kld):
        enter("least perplexity", "perplexity", space.tensor_types(least_nll))
    enter(ready.found_name, "found", space.tensor_types(found.best))
    files = [file for *_, file in entered]
    replies = replays.of_files(files, ready.verdict)
    contenders = [
        Contender(name, family, types, ready.size_of(types), of)
        for (name, family, types, _), of in zip(entered, replies, strict=True)
    ]
    return contenders, files


def _timed(
    contenders: Sequence[Contender], files: Sequence[QuantizeStep], clock: Clock, pace: CycleTimes
) -> tuple[list[Contender], FinalistTiming, LogSpread | None]:
    """``contenders`` with what their cycles take, measured on their ``files``; how that was done,
    and how far the logarithm of what was measured may be off: None where nothing shows it."""
    timed = clock.timed(files)
    cycles = timed.cycles(pace.n_max)
    # One mix may stand there under several names: its times say nothing of noise twice.
    distinct = list({file.key: row for row, file in enumerate(files)}.values())
    several = len(distinct) > 1 and cycles.shape[1] > 1
    noise = noise_of(np.log(cycles[distinct])) if several else None
    measured_s = np.median(timed.single_s, axis=1)
    off = np.abs(np.array([pace.decode_s(c.types) for c in contenders]) / measured_s - 1)
    timing = FinalistTiming(
        passes=cycles.shape[1],
        noise=noise.half_width(CONFIDENCE) if noise else None,
        law_error=float(off.mean()),
        law_largest_error=float(off.max()),
    )
    seconds = np.median(cycles, axis=1).tolist()
    found = [replace(c, cycle_s=s) for c, s in zip(contenders, seconds, strict=True)]
    return found, timing, noise.of_median(cycles.shape[1]) if noise else None
