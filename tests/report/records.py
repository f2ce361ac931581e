"""Records built through the real dataclasses, for the tests of reports."""

from __future__ import annotations

from dataclasses import replace

from cook.engines.base import DraftSettings, EngineIdentity
from cook.engines.server_api import DepthCount
from cook.formats.quant_types import Flavour
from cook.formats.sampling import Sampling
from cook.provenance import Machine
from cook.record.measured import (
    DraftSpeed,
    Figures,
    ImatrixCoverage,
    Interval,
    LayerCoverage,
    OutputCheck,
    Prediction,
    PromptFigures,
    Quality,
    Rejection,
    SlotSpeed,
    TypeSpan,
)
from cook.record.record import (
    SCHEMA_VERSION,
    Candidate,
    CandidateKey,
    Certainty,
    ChainFigures,
    Draft,
    Excluded,
    Pick,
    Record,
    SampledChain,
    StepRecord,
)
from tests.bare_records import DRAFT

CATEGORIES = ("docstring", "prose", "class")
INTERVAL = Interval(1.42, 1.61, 0.95, "paired bootstrap")


def figures(
    *, tokens: int = 1000, speed: float = 100.0, n_max: int = 0, rate: float = 0.6
) -> Figures:
    """Consistent counts: ``speed`` decode tokens/s, ``rate`` of the drafted tokens accepted."""
    decode_ms = 1000 * tokens / speed
    cycles = round(tokens / (1 + rate * n_max)) if n_max else None
    accepted = tokens - cycles if cycles else None
    return Figures(
        requests=12,
        prompt_tokens=600,
        tokens=tokens,
        decode_ms=decode_ms,
        wall_ms=decode_ms + 900.0,
        drafted=cycles * n_max if cycles else None,
        accepted=accepted,
        cycles=cycles,
        decode_speed=speed,
        end_to_end_speed=1000 * tokens / (decode_ms + 900.0),
        prompt_ms=850.0,
    )


