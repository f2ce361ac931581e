"""Which drafts may not win by a recipe's ``pick.subject_to``, known before any live run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cook.record.record import Draft

GIB = 1 << 30


@dataclass(frozen=True)
class Limits:
    """``subject_to`` of a recipe; None means no limit."""

    size_gib: float | None = None
    memory_gib: float | None = None
    bpw: float | None = None
    perplexity_ratio: float | None = None
    kld: float | None = None


def over_the_limits(drafts: Iterable[Draft], limits: Limits) -> dict[str, str]:
    """Draft -> why it may not win, of those over ``limits``."""
    reasons = ((draft.quant, over_limits(draft, limits)) for draft in drafts)
    return {name: reason for name, reason in reasons if reason is not None}


def over_limits(draft: Draft, limits: Limits) -> str | None:
    """The first limit that ``draft`` does not keep, or could not be measured against."""
    quality = draft.quality
    checks = (
        ("size_gib", limits.size_gib, _gib(draft.file_bytes), None),
        (
            "memory_gib",
            limits.memory_gib,
            _gib(draft.device_bytes or draft.memory_bytes),
            draft.memory_reason,
        ),
        ("bpw", limits.bpw, draft.bpw, None),
        (
            "perplexity_ratio",
            limits.perplexity_ratio,
            quality.perplexity_ratio if quality else None,
            draft.quality_reason,
        ),
        ("kld", limits.kld, quality.mean_kld if quality else None, draft.quality_reason),
    )
    for name, limit, value, reason in checks:
        if limit is None:
            continue
        if value is None:
            return f"{name} is limited to {limit:g} but was not measured" + (
                f" ({reason})" if reason else ""
            )
        if value > limit:
            return f"{name} {value:.4g} is over the limit of {limit:g}"
    return None


def _gib(size_bytes: int | None) -> float | None:
    return size_bytes / GIB if size_bytes is not None else None
