"""Records built through the real dataclasses, for the tests of reports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from cook.engines.base import DraftSettings, EngineIdentity
from cook.engines.server_api import DepthCount
from cook.formats.quant_types import Flavour
from cook.formats.sampling import Sampling
from cook.job.sentence import pick_sentence
from cook.provenance import Machine
from cook.record.record import (
    Candidate,
    CandidateKey,
    ChainFigures,
    Draft,
    DraftSpeed,
    Excluded,
    Factors,
    Figures,
    ImatrixCoverage,
    LayerCoverage,
    Objective,
    OutputCheck,
    Pick,
    Prediction,
    PromptRun,
    Quality,
    Record,
    Rejection,
    SampledChain,
    SlotSpeed,
    StepRecord,
    TypeSpan,
)
from cook.report.canvas import Plot
from cook.report.document import Section, Table
from cook.scoring.compare import by_category, by_prompt, figures, interval
from tests.bare_records import CANDIDATE, DRAFT, RECORD

CATEGORIES = ("docstring", "prose", "class")
PROMPTS = 24
BLOCK = 12
"""Prompts of a block; the rest is of the second."""
CONFIDENCE = 0.95


def requests(
    speed: float,
    n_max: int = 0,
    rate: float = 0.6,
    *,
    count: int = PROMPTS,
    slow: tuple[str, ...] = (),
) -> list[PromptRun]:
    """The first ``count`` prompts at about ``speed`` decode tokens/s, ``rate`` of drafted tokens
    accepted; those of the categories ``slow`` take twice the time."""
    made = []
    for place in range(count):
        tokens = 80 + place
        category = CATEGORIES[place % len(CATEGORIES)]
        cycles = round(tokens / (1 + rate * n_max))
        decode_ms = 1000 * tokens / speed * (1 + 0.002 * (place % 5 - 2) * (1 + n_max))
        decode_ms *= 2 if category in slow else 1
        made.append(
            PromptRun(
                id=f"p{place}",
                category=category,
                prompt_n=50,
                prompt_ms=70.0,
                predicted_n=tokens + 1,
                predicted_ms=decode_ms,
                wall_ms=decode_ms + 75.0,
                draft_n=cycles * n_max if n_max else None,
                draft_n_accepted=tokens - cycles if n_max else None,
                tokens=None,
                text="",
                stop="length",
                block=place // BLOCK,
                order=place % BLOCK,
            )
        )
    return made


def draft(name: str, index: int = 0, engine: str = "bundled") -> Draft:
    bpw = 8.5 - 0.9 * (index % 8)
    size = int(2_000_000 * bpw)
    spans = (
        TypeSpan("attention", 0, 3, {"q8_0": 2}, 400_000, 425_000),
        TypeSpan("routed_experts", 1, 2, {"iq1_s": 2, "q2_K": 1}, 900_000, 300_000),
        TypeSpan("routed_experts", 3, 3, {"q2_K": 3}, 900_000, 330_000),
        TypeSpan("embeddings", None, None, {"q4_K": 1}, 500_000, 281_250),
    )
    quality = (4.0 + 0.3 * ((index * 3) % 7), 0.05, 20, 512, 1.02, 0.01 * (index + 1), 0.001)
    return replace(
        DRAFT,
        quant=name,
        engine=engine,
        path=f"/store/quantize/{index:04x}/model.gguf",
        key=f"{index:064x}",
        file_bytes=size + index,
        tensor_bytes=size,
        bpw=bpw,
        quality=Quality(*quality),
        quality_reason=None,
        memory_bytes=size * 2,
        memory_reason=None,
        type_counts={"q8_0": 8, "iq1_s": 4},
        types=spans,
        speed=DraftSpeed(1500.0 + 130 * index, 96),
    )


def parallel_speeds(name: str) -> tuple[SlotSpeed, ...]:
    """Drafting pays with one slot and with two, not with four; at two and four it ran live."""
    found = (
        *((1, None, 100.0), (1, 4, 180.0), (1, 2, 160.0)),
        *((2, None, 150.0), (2, 4, 190.0), (2, 2, 195.0)),
        *((4, None, 220.0), (4, 4, 180.0), (4, 2, 210.0)),
    )
    every = []
    for slots, n_max, speed in found:
        live = slots > 1 and n_max != 4
        every.append(
            SlotSpeed(
                engine="bundled",
                draft=name if n_max else None,
                settings=DraftSettings(n_max) if n_max else None,
                slots=slots,
                requests=12,
                predicted_tokens_per_s=speed,
                predicted_each_tokens_per_s=1.1 * speed / slots,
                live_tokens_per_s=speed / 1.05 if live else None,
                live_each_tokens_per_s=speed / slots if live else None,
                reason=None if live else "predicted only",
            )
        )
    return tuple(every)


def prediction(
    bare: Sequence[PromptRun], runs: Sequence[PromptRun], live: Sequence[PromptRun], n_max: int
) -> Prediction:
    """A forecast of ``runs``, over that of no draft, ``bare``, and next to what ran ``live``."""
    found = figures(runs)
    total = found.decode_ms / 1000
    rate = found.acceptance_rate or 0.0
    drafted = {depth: 400 - 10 * depth for depth in range(1, n_max + 1)}
    guess = Prediction(
        figures=found,
        verify_s=total * 0.6,
        draft_s=total * 0.27,
        mirror_s=total * 0.08,
        sample_s=total * 0.05,
        **over(found, figures(bare)),
        by_depth=tuple(DepthCount(d, n, int(n * rate**d)) for d, n in drafted.items()),
        categories=by_category(runs),
        prompts=by_prompt(runs),
    )
    if not live:
        return guess
    known = {run.id for run in live}
    on_live = figures([run for run in runs if run.id in known])
    ratios = over(on_live, figures(live))
    off_by, decode_off_by = ratios["speedup"] - 1, ratios["decode_speedup"] - 1
    return replace(guess, on_live=on_live, off_by=off_by, decode_off_by=decode_off_by)


def over(found: Figures, base: Figures) -> dict[str, Any]:
    """Both speedups."""
    whole, decode = (
        (objective.of(found) or 0.0) / (objective.of(base) or 0.0)
        for objective in (Objective.END_TO_END_SPEED, Objective.DECODE_SPEED)
    )
    return {"speedup": whole, "decode_speedup": decode}


def ran(one: Candidate, runs: Sequence[PromptRun], bare: Sequence[PromptRun]) -> Candidate:
    """``one`` after it ran live, while no draft had ``bare``."""
    return replace(
        one,
        live=figures(runs),
        reason=None,
        categories=by_category(runs),
        **over(figures(runs), figures(bare)),
        prompts=by_prompt(runs, live=True),
        starts=len({run.block for run in runs}),
    )


def candidate(
    name: str | None,
    index: int = 0,
    n_max: int = 4,
    *,
    live: bool = True,
    predicted: bool = True,
    engine: str = "bundled",
    count: int = PROMPTS,
    slow: tuple[str, ...] = (),
) -> Candidate:
    """One of ``name``'s candidates, dealt the first ``count`` prompts; None is no draft."""
    rate = max(0.1, 0.8 - 0.06 * (index % 8))
    speed = 100.0 if name is None else 180.0 - 9 * index % 70 - abs(n_max - 4) * 4
    length = n_max if name is not None else 0
    runs = requests(speed, length, rate, count=count, slow=slow) if live else []
    said = requests(speed * (1.01 if name is None else 1.04), length, rate, slow=slow)
    made = replace(
        CANDIDATE,
        name="no draft" if name is None else f"{name} n_max={n_max}",
        engine=engine,
        draft=name,
        settings=None if name is None else DraftSettings(n_max=n_max),
        reason="predicted; not among the finalists",
        server_peak_rss_bytes=90_000_000,
        predicted=prediction(requests(101.0), said, runs, length) if predicted else None,
    )
    if not live:
        return made
    bare = requests(100.0, count=count)
    made = replace(
        ran(made, runs, bare),
        command=("llama-server", "-m", "target.gguf", "--port", "8080", "--host", "127.0.0.1"),
    )
    if name is None:
        return made
    sure = interval(runs, bare, Objective.END_TO_END_SPEED, None, CONFIDENCE)
    check = OutputCheck(12, 11, 1, 0, 0, 0.15, 0.04, (57,))
    return replace(made, speedup_interval=sure, output=check)


