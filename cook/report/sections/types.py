"""Sections: what the quants are. Which tensor has which type, what the importance matrix covers,
and perplexity and KL divergence against size."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from cook.record.record import Record
from cook.report.canvas import LayerCell, Named, Plot, Sheet, map_plot, shade_of
from cook.report.compared import (
    best_of_each,
    kind_of,
    label_of,
    not_drawn,
    order_of,
    picked_draft,
)
from cook.report.document import Block, Cells, Items, Section, Table, figures
from cook.report.texts import binary_unit, clipped, divergence, perplexity
from cook.units import number, size

TITLE = "Types by layer and tensor group"
MOST_MAPS = 6


def types(record: Record) -> Section:
    """Maps of the pick's draft and a few others, and every draft's spans in a table."""
    mapped = {label_of(record, d): d.types for d in record.drafts if d.types}
    if not mapped:
        return Section("types", TITLE, absent="no draft's file was read when this record was made")
    best = picked_draft(record)
    order = [s.draft for s in best_of_each(record, kind_of(record)) if s.draft in mapped]
    order = list(dict.fromkeys([*([best] if best in mapped else []), *order, *mapped]))
    drawn = order[:MOST_MAPS]
    rows: list[Cells] = []
    for name in order:
        for span in mapped[name]:
            layers = "none" if span.first_layer is None else str(span.first_layer)
            layers += f"-{span.last_layer}" if span.layers > 1 else ""
            counts = ", ".join(f"{count} {type_name}" for type_name, count in span.types.items())
            rows.append((name, span.group, layers, counts, number(span.bpw, ".3f")))
    table = figures(
        ("quant", "group", "layers", "types (tensors a layer)", "bpw"),
        rows,
        words=("group", "types (tensors a layer)"),
    )
    maps = []
    for name in drawn:
        cells = []
        for span in mapped[name]:
            bpw, names = number(span.bpw) or "?", " + ".join(span.types)
            every = " + ".join(f"{type_name} x{count}" for type_name, count in span.types.items())
            longest = every if len(span.types) > 1 else names
            texts = (f"{longest}  {bpw}", f"{names}  {bpw}", bpw)
            shade = None if span.bpw is None else shade_of(span.bpw)
            cells.append(LayerCell(span.group, span.first_layer, span.last_layer, shade, texts))
        maps.append((clipped(name, 34) + (" (the pick)" if name == best else ""), cells))
    plot = map_plot("types", TITLE, table.alt("Bits per weight by layer and tensor group"), maps)
    lead = (
        "Bits per weight and types of the matrices, darker for more bits (lighter on a dark page); "
        "layers that are alike stand as one block. Norms and biases are never quantized."
    )
    return Section("types", TITLE, lead, (plot, *not_drawn(order, drawn), table))


COVERAGE = "Importance matrix"


def coverage(record: Record) -> Section:
    """Its size and its coverage of the experts, layer by layer where there are gaps."""
    found = record.imatrix
    if found is None:
        return Section("imatrix", COVERAGE, absent="no importance matrix was made for this record")
    experts = f"{found.experts_covered} of {found.experts_total} ({number(found.fraction, '.2%')})"
    rows: list[Cells] = [
        ("chunks", f"{found.chunks} of {found.context} tokens"),
        ("entries", str(found.entries)),
        ("perplexity of the source meanwhile", number(found.perplexity, ".4f")),
        *([("experts with data", experts)] if found.experts_total else []),
        ("tensors without data", str(found.skipped_count)),
    ]
    shares = {x.layer: x.covered / x.experts if x.experts else 1.0 for x in found.layers}

    def draw(sheet: Sheet) -> None:
        from matplotlib.ticker import MaxNLocator

        axes = sheet.axes("layer", "experts with data, %", grid="y")
        colours = [sheet.colour("s0" if share >= 1 else "s1") for share in shares.values()]
        axes.bar([*shares], [100 * share for share in shares.values()], color=colours)
        axes.set_ylim(0, 102)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))

    blocks: list[Block] = [Table((("importance matrix", "left"), ("", "right")), tuple(rows))]
    if any(share < 1 for share in shares.values()):
        worst = min(found.layers, key=lambda x: shares[x.layer])
        alt = (
            f"Experts with data by layer, {len(shares)} layers; the least covered is layer "
            f"{worst.layer} with {worst.covered} of {worst.experts}."
        )
        blocks.append(Plot("imatrix", "Experts with data, by layer", alt, draw))
    elif shares:
        blocks.append("Every expert of every layer saw tokens.")
    else:
        blocks.append("The model has no experts.")
    if found.skipped:
        more = found.skipped_count - len(found.skipped)
        names = [*found.skipped, *([f"and {more} more"] if more > 0 else [])]
        blocks += ["Tensors without any data:", Items(tuple(names))]
    lead = "Experts that saw no token of the calibration text are quantized blindly."
    return Section("imatrix", COVERAGE, lead, tuple(blocks))


QUALITY = "Quality against size"
MOST_LABELS = 12
PLOTS = (
    ("perplexity", "Perplexity (PPL)", "PPL"),
    ("mean_kld", "Mean KL divergence (KLD), nats", "mean KLD"),
)
"""(attribute of the quality, title, column) of the figures, less of which is better."""


def quality(record: Record) -> Section:
    """Two plots, PPL and KLD, and the table of both."""
    best = picked_draft(record)
    every: dict[str, dict[Named, float]] = {name: {} for name, *_ in PLOTS}
    for draft in record.drafts:
        for name, points in every.items():
            figure = getattr(draft.quality, name, None)
            if figure is not None and draft.file_bytes:
                text = label_of(record, draft)
                error = getattr(draft.quality, f"{name}_error") or 0.0
                points[Named(draft.file_bytes, figure, text, text == best)] = error
    if not any(every.values()):
        reasons = sorted({d.quality_reason for d in record.drafts if d.quality_reason})
        why = reasons[0] if reasons else "no quant was evaluated"
        return Section("quality", QUALITY, absent=why)
    front = {point.text for point in pareto(every["perplexity"])}
    titles = [
        *("quant", "size", "bpw", "PPL", "mean KLD", "99 % KLD", "same top, %", "PPL front"),
        *("alone t/s", "why not"),
    ]
    rows: list[Cells] = []
    for draft in sorted(record.drafts, key=lambda d: d.file_bytes or 0):
        found, text = draft.quality, label_of(record, draft)
        rows.append(
            (
                text,
                size(draft.file_bytes),
                number(draft.bpw, ".3f"),
                perplexity(found),
                divergence(found, 5),
                number(found.p99_kld, ".4f") if found else None,
                number(found.same_top_percent, ".1f") if found else None,
                "yes" if text in front else "",
                number(draft.speed.tokens_per_s, ".0f") if draft.speed else None,
                draft.quality_reason,
            )
        )
    table = figures(titles, rows, pick=best, words=("why not",))
    if not any(row[-1] for row in rows):
        table = table.only(titles[:-1])
    blocks: list[Block] = []
    for name, title, column in PLOTS:
        if every[name]:
            alt = table.only(("quant", "size", column)).alt(f"{title} against file size")
            blocks.append(_quality_plot(record, name, title, every[name], alt))
        else:
            blocks.append(f"{title}: not measured in this record.")
    lead = (
        "Bars are standard errors; the line joins the drafts that nothing is both smaller and "
        "better than. Neither figure says how much a target accepts: see acceptance by category."
    )
    return Section("quality", QUALITY, lead, (*blocks, table))


def pareto(points: Iterable[Named]) -> list[Named]:
    """Points, of bytes and a figure, that no other one beats in both; smallest first."""
    front: list[Named] = []
    for point in sorted(points, key=lambda p: (p.x, p.y)):
        if not front or point.y < front[-1].y:
            front.append(point)
    return front


def _quality_plot(
    record: Record, name: str, title: str, points: Mapping[Named, float], alt: str
) -> Plot:
    """``points``, of bytes and the figure, each with its standard error."""
    order = order_of(record)

    def draw(sheet: Sheet) -> None:
        unit, word = binary_unit(max(int(p.x) for p in points))
        axes = sheet.axes(f"file, {word}", title)
        front = pareto(points)
        axes.plot(
            [p.x / unit for p in front],
            [p.y for p in front],
            color=sheet.colour("muted"),
            linewidth=1.2,
            drawstyle="steps-post",
            zorder=1,
        )
        if name == "perplexity" and record.source_quality is not None:
            sheet.level(axes, record.source_quality.perplexity, "source")
        for point, error in points.items():
            colour, marker = sheet.series(order[point.text])
            axes.errorbar(
                [point.x / unit],
                [point.y],
                yerr=[error],
                fmt=marker,
                color=colour,
                markersize=6,
                capsize=3,
                elinewidth=1.2,
                zorder=3,
            )
        axes.margins(x=0.14, y=0.15)
        sheet.name(axes, [replace(p, x=p.x / unit) for p in points], MOST_LABELS)

    return Plot("divergence" if name == "mean_kld" else name, title, alt, draw)
