"""Section: perplexity and KL divergence against size, with the Pareto front."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cook.record.record import Record
from cook.report.canvas import Named, Plot, Sheet
from cook.report.compared import label_of, order_of, picked_draft
from cook.report.document import Block, Section, Table, Text, figures
from cook.report.texts import binary_unit, divergence, perplexity
from cook.units import number, size

TITLE = "Quality against size"
MOST_LABELS = 12
PLOTS = (
    ("perplexity", "Perplexity (PPL)", "PPL"),
    ("mean_kld", "Mean KL divergence (KLD), nats", "mean KLD"),
)
"""(attribute of the quality, title, column) of the figures, less of which is better."""


@dataclass(frozen=True)
class QualityPoint:
    """One draft: bytes, a figure where less is better, and its standard error."""

    name: str
    size_bytes: int
    figure: float
    error: float


def section(record: Record) -> Section:
    """Two plots, PPL and KLD, and the table of both."""
    every: dict[str, list[QualityPoint]] = {name: [] for name, *_ in PLOTS}
    for draft in record.drafts:
        for name, points in every.items():
            figure = getattr(draft.quality, name, None)
            if figure is not None and draft.file_bytes:
                error = getattr(draft.quality, f"{name}_error") or 0.0
                points.append(
                    QualityPoint(label_of(record, draft), draft.file_bytes, figure, error)
                )
    if not any(every.values()):
        reasons = sorted({d.quality_reason for d in record.drafts if d.quality_reason})
        return Section("quality", TITLE, absent=reasons[0] if reasons else "no quant was evaluated")
    table = _table(record, {point.name for point in pareto(every["perplexity"])})
    blocks: list[Block] = []
    for name, title, column in PLOTS:
        if every[name]:
            alt = table.only(("quant", "size", column)).alt(f"{title} against file size")
            blocks.append(_plot(record, name, title, every[name], alt))
        else:
            blocks.append(Text(f"{title}: not measured in this record."))
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


def _plot(record: Record, name: str, title: str, points: Sequence[QualityPoint], alt: str) -> Plot:
    order, best = order_of(record), picked_draft(record)

    def draw(sheet: Sheet) -> None:
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
        if name == "perplexity" and record.source_quality is not None:
            sheet.level(axes, record.source_quality.perplexity, "source")
        for point in points:
            colour, marker = sheet.series(order[point.name])
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

    return Plot("divergence" if name == "mean_kld" else name, title, alt, draw)


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
