"""Candidates and drafts with just the figures that a pick looks at."""

from __future__ import annotations

from dataclasses import replace

from cook.build.choose import GIB
from cook.engines.base import DraftSettings
from cook.record.measured import Figures, Quality
from cook.record.record import Candidate, CandidateKey, Draft
from cook.scoring.price import NOTHING, PricedReplies
from tests.bare_records import CANDIDATE


def figures(speed: float, accepted: int | None = None) -> Figures:
    return Figures(
        requests=10,
        prompt_tokens=100,
        tokens=1000,
        decode_ms=1000 * 1000 / speed,
        wall_ms=1000 * 1000 / speed,
        drafted=None if accepted is None else 1000,
        accepted=accepted,
        cycles=None if accepted is None else 1000 - accepted,
        decode_speed=speed,
        end_to_end_speed=speed,
    )


def candidate(draft: str | None, speed: float | None, accepted: int | None = None) -> Candidate:
    return replace(
        CANDIDATE,
        name=draft or "no draft",
        draft=draft,
        settings=DraftSettings(4) if draft else None,
        cache_type="f16" if draft else None,
        live=None if speed is None else figures(speed, accepted),
        reason="the server crashed" if speed is None else None,
        speedup=None if speed is None else speed / 10,
    )


def draft(name: str, gib: float, kld: float | None = 0.01) -> Draft:
    quality = None if kld is None else Quality(8.0, 0.1, 10, 512, 1.01, kld, 0.001)
    return Draft(
        quant=name,
        engine="bundled",
        path=f"/{name}",
        key=name,
        file_bytes=round(gib * GIB),
        tensor_bytes=round(gib * GIB),
        bpw=4.0,
        quality=quality,
        quality_reason=None if quality else "not asked for",
        memory_bytes=round((gib + 1) * GIB),
        memory_reason=None,
        type_counts={},
    )


DRAFTS = {"small": draft("small", 1), "large": draft("large", 4)}
SURE = {("small", "large"): (0.8, 0.9), ("no draft", "large"): (0.7, 0.8)}

UNPRICED = PricedReplies(
    setting=DraftSettings(4),
    draft_n=0,
    draft_n_accepted=0,
    cycles=0,
    steps=0,
    tokens=0,
    decode_tokens_per_s=0,
    end_to_end_tokens_per_s=0,
    breakdown=NOTHING,
    categories={},
    per_reply_s=(),
)
"""For forecasts of which only the requests are looked at."""


def key(draft: str | None, n_max: int = 4) -> CandidateKey:
    """Of :func:`candidate`."""
    if draft is None:
        return CandidateKey("bundled")
    return CandidateKey("bundled", draft, DraftSettings(n_max), "f16")
