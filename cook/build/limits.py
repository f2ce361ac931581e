"""Which drafts may not win by a recipe's ``pick.subject_to``, known before any live run."""

from __future__ import annotations

from cook.recipe.schema import SubjectToSpec
from cook.record.record import Draft

GIB = 1 << 30


def over_limits(draft: Draft, limits: SubjectToSpec) -> str | None:
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
