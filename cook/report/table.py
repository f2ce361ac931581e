"""The tables that end a build: one row a candidate, what was not measured left empty."""

from __future__ import annotations

from cook.record.measured import Figures
from cook.record.record import Candidate, Draft, Record
from cook.units import size

Columns = tuple[tuple[str, str], ...]

_SCORED = (
    "size",
    "bpw",
    "PPL",
    "KLD",
    "accepted",
    "acceptance",
    "tokens/cycle",
    "decode t/s",
    "speedup",
    "end-to-end t/s",
    "speedup",
)
_PREDICTED = ("predicted t/s", "best?")


def columns(record: Record) -> Columns:
    """(title, alignment) of :func:`rows`."""
    titles = _SCORED + (_PREDICTED if _forecast(record) else ())
    return (("candidate", "left"), *((title, "right") for title in titles))


def rows(record: Record) -> list[tuple[str | None, ...]]:
    """One row a candidate, fastest first, then by prediction; the pick marked with ``*``.

    Counts of a candidate that did not run live are those of its replay, marked ``~``.
    """
    return [_row(record, candidate) for candidate in _in_order(record)]


def _in_order(record: Record) -> list[Candidate]:
    order = {name: index for index, name in enumerate(record.pick.ranking)}

    def place(candidate: Candidate) -> tuple[int, float]:
        guess = candidate.predicted.figures.end_to_end_speed if candidate.predicted else None
        return order.get(candidate.name, len(order)), -(guess or 0.0)

    return sorted(record.candidates, key=place)


def short_rows(record: Record) -> list[tuple[str | None, ...]]:
    """Of :func:`rows`, no draft, what ran live and the first of each draft: those to look at."""
    kept: set[tuple[str, str | None]] = set()
    short = []
    for candidate in _in_order(record):
        draft = (candidate.engine, candidate.draft)
        if candidate.live is not None or candidate.draft is None or draft not in kept:
            short.append(_row(record, candidate))
        kept.add(draft)
    return short


def draft_columns() -> Columns:
    """(title, alignment) of :func:`draft_rows`."""
    return (("quant", "left"), *((t, "right") for t in ("size", "bpw", "PPL", "KLD")))


def draft_rows(record: Record) -> list[tuple[str | None, ...]]:
    """Quants of a recipe without a score."""
    return [
        (d.quant, size(d.file_bytes), _bpw(d), _perplexity(d) or d.quality_reason, _kld(d))
        for d in record.drafts
    ]


def _forecast(record: Record) -> bool:
    return any(c.predicted is not None for c in record.candidates)


def _row(record: Record, candidate: Candidate) -> tuple[str | None, ...]:
    draft = record.draft(candidate.draft)
    live = candidate.live
    counted = live or (candidate.predicted.figures if candidate.predicted else None)
    mark = "* " if candidate.name == record.pick.candidate else "  "
    row = (
        mark + candidate.name,
        size(draft.file_bytes) if draft else None,
        _bpw(draft),
        _perplexity(draft),
        _kld(draft),
        *_counts(counted, "" if live else "~"),
        _speed(live.decode_speed) if live else None,
        f"{candidate.decode_speedup:.2f}x" if candidate.decode_speedup is not None else None,
        _speed(live.end_to_end_speed) if live else None,
        _speedup(candidate),
    )
    return row + (_predicted(candidate) if _forecast(record) else ())


def _counts(figures: Figures | None, mark: str) -> tuple[str | None, str | None, str | None]:
    if figures is None or figures.acceptance_rate is None:
        return None, None, None
    length = figures.acceptance_length
    return (
        f"{mark}{figures.accepted}/{figures.drafted}",
        f"{mark}{figures.acceptance_rate:.1%}",
        f"{mark}{length:.2f}" if length is not None else None,
    )


def _predicted(candidate: Candidate) -> tuple[str | None, str | None]:
    found = candidate.predicted
    if found is None:
        return None, None
    chance = f"{found.probability_best:.0%}" if found.probability_best is not None else None
    return _speed(found.figures.end_to_end_speed), chance


def _speed(tokens_per_s: float | None) -> str | None:
    return f"{tokens_per_s:.2f}" if tokens_per_s is not None else None


def _bpw(draft: Draft | None) -> str | None:
    return f"{draft.bpw:.2f}" if draft and draft.bpw is not None else None


def _perplexity(draft: Draft | None) -> str | None:
    if draft is None or draft.quality is None:
        return None
    return f"{draft.quality.perplexity:.4f} ± {draft.quality.perplexity_error:.4f}"


def _kld(draft: Draft | None) -> str | None:
    if draft is None or draft.quality is None or draft.quality.mean_kld is None:
        return None
    return f"{draft.quality.mean_kld:.4f} ± {draft.quality.mean_kld_error or 0:.4f}"


def _speedup(candidate: Candidate) -> str | None:
    if candidate.speedup is None:
        return None
    text = f"{candidate.speedup:.2f}x"
    if candidate.speedup_interval:
        interval = candidate.speedup_interval
        text += f" ({interval.low:.2f}-{interval.high:.2f})"
    return text