def draft(name: str, index: int = 0, engine: str = "bundled") -> Draft:
    bpw = 8.5 - 0.9 * (index % 8)
    size = int(2_000_000 * bpw)
    spans = (
        TypeSpan("attention", 0, 3, {"q8_0": 2}, 400_000, 425_000),
        TypeSpan("routed_experts", 1, 2, {"iq1_s": 2, "q2_K": 1}, 900_000, 300_000),
        TypeSpan("routed_experts", 3, 3, {"q2_K": 3}, 900_000, 330_000),
        TypeSpan("embeddings", None, None, {"q4_K": 1}, 500_000, 281_250),
    )
    return Draft(
        quant=name,
        engine=engine,
        path=f"/store/quantize/{index:04x}/model.gguf",
        key=f"{index:064x}",
        file_bytes=size + index,
        tensor_bytes=size,
        bpw=bpw,
        quality=Quality(
            4.0 + 0.3 * ((index * 3) % 7), 0.05, 20, 512, 1.02, 0.01 * (index + 1), 0.001
        ),
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
    return tuple(
        SlotSpeed(
            engine="bundled",
            draft=name if n_max else None,
            settings=DraftSettings(n_max) if n_max else None,
            slots=slots,
            requests=12,
            predicted_tokens_per_s=speed,
            predicted_each_tokens_per_s=1.1 * speed / slots,
            live_tokens_per_s=speed / 1.05 if slots > 1 and n_max != 4 else None,
            live_each_tokens_per_s=speed / slots if slots > 1 and n_max != 4 else None,
            reason=None if slots > 1 and n_max != 4 else "predicted only",
        )
        for slots, n_max, speed in found
    )


def prediction(index: int, n_max: int, rate: float, speed: float) -> Prediction:
    found = figures(speed=speed * 1.01, n_max=n_max, rate=rate)
    total = found.decode_ms / 1000
    return Prediction(
        figures=found,
        verify_s=total * 0.6,
        draft_s=total * 0.25,
        mirror_s=total * 0.06,
        sample_s=total * 0.04,
        overhead_s=total * 0.05,
        probability_best=0.82 if index == 0 else 0.05,
        off_by=0.012,
        off_by_interval=Interval(0.99, 1.04, 0.95, "paired bootstrap"),
        by_depth=tuple(
            DepthCount(d, 400 - 10 * d, int((400 - 10 * d) * rate**d)) for d in range(1, n_max + 1)
        ),
        categories={
            c: figures(tokens=300, speed=speed, n_max=n_max, rate=max(0.05, rate - 0.1 * i))
            for i, c in enumerate(CATEGORIES)
        },
    )


def candidate(
    name: str | None,
    index: int = 0,
    n_max: int = 4,
    *,
    live: bool = True,
    predicted: bool = True,
    engine: str = "bundled",
) -> Candidate:
    """One of ``name``'s candidates; None is no draft."""
    rate = max(0.1, 0.8 - 0.06 * (index % 8))
    speed = 100.0 if name is None else 180.0 - 9 * index % 70 - abs(n_max - 4) * 4
    length = n_max if name is not None else 0
    found = figures(speed=speed, n_max=length, rate=rate)
    return Candidate(
        name="no draft" if name is None else f"{name} n_max={n_max}",
        engine=engine,
        draft=name,
        settings=None if name is None else DraftSettings(n_max=n_max),
        cache_type=None,
        live=found if live else None,
        reason=None if live else "predicted; not among the finalists",
        categories={c: figures(speed=speed, n_max=length, rate=rate) for c in CATEGORIES}
        if live
        else {},
        speedup=(found.end_to_end_speed or 0) / 100 if live else None,
        speedup_interval=INTERVAL if live and name is not None else None,
        decode_speedup=speed / 100 if live else None,
        output=OutputCheck(12, 11, 1, 0, 0, 0.15, 0.04, (57,)) if live and name else None,
        server_peak_rss_bytes=90_000_000,
        command=("llama-server", "-m", "target.gguf", "--port", "8080", "--host", "127.0.0.1")
        if live
        else (),
        predicted=prediction(index, length, rate, speed) if predicted else None,
    )


def record(
    names: tuple[str, ...] = ("Q8_0", "Q4_K_M", "IQ1_S"),
    lengths: tuple[int, ...] = (2, 4, 8),
    *,
    predicted: bool = True,
) -> Record:
    """A whole record: every draft at every length, the first draft's n_max=4 the pick."""
    candidates = [candidate(None, predicted=predicted)]
    for index, name in enumerate(names):
        candidates += [
            candidate(
                name, index, n, live=not predicted or (index < 2 and n == 4), predicted=predicted
            )
            for n in lengths
        ]
    winner = f"{names[0]} n_max=4"
    chains = (sampled_chain(names),) if predicted else ()
    return Record(
        schema_version=SCHEMA_VERSION,
        cook="0.2.0",
        created="2026-11-21T18:00:00Z",
        command=("cook", "build", "recipes/demo.yaml"),
        machine=Machine("A processor", 2, 24 << 30, "Linux 6.1", ()),
        engines={"bundled": EngineIdentity(Flavour.LLAMA_CPP, "b9999 (0c1e570)", None, "ab" * 32)},
        recipe="demo",
        recipe_sha256="cd" * 32,
        recipe_text="version: 1\nname: demo\n",
        demo=False,
        target="/models/target-q8_0.gguf",
        target_bytes=40_000_000,
        prompts="demo",
        prompts_sha256="ef" * 32,
        max_tokens=192,
        temperature=0.0,
        source_quality=Quality(3.95, 0.05, 20, 512),
        drafts=tuple(draft(name, index) for index, name in enumerate(names)),
        candidates=tuple(candidates),
        left_out=(Excluded("left out", "about 30 s a candidate"),),
        pick=Pick(
            candidate=winner,
            sentence=f"{winner}: 180.00 t/s decode, 1.80x no draft.",
            maximize="decode_speed",
            confidence=0.95,
            value=180.0,
            ranking=(winner, "no draft"),
            ties=(),
            excluded=(Excluded("IQ1_S n_max=8", "predicted; not among the finalists"),),
            certainty=Certainty(True, 0.01, within=0.97, best=0.9, leader=winner),
        ),
        warnings=("4 of 20 timings were disturbed",),
        steps=(
            StepRecord(
                "imatrix (bundled)",
                "imatrix",
                "12" * 32,
                "ran",
                9.0,
                ("llama-imatrix", "-m", "a b"),
            ),
            StepRecord("quantize X", "quantize", "34" * 32, "failed", None, (), "it crashed"),
        ),
        slots=parallel_speeds(names[0]) if predicted else (),
        imatrix=ImatrixCoverage(
            chunks=100,
            context=512,
            perplexity=4.1,
            entries=20,
            experts_total=96,
            experts_covered=90,
            layers=(LayerCoverage(1, 48, 48), LayerCoverage(2, 48, 42)),
            skipped=("blk.3.ffn_up_exps.weight",),
            skipped_count=1,
        ),
        chains=chains,
    )


def sampled_chain(names: tuple[str, ...]) -> SampledChain:
    """No draft and every draft at n_max=2 at a temperature, over eight prompts."""
    count = 8

    def one(name: str | None, index: int) -> ChainFigures:
        rate = max(0.05, 0.5 - 0.05 * (index % 8)) if name is not None else None
        accepted = round(60 * rate) if rate is not None else None
        decode_ms = 1000.0 if name is None else 800.0 + 10 * index
        wall_ms = tuple(decode_ms + 50 + 7 * prompt for prompt in range(count))
        prompts = PromptFigures(
            ids=tuple(f"p{i}" for i in range(count)),
            categories=("prose",) * count,
            tokens=(100,) * count,
            decode_ms=(decode_ms,) * count,
            wall_ms=wall_ms,
            drafted=(60 if name is not None else None,) * count,
            accepted=(accepted,) * count,
        )
        found = replace(
            figures(tokens=100 * count, speed=100_000 / decode_ms),
            drafted=60 * count if name is not None else None,
            accepted=accepted * count if accepted is not None else None,
            cycles=30 * count if name is not None else None,
            end_to_end_speed=1000 * 100 * count / sum(wall_ms),
        )
        settings = DraftSettings(2) if name is not None else None
        return ChainFigures(
            "no draft" if name is None else f"{name} n_max=2",
            CandidateKey("bundled", name, settings),
            found,
            prompts,
            Rejection(480.0, 300.0, 240.0, 130.0) if name is not None else None,
        )

    drafting = (one(name, index) for index, name in enumerate(names))
    return SampledChain("bundled", Sampling(0.8, top_p=0.9), (one(None, 0), *drafting))


def bare() -> Record:
    """A recipe without a score whose every figure is missing."""
    whole = record()
    empty = tuple(
        replace(DRAFT, quant=d.quant, engine=d.engine, key=d.key, memory_reason=None)
        for d in whole.drafts
    )
    nothing = Pick(None, "nothing qualifies: ", "end_to_end_speed", 0.95, None, (), (), ())
    return replace(
        whole,
        drafts=empty,
        candidates=(),
        left_out=(),
        pick=nothing,
        warnings=(),
        steps=(),
        imatrix=None,
        source_quality=None,
        slots=(),
        chains=(),
        engines={},
        target="",
        prompts="",
    )


HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(2)> id="',
    "$\\frac{x}{0}$ {{ 7*7 }} {% raw %}",
    "](javascript:alert(3)) | `cell` @everyone #1 ~~x~~",
    "long-" + "x" * 600,
    "\u202enames\u0007 in\nlines 漢字",
)


def hostile() -> Record:
    """64 drafts whose names, paths and reasons try to be markup, and figures that are none."""
    from math import inf, nan

    names = tuple(f"{HOSTILE[i % len(HOSTILE)]} {i}" for i in range(64))
    whole = record(names, (2, 4, 8))
    broken = replace(figures(n_max=4), decode_speed=nan, end_to_end_speed=inf, prompt_ms=nan)
    candidates = list(whole.candidates)
    candidates[2] = replace(candidates[2], live=broken)
    candidates[5] = replace(candidates[5], live=None, predicted=None, reason=HOSTILE[0])
    drafts = list(whole.drafts)
    drafts[0] = replace(drafts[0], quality=Quality(nan, inf, 1, 512), path=HOSTILE[1])
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
