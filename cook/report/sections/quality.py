"""Section: perplexity and KL divergence against size, with the Pareto front."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cook.record.measured import Quality
from cook.record.record import Record
from cook.report.canvas import Named, Plot, Sheet
from cook.report.compared import finite, label_of, order_of, picked_draft
from cook.report.document import Block, Section, Table, Text, figures
from cook.report.numbers import binary_unit, divergence, number, perplexity
from cook.units import size

TITLE = "Quality against size"
MOST_LABELS = 12


@dataclass(frozen=True)
class QualityPoint:
    """One draft: bytes, a figure where less is better, and its standard error."""

    name: str
    size_bytes: int
    figure: float
    error: float


def section(record: Record) -> Section:
    """Two plots, PPL and KLD, and the table of both."""
    perplexities = _points(record, lambda q: (q.perplexity, q.perplexity_error))
    divergences = _points(record, lambda q: (q.mean_kld, q.mean_kld_error))
    if not perplexities and not divergences:
        reasons = sorted({d.quality_reason for d in record.drafts if d.quality_reason})
        return Section("quality", TITLE, absent=reasons[0] if reasons else "no quant was evaluated")
    table = _table(record, {point.name for point in pareto(perplexities)})
    source = record.source_quality.perplexity if record.source_quality else None
    blocks: list[Block] = []
    for name, title, points, level in (
        ("perplexity", "Perplexity (PPL)", perplexities, finite(source)),
        ("divergence", "Mean KL divergence (KLD), nats", divergences, None),
    ):
        if points:
            blocks.append(_plot(record, name, title, points, level, table))
        else:
            blocks.append(Text(f"{title}: not measured in this record.", quiet=True))
    lead = (
        "Bars are standard errors; the line joins the drafts that nothing is both smaller and "
        "better than. Neither figure says how much a target accepts: see acceptance by category."
    )
    return Section("quality", TITLE, lead, (*blocks, table))


def pareto(points: Sequence[QualityPoint]) -> list[QualityPoint]:
    """Points that no other one beats in size and in the figure, smallest first."""
    front: list[QualityPoint] = []
    for point in sorted(points, key=lambda p: (p.size_bytes, p.figure)):
        if not front or point.figure < front[-1].figure:
            front.append(point)
    return front


def _points(
    record: Record, of: Callable[[Quality], tuple[float | None, float | None]]
) -> list[QualityPoint]:
    """Drafts that have the figure ``of`` their quality, which it gives with its error."""
    found = []
    for draft in record.drafts:
        figure, error = map(finite, of(draft.quality)) if draft.quality else (None, None)
        if figure is not None and draft.file_bytes:
            name = label_of(record, draft)
            found.append(QualityPoint(name, draft.file_bytes, figure, error or 0.0))
    return found


def _plot(
    record: Record,
    name: str,
    title: str,
    points: Sequence[QualityPoint],
    source: float | None,
    table: Table,
) -> Plot:
    def draw(sheet: Sheet) -> None:
        _draw(sheet, title, points, source, order_of(record), picked_draft(record))

    kept = ("quant", "size", *(("PPL",) if name == "perplexity" else ("mean KLD",)))
    return Plot(name, title, table.only(kept).alt(f"{title} against file size"), draw)


def _draw(
    sheet: Sheet,
    title: str,
    points: Sequence[QualityPoint],
    source: float | None,
    numbers: Mapping[str, int],
    best: str | None,
) -> None:
    unit, word = binary_unit(max(p.size_bytes for p in points))
    axes = sheet.axes(f"file, {word}", title)
    front = pareto(points)
    axes.plot(
        [p.size_bytes / unit for p in front],
        [p.figure for p in front],
        color=sheet.colour("muted"),
        linewidth=1.2,
        drawstyle="steps-post",
        zorder=1,
    )
    if source is not None:
        sheet.level(axes, source, "source")
    for point in points:
        colour, marker = sheet.series(numbers.get(point.name, 0))
        axes.errorbar(
            [point.size_bytes / unit],
            [point.figure],
            yerr=[point.error],
            fmt=marker,
            color=colour,
            markersize=6,
            capsize=3,
            elinewidth=1.2,
            zorder=3,
        )
    axes.margins(x=0.14, y=0.15)
    named = [Named(p.size_bytes / unit, p.figure, p.name, p.name == best) for p in points]
    sheet.name(axes, named, MOST_LABELS)


def _table(record: Record, front: set[str]) -> Table:
    titles = [
        *("quant", "size", "bpw", "PPL", "mean KLD", "99 % KLD", "same top, %", "PPL front"),
        *("alone t/s", "why not"),
    ]
    rows = []
    for draft in sorted(record.drafts, key=lambda d: d.file_bytes or 0):
        found, name = draft.quality, label_of(record, draft)
        rows.append(
            (
                name,
                size(draft.file_bytes),
                number(draft.bpw, ".3f"),
                perplexity(found),
                divergence(found, 5),
                number(found.p99_kld, ".4f") if found else None,
                number(found.same_top_percent, ".1f") if found else None,
                "yes" if name in front else "",
                number(draft.speed.tokens_per_s, ".0f") if draft.speed else None,
                draft.quality_reason,
            )
        )
    table = figures(titles, rows, pick=picked_draft(record), words=("why not",))
    return table if any(row[-1] for row in rows) else table.only(titles[:-1])
