"""Section: which tensor has which type, layer by layer and group by group."""

from __future__ import annotations

from collections.abc import Sequence
from math import log2

from cook.record.measured import TypeSpan
from cook.record.record import Draft, Record
from cook.report.canvas import Plot, Sheet, label
from cook.report.compared import best_of_each, kind_of, label_of, named, picked_draft
from cook.report.document import Section, Table, Text
from cook.report.palette import ramp

TITLE = "Types by layer and tensor group"
MOST_MAPS = 6
NARROW_MAPS = 3
ROW_PX = 25
EDGE = 2.2
"""Width of the column of tensors that belong to no layer, in shares of a tenth of the layers."""


def section(record: Record) -> Section:
    """Maps of the pick's draft and a few others, and every draft's spans in a table."""
    mapped = {label_of(record, d): d for d in record.drafts if d.types}
    if not mapped:
        return Section("types", TITLE, absent="no draft's file was read when this record was made")
    best = picked_draft(record)
    order = [s.draft for s in best_of_each(record, kind_of(record)) if s.draft in mapped]
    order = list(dict.fromkeys([*([best] if best in mapped else []), *order, *mapped]))
    drawn = order[:MOST_MAPS]
    rows = [len(_groups(mapped[name])) for name in drawn]
    alt = "Bits per weight by layer and tensor group. " + " ".join(
        f"{name}: " + ", ".join(_told(span) for span in mapped[name].types[:10]) + "."
        for name in drawn[:3]
    )

    def draw(sheet: Sheet) -> None:
        _draw(sheet, [(name, mapped[name].types) for name in drawn], best)

    pairs = [max(rows[i : i + 2]) for i in range(0, len(rows), 2)]
    plot = Plot(
        "types",
        TITLE,
        alt,
        draw,
        height=_height(pairs),
        narrow_height=_height(rows[:NARROW_MAPS]),
        width="full",
    )
    table = Table(
        columns=(
            ("quant", "left"),
            ("group", "left"),
            ("layers", "right"),
            ("types (tensors a layer)", "left"),
            ("bpw", "right"),
        ),
        rows=tuple(_row(name, span) for name in order for span in mapped[name].types),
        title="Figures",
    )
    notes = (
        [Text(f"Not drawn: {named(order[MOST_MAPS:])}.", quiet=True)] if order[MOST_MAPS:] else []
    )
    lead = (
        "Bits per weight and types of the matrices, darker for more bits (lighter on a dark page); "
        "layers that are alike stand as one block. Norms and biases are never quantized."
    )
    return Section("types", TITLE, lead, (plot, *notes, table))


def _height(rows: Sequence[int]) -> int:
    """Pixels for maps of so many groups under each other."""
    return 20 + sum(62 + ROW_PX * count for count in rows)


def _groups(draft: Draft) -> list[str]:
    return list(dict.fromkeys(span.group for span in draft.types))


def _types(span: TypeSpan) -> str:
    return " + ".join(
        f"{name} x{count}" if len(span.types) > 1 else name for name, count in span.types.items()
    )


def _layers(span: TypeSpan) -> str:
    if span.first_layer is None:
        return "none"
    return str(span.first_layer) if span.layers == 1 else f"{span.first_layer}-{span.last_layer}"


def _told(span: TypeSpan) -> str:
    bpw = f" {span.bpw:.2f} bpw" if span.bpw is not None else ""
    where = "" if span.first_layer is None else f" in layers {_layers(span)}"
    return f"{span.group} {_types(span)}{bpw}{where}"


def _row(name: str, span: TypeSpan) -> tuple[str | None, ...]:
    counts = ", ".join(f"{count} {type_name}" for type_name, count in span.types.items())
    bpw = f"{span.bpw:.3f}" if span.bpw is not None else None
    return name, span.group, _layers(span), counts, bpw


def _draw(sheet: Sheet, maps: Sequence[tuple[str, tuple[TypeSpan, ...]]], best: str | None) -> None:
    columns = 1 if sheet.narrow or len(maps) == 1 else 2
    shown = maps[:NARROW_MAPS] if sheet.narrow else maps
    groups_of = [len({s.group for s in spans}) for _, spans in shown]
    heights = [max(groups_of[i : i + columns]) for i in range(0, len(shown), columns)]
    grid = sheet.figure.subplots(
        len(heights), columns, squeeze=False, gridspec_kw={"height_ratios": heights}
    ).flatten()
    for unused in grid[len(shown) :]:
        unused.set_axis_off()
    found = [s.bpw for _, spans in maps for s in spans if s.bpw is not None]
    low, high = min(found, default=0.0), max(found, default=1.0)
    for (name, spans), axes in zip(shown, grid, strict=False):
        sheet.dress(axes, grid="none")
        for side in axes.spines.values():
            side.set_visible(False)
        axes.tick_params(length=0)
        groups = list(dict.fromkeys(span.group for span in spans))
        layers = 1 + max((s.last_layer for s in spans if s.last_layer is not None), default=-1)
        edge = max(layers, 4) * EDGE / 10
        for span in spans:
            _block(sheet, axes, span, groups.index(span.group), layers, edge, low, high, columns)
        axes.set_xlim(-edge, max(layers, 1))
        axes.set_ylim(len(groups) - 0.5, -0.5)
        axes.set_yticks(range(len(groups)), [g.replace("_", " ") for g in groups])
        step = max(1, -(-layers // (8 if sheet.narrow else 16)))
        ticks = list(range(0, layers, step))
        axes.set_xticks([-edge / 2, *(t + 0.5 for t in ticks)], ["-", *(str(t) for t in ticks)])
        mark = " (the pick)" if name == best else ""
        axes.set_title(label(name, 34) + mark, pad=6)
        axes.set_xlabel("layer (-: of no layer)")


def _block(
    sheet: Sheet,
    axes: object,
    span: TypeSpan,
    row: int,
    layers: int,
    edge: float,
    low: float,
    high: float,
    columns: int,
) -> None:
    """One rectangle with as much of its types and bits as has room in it."""
    from matplotlib.axes import Axes
    from matplotlib.patches import Rectangle

    assert isinstance(axes, Axes)
    if span.first_layer is None:
        left, width = -edge, edge * 0.94
    else:
        left, width = float(span.first_layer), float(span.layers)
    fill, ink = (
        ramp(log2(max(span.bpw, 1)), log2(max(low, 1)), log2(min(high, 16)))
        if span.bpw is not None
        else ("grid", "ink")
    )
    gap = min(0.06 * width, 0.002 * (layers + edge))
    axes.add_patch(
        Rectangle(
            (left + gap, row - 0.46),
            width - 2 * gap,
            0.92,
            facecolor=sheet.colour(fill),
            edgecolor="none",
        )
    )
    room = width / (max(layers, 1) + edge) * (250 if sheet.narrow else 820 / columns) / 6.4
    bpw = f"{span.bpw:.2f}" if span.bpw is not None else "?"
    texts = (f"{_types(span)}  {bpw}", " + ".join(span.types) + f"  {bpw}", bpw)
    text = next((t for t in texts if len(t) <= room), None)
    if text is not None:
        axes.text(
            left + width / 2,
            row,
            text,
            ha="center",
            va="center",
            fontsize=10,
            color=sheet.colour(ink),
        )
