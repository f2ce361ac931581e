"""Section: which tensor has which type, layer by layer and group by group."""

from __future__ import annotations

from math import log2

from cook.record.measured import TypeSpan
from cook.record.record import Draft, Record
from cook.report.canvas import Plot, Sheet
from cook.report.compared import best_of_each, kind_of, label_of, not_drawn, picked_draft
from cook.report.document import Section, Table
from cook.report.layer_map import LayerCell, LayerMap, draw_maps, map_heights
from cook.report.numbers import number
from cook.report.plain import clipped

TITLE = "Types by layer and tensor group"
MOST_MAPS = 6


def section(record: Record) -> Section:
    """Maps of the pick's draft and a few others, and every draft's spans in a table."""
    mapped = {label_of(record, d): d for d in record.drafts if d.types}
    if not mapped:
        return Section("types", TITLE, absent="no draft's file was read when this record was made")
    best = picked_draft(record)
    order = [s.draft for s in best_of_each(record, kind_of(record)) if s.draft in mapped]
    order = list(dict.fromkeys([*([best] if best in mapped else []), *order, *mapped]))
    drawn = order[:MOST_MAPS]
    maps = [_map(name, mapped[name], best) for name in drawn]
    found = [s.bpw for name in drawn for s in mapped[name].types if s.bpw is not None]
    ends = shade(min(found, default=0.0)), shade(max(found, default=1.0))
    height, narrow_height = map_heights(maps)
    alt = "Bits per weight by layer and tensor group. " + " ".join(
        f"{name}: " + ", ".join(_span_text(span) for span in mapped[name].types[:10]) + "."
        for name in drawn[:3]
    )

    def draw(sheet: Sheet) -> None:
        draw_maps(sheet, maps, ends)

    plot = Plot(
        "types",
        TITLE,
        alt,
        draw,
        height=height,
        narrow_height=narrow_height,
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
    lead = (
        "Bits per weight and types of the matrices, darker for more bits (lighter on a dark page); "
        "layers that are alike stand as one block. Norms and biases are never quantized."
    )
    return Section("types", TITLE, lead, (plot, *not_drawn(order, drawn), table))


def shade(bpw: float) -> float:
    """Of bits per weight: from 1 to 16, each doubling alike."""
    return log2(min(max(bpw, 1.0), 16.0))


def _map(name: str, draft: Draft, best: str | None) -> LayerMap:
    mark = " (the pick)" if name == best else ""
    return LayerMap(clipped(name, 34) + mark, tuple(_cell(span) for span in draft.types))


def _cell(span: TypeSpan) -> LayerCell:
    bpw = f"{span.bpw:.2f}" if span.bpw is not None else "?"
    return LayerCell(
        span.group,
        span.first_layer,
        span.last_layer,
        None if span.bpw is None else shade(span.bpw),
        (f"{_types(span)}  {bpw}", " + ".join(span.types) + f"  {bpw}", bpw),
    )


def _types(span: TypeSpan) -> str:
    return " + ".join(
        f"{name} x{count}" if len(span.types) > 1 else name for name, count in span.types.items()
    )


def _layers(span: TypeSpan) -> str:
    if span.first_layer is None:
        return "none"
    return str(span.first_layer) if span.layers == 1 else f"{span.first_layer}-{span.last_layer}"


def _span_text(span: TypeSpan) -> str:
    bpw = f" {span.bpw:.2f} bpw" if span.bpw is not None else ""
    where = "" if span.first_layer is None else f" in layers {_layers(span)}"
    return f"{span.group} {_types(span)}{bpw}{where}"


def _row(name: str, span: TypeSpan) -> tuple[str | None, ...]:
    counts = ", ".join(f"{count} {type_name}" for type_name, count in span.types.items())
    return name, span.group, _layers(span), counts, number(span.bpw, ".3f")
