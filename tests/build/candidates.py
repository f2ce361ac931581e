"""Candidates and drafts with just the figures that a pick looks at."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cook.build.choose import GIB
from cook.engines.base import DraftSettings
from cook.record.measured import Figures, Quality
from cook.record.objective import Objective
from cook.record.prompt_runs import PromptRun
from cook.record.record import Candidate, CandidateKey, Draft
from cook.scoring.price import NOTHING, PricedReplies
from cook.scoring.rounds import Round, Rounds
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
    prompt_s=(),
    per_reply_s=(),
)
"""For forecasts of which only the requests are looked at."""


def key(draft: str | None, n_max: int = 4) -> CandidateKey:
    """Of :func:`candidate`."""
    if draft is None:
        return CandidateKey("bundled")
    return CandidateKey("bundled", draft, DraftSettings(n_max), "f16")


def rounds(
    *candidates: Candidate,
    objective: Objective = Objective.END_TO_END_SPEED,
    noise: float = 0.001,
    prompts: int = 16,
    seed: int = 1,
) -> Rounds[CandidateKey]:
    """Two shares of the prompts, each twice, run by the ``candidates`` that have live figures,
    each at its speed but for ``noise`` of the round."""
    rng = np.random.default_rng(seed)
    common = rng.lognormal(0, 0.2, prompts)
    found = []
    for share in (0, 1, 0, 1):
        runs = {}
        for one in candidates:
            if one.live is not None and one.live.decode_speed is not None:
                slower = float(np.exp(rng.normal(0, noise))) * 100_000 / one.live.decode_speed
                accepted = one.live.accepted
                runs[one.key] = tuple(
                    PromptRun(
                        id=f"p{i}",
                        category="ab"[i // 2 % 2],
                        prompt_n=10,
                        prompt_ms=0.0,
                        predicted_n=101,
                        predicted_ms=slower * float(common[i]),
                        wall_ms=slower * float(common[i]),
                        draft_n=None if accepted is None else 1000,
                        draft_n_accepted=accepted,
                        tokens=None,
                        text="",
                        stop="",
                    )
                    for i in range(share, prompts, 2)
                )
        found.append(Round(share, runs))
    return Rounds(tuple(found), objective)
