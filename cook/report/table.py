"""The table that ends a build: one row a candidate, what was not measured left empty."""

from __future__ import annotations

from cook.report.record import Candidate, Draft, Record

GIB = 1 << 30
MIB = 1 << 20

COLUMNS = (
    "candidate",
    "size",
    "bpw",
    "PPL",
    "KLD",
    "accepted",
    "acceptance",
    "tokens/cycle",
    "decode t/s",
    "end-to-end t/s",
    "speedup",
)


def rows(record: Record) -> list[tuple[str, ...]]:
    """Rows under :data:`COLUMNS`, fastest first, the pick marked with ``*``."""
    order = {name: index for index, name in enumerate(record.pick.ranking)}
    candidates = sorted(record.candidates, key=lambda c: order.get(c.name, len(order)))
    return [_row(record, c) for c in candidates]


def size(size_bytes: int | None) -> str:
    """Human size with its unit; empty when unknown."""
    if size_bytes is None:
        return ""
    if size_bytes >= GIB:
        return f"{size_bytes / GIB:.2f} GiB"
    return f"{size_bytes / MIB:.2f} MiB"


def _row(record: Record, candidate: Candidate) -> tuple[str, ...]:
    draft = record.draft(candidate.draft)
    live = candidate.live
    mark = "* " if candidate.name == record.pick.candidate else "  "
    rate = live.acceptance_rate if live else None
    length = live.acceptance_length if live else None
    return (
        mark + candidate.name,
        size(draft.file_bytes) if draft else "",
        f"{draft.bpw:.2f}" if draft and draft.bpw is not None else "",
        _perplexity(draft),
        _kld(draft),
        f"{live.accepted}/{live.drafted}" if live and live.drafted else "",
        f"{rate:.1%}" if rate is not None else "",
        f"{length:.2f}" if length is not None else "",
        f"{live.decode_speed:.2f}" if live else candidate.reason or "",
        f"{live.end_to_end_speed:.2f}" if live else "",
        _speedup(candidate),
    )


def _perplexity(draft: Draft | None) -> str:
    if draft is None or draft.quality is None:
        return ""
    return f"{draft.quality.perplexity:.4f} ± {draft.quality.perplexity_error:.4f}"


def _kld(draft: Draft | None) -> str:
    if draft is None or draft.quality is None or draft.quality.mean_kld is None:
        return ""
    return f"{draft.quality.mean_kld:.4f} ± {draft.quality.mean_kld_error or 0:.4f}"


def _speedup(candidate: Candidate) -> str:
    if candidate.speedup is None:
        return ""
    text = f"{candidate.speedup:.2f}x"
    if candidate.speedup_interval:
        interval = candidate.speedup_interval
        text += f" ({interval.low:.2f}-{interval.high:.2f})"
    return text
