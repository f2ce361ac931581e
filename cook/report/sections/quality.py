"""Section: perplexity and KL divergence against size, with the Pareto front."""

from __future__ import annotations

from dataclasses import dataclass

from cook.record.record import Draft, Record
from cook.report.canvas import Named, Plot, Sheet
from cook.report.compared import finite, label_of, order_of, picked_draft
from cook.report.document import Section, Table, Text
from cook.report.numbers import divergence, number, perplexity
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
    perplexities = [p for d in record.drafts if (p := _perplexity(record, d))]
    divergences = [p for d in record.drafts if (p := _divergence(record, d))]
    if not perplexities and not divergences:
        reasons = sorted({d.quality_reason for d in record.drafts if d.quality_reason})
        return Section("quality", TITLE, absent=reasons[0] if reasons else "no quant was evaluated")
    blocks: list[Plot | Table | Text] = []
    for name, title, points in (
        ("perplexity", "Perplexity (PPL)", perplexities),
        ("divergence", "Mean KL divergence (KLD), nats", divergences),
    ):
        if points:
            blocks.append(_plot(record, name, title, points))
        else:
            blocks.append(Text(f"{title}: not measured in this record.", quiet=True))
    front = {p.name for p in pareto(perplexities)}
    blocks.append(_table(record, front))
    lead = (
        "Bars are standard errors; the line joins the drafts that nothing is both smaller and "
        "better than. Neither figure says how much a target accepts: see acceptance by category."
    )
    return Section("quality", TITLE, lead, tuple(blocks))


def pareto(points: list[QualityPoint]) -> list[QualityPoint]:
    """Points that no other one beats in size and in the figure, smallest first."""
    front: list[QualityPoint] = []
    for point in sorted(points, key=lambda p: (p.size_bytes, p.figure)):
        if not front or point.figure < front[-1].figure:
            front.append(point)
    return front


def _perplexity(record: Record, draft: Draft) -> QualityPoint | None:
    found = draft.quality
    if found is None or not draft.file_bytes or (figure := finite(found.perplexity)) is None:
        return None
    error = finite(found.perplexity_error) or 0.0
    return QualityPoint(label_of(record, draft), draft.file_bytes, figure, error)


def _divergence(record: Record, draft: Draft) -> QualityPoint | None:
    found = draft.quality
    figure = finite(found.mean_kld) if found else None
    if found is None or not draft.file_bytes or figure is None:
        return None
    return QualityPoint(
        label_of(record, draft), draft.file_bytes, figure, finite(found.mean_kld_error) or 0.0
    )


def _plot(record: Record, name: str, title: str, points: list[QualityPoint]) -> Plot:
    numbers, best = order_of(record), picked_draft(record)
    ordered = sorted(points, key=lambda p: p.size_bytes)
    alt = f"{title} against file size: " + "; ".join(
        f"{p.name} {p.figure:.4g} ± {p.error:.2g} at {size(p.size_bytes)}" for p in ordered[:8]
    )
    base = record.source_quality.perplexity if record.source_quality else None
    source = finite(base) if name == "perplexity" else None

    def draw(sheet: Sheet) -> None:
        _draw(sheet, title, ordered, source, numbers, best)

    return Plot(name, title, alt + ".", draw)


def _draw(
    sheet: Sheet,
    title: str,
    points: list[QualityPoint],
    source: float | None,
    numbers: dict[str, int],
    best: str | None,
) -> None:
    largest = max(p.size_bytes for p in points)
    unit, word = (1 << 30, "GiB") if largest >= 1 << 29 else (1 << 20, "MiB")
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
    best = picked_draft(record)
    rows: list[tuple[str | None, ...]] = []
    for draft in sorted(record.drafts, key=lambda d: d.file_bytes or 0):
        found, name = draft.quality, label_of(record, draft)
        same = number(found.same_top_percent, ".1f") if found else None
        rows.append(
            (
                name,
                size(draft.file_bytes),
                number(draft.bpw, ".3f"),
                perplexity(found),
                divergence(found, 5),
                number(found.p99_kld, ".4f") if found else None,
                f"{same} %" if same else None,
                "yes" if name in front else "",
                number(draft.speed.tokens_per_s, ".0f") if draft.speed else None,
                draft.quality_reason,
            )
        )
    columns = [("quant", "left")]
    columns += [
        (title, "right")
        for title in ("size", "bpw", "PPL", "mean KLD", "99 % KLD", "same top", "PPL front")
    ]
    columns.append(("alone t/s", "right"))
    if any(row[-1] for row in rows):
        columns.append(("why not", "left"))
    else:
        rows = [row[:-1] for row in rows]
    names = [row[0] for row in rows]
    return Table(
        tuple(columns),
        tuple(rows),
        title="Figures",
        strong=names.index(best) if best in names else None,
    )