def record(
    names: tuple[str, ...] = ("Q8_0", "Q4_K_M", "IQ1_S"),
    lengths: tuple[int, ...] = (2, 4, 8),
    *,
    predicted: bool = True,
) -> Record:
    """A whole record: every draft at every length, the first draft's n_max=4 the pick.

    With forecasts the first two drafts ran live at n_max=4, the second on half of the prompts.
    """
    candidates = [candidate(None, predicted=predicted)]
    for index, name in enumerate(names):
        count = BLOCK if predicted and index == 1 else PROMPTS
        for n in lengths:
            live = not predicted or (index < 2 and n == 4)
            one = candidate(name, index, n, live=live, predicted=predicted, count=count)
            candidates.append(one)
    winner = candidates[1 + lengths.index(4)] if 4 in lengths else candidates[1]
    ranking = tuple(c.name for c in sorted(candidates, key=lambda c: -speedup_of(c)))
    pick = Pick(
        candidate=winner.name,
        sentence="",
        maximize="decode_speed",
        confidence=CONFIDENCE,
        margin=0.01,
        value=winner.live.decode_speed if winner.live else None,
        ranking=ranking,
        excluded=(Excluded("IQ1_S n_max=16", "too large"),),
        decided=True,
        leader=winner.name,
        rival=next(name for name in ranking if name != winner.name),
        rival_low=0.93,
        rival_high=0.98,
        within={name: 0.97 if name == winner.name else 0.02 for name in ranking},
        start_sd=0.008,
    )
    made = replace(
        RECORD,
        cook="0.2.0",
        created="2026-11-21T18:00:00Z",
        command=("cook", "build", "recipes/demo.yaml"),
        machine=Machine("A processor", 2, 24 << 30, "Linux 6.1", ()),
        engines={"bundled": EngineIdentity(Flavour.LLAMA_CPP, "b9999 (0c1e570)", None, "ab" * 32)},
        recipe="demo",
        recipe_sha256="cd" * 32,
        recipe_text="version: 1\nname: demo\n",
        target="/models/target-q8_0.gguf",
        target_bytes=40_000_000,
        prompts_sha256="ef" * 32,
        max_tokens=192,
        source_quality=Quality(3.95, 0.05, 20, 512),
        drafts=tuple(draft(name, index) for index, name in enumerate(names)),
        candidates=tuple(candidates),
        left_out=(Excluded("left out", "about 30 s a candidate"),),
        pick=pick,
        warnings=("4 of 20 timings were disturbed",),
        steps=(
            step("imatrix (bundled)", "12" * 32, "llama-imatrix", "-m", "a b"),
            StepRecord("quantize X", "quantize", "34" * 32, "failed", None, (), "it crashed"),
        ),
        slots=parallel_speeds(names[0]) if predicted else (),
        imatrix=ImatrixCoverage(
            *(100, 512, 4.1, 20, 96, 90),
            layers=(LayerCoverage(1, 48, 48), LayerCoverage(2, 48, 42)),
            skipped=("blk.3.ffn_up_exps.weight",),
            skipped_count=1,
        ),
        chains=(sampled_chain(names),) if predicted else (),
        factors=(Factors("bundled", 0.962, 0.97, 2),) if predicted else (),
        together=True,
    )
    return said_of(made)


def speedup_of(one: Candidate) -> float:
    predicted = one.predicted.decode_speedup if one.predicted else None
    return (one.decode_speedup if one.live is not None else predicted) or 0.0


def step(label: str, key: str, *command: str) -> StepRecord:
    """One that ran; the first word of ``label`` is its kind."""
    return StepRecord(label, label.partition(" ")[0], key, "ran", 9.0, command)


def with_candidates(record: Record, *changed: Candidate) -> Record:
    """``record`` with these in the places of those of their names, or else last, and the sentence
    that follows."""
    known = {c.name: c for c in changed}
    candidates = [known.pop(c.name, c) for c in record.candidates]
    return said_of(replace(record, candidates=(*candidates, *known.values())))


def said_of(record: Record, **changes: Any) -> Record:
    """``record`` with these changes of its pick, and the sentence that a build writes."""
    pick = replace(record.pick, **changes)
    winner = record.candidate(pick.candidate or "")
    assert winner is not None
    sentence = pick_sentence(pick, winner, record.candidates, 0.0)
    return replace(record, pick=replace(pick, sentence=sentence))


def forecast_only() -> Record:
    """Nothing ran live."""
    whole = record()
    unseen: dict[str, Any] = dict.fromkeys(("on_live", "off_by", "decode_off_by"))
    nothing: dict[str, Any] = dict.fromkeys(
        ("live", "prompts", "speedup", "speedup_interval", "decode_speedup")
    )
    candidates = (
        replace(c, **nothing, predicted=replace(c.predicted, **unseen) if c.predicted else None)
        for c in whole.candidates
    )
    whole = replace(whole, factors=(), together=None, pick=replace(whole.pick, value=None))
    return with_candidates(whole, *candidates)


def easy_half() -> Record:
    """A draft that left after half of the prompts, on which everything is faster."""
    hard = CATEGORIES[0]
    runs, bare = (
        [one for one in made if one.category != hard]
        for made in (requests(179.0, 4, 0.8), requests(100.0))
    )
    easy = replace(ran(candidate("Q4_K_M", 0, 4), runs, bare), predicted=None)
    return with_candidates(record(), candidate(None), candidate("Q8_0", 0, 4, slow=(hard,)), easy)


def two_engines() -> Record:
    """A second engine, whose no draft is the faster one; one draft ran live on it."""
    whole = record(("Q8_0",), (2, 4))
    bare = requests(110.0)
    fast = [ran(candidate(None), bare, bare)]
    guess = prediction(requests(108.0), requests(108.0), bare, 0)
    fast[0] = replace(fast[0], predicted=guess)
    fast += [candidate("Q8_0", 1, n, live=n == 4) for n in (2, 4)]
    every = [*whole.candidates, *(replace(c, name=f"{c.name} (ik)", engine="ik") for c in fast)]
    whole = replace(
        whole,
        engines={**whole.engines, "ik": next(iter(whole.engines.values()))},
        drafts=(*whole.drafts, draft("Q8_0", 1, "ik")),
        factors=(*whole.factors, Factors("ik", 1.02, 1.01, 1)),
    )
    base = figures(bare)
    return with_candidates(
        whole, *(replace(c, **over(c.live, base)) if c.live is not None else c for c in every)
    )


def undecided(record: Record) -> Record:
    """The same with the pair still open."""
    within = dict.fromkeys(record.pick.within, 0.4)
    ends = {"rival_low": 0.985, "rival_high": 1.031}
    return said_of(record, decided=False, **ends, seconds_to_decide=400.0, within=within)


def sampled_chain(names: tuple[str, ...]) -> SampledChain:
    """No draft and every draft at n_max=2 at a temperature, over eight prompts."""

    def one(name: str | None, index: int) -> ChainFigures:
        rate = max(0.05, 0.5 - 0.05 * (index % 8))
        runs = requests(125.0 - index, 2, rate, count=8) if name else requests(100.0, count=8)
        return ChainFigures(
            f"{name} n_max=2" if name else "no draft",
            CandidateKey("bundled", name, DraftSettings(2) if name else None),
            figures(runs),
            by_prompt(runs),
            Rejection(480.0, 300.0, 240.0, 130.0) if name else None,
        )

    drafting = (one(name, index) for index, name in enumerate(names))
    return SampledChain("bundled", Sampling(0.8, top_p=0.9), (one(None, 0), *drafting))


def bare() -> Record:
    """A recipe without a score whose every figure is missing."""
    drafts = tuple(
        replace(DRAFT, quant=d.quant, engine=d.engine, key=d.key, memory_reason=None)
        for d in record().drafts
    )
    return replace(RECORD, recipe="demo", drafts=drafts, engines={}, target="", prompts="")


SCORED: dict[str, Callable[[], Record]] = {
    "decided": record,
    "undecided": lambda: undecided(record()),
    "live only": lambda: record(predicted=False),
    "forecast only": forecast_only,
    "a part that is easy": easy_half,
    "two engines": two_engines,
    "end to end": lambda: replace(
        record(), pick=replace(record().pick, maximize="end_to_end_speed")
    ),
}
"""Records whose printed figures have to divide."""

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(2)> id="',
    "$\\frac{x}{0}$ {{ 7*7 }} {% raw %}",
    "](javascript:alert(3)) | `cell` @everyone #1 ~~x~~",
    "long-" + "x" * 600,
    "\u202enames\u0007 in\nlines 漢字",
)


def hostile() -> Record:
    """64 drafts whose names, paths and reasons try to be markup, and figures that cannot be."""
    names = tuple(f"{HOSTILE[i % len(HOSTILE)]} {i}" for i in range(64))
    whole = record(names, (2, 4, 8))
    known = figures(requests(90.0, 4))
    broken = replace(known, decode_speed=None, end_to_end_speed=0.0, prompt_ms=None)
    candidates = list(whole.candidates)
    candidates[2] = replace(candidates[2], live=broken)
    candidates[5] = replace(candidates[5], live=None, predicted=None, reason=HOSTILE[0])
    drafts = list(whole.drafts)
    drafts[0] = replace(drafts[0], quality=Quality(1e9, 1e9, 1, 512), path=HOSTILE[1])
    drafts[1] = replace(drafts[1], speed=DraftSpeed(0.0, 0), file_bytes=0)
    drafts[2] = replace(
        drafts[2], types=(TypeSpan(HOSTILE[0], 0, 90, {HOSTILE[1]: 3, HOSTILE[4]: 1}, 0, None),)
    )
    return replace(
        whole,
        recipe=HOSTILE[0],
        recipe_text="x: `````\n" + HOSTILE[0],
        command=("cook", *HOSTILE),
        drafts=tuple(drafts),
        candidates=tuple(candidates),
        warnings=HOSTILE * 20,
        left_out=tuple(Excluded(n, HOSTILE[1]) for n in names),
        pick=replace(whole.pick, sentence="; ".join(HOSTILE)),
        engines={HOSTILE[0]: next(iter(whole.engines.values()))},
        machine=replace(whole.machine, accelerators=HOSTILE),
    )


def of_name(record: Record, name: str) -> Any:
    """The candidate."""
    return record.candidate(name)


def tables_of(section: Section) -> list[Table]:
    return [block for block in section.blocks if isinstance(block, Table)]


def plots_of(section: Section) -> list[Plot]:
    return [block for block in section.blocks if isinstance(block, Plot)]
