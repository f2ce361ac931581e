"""Section: which tensor has which type, layer by layer and group by group."""

from __future__ import annotations

from cook.record.record import Record, TypeSpan
from cook.report.compared import best_of_each, kind_of, label_of, not_drawn, picked_draft
from cook.report.document import Cells, Section, figures
from cook.report.layer_map import LayerCell, map_plot, shade_of
from cook.report.texts import clipped
from cook.units import number

TITLE = "Types by layer and tensor group"
MOST_MAPS = 6


def section(record: Record) -> Section:
    """Maps of the pick's draft and a few others, and every draft's spans in a table."""
    mapped = {label_of(record, d): d.types for d in record.drafts if d.types}
    if not mapped:
        return Section("types", TITLE, absent="no draft's file was read when this record was made")
    best = picked_draft(record)
    order = [s.draft for s in best_of_each(record, kind_of(record)) if s.draft in mapped]
    order = list(dict.fromkeys([*([best] if best in mapped else []), *order, *mapped]))
    drawn = order[:MOST_MAPS]
    table = figures(
        ("quant", "group", "layers", "types (tensors a layer)", "bpw"),
        (_row(name, span) for name in order for span in mapped[name]),
        words=("group", "types (tensors a layer)"),
    )
    maps = [
        (clipped(name, 34) + (" (the pick)" if name == best else ""), [*map(_cell, mapped[name])])
        for name in drawn
    ]
    plot = map_plot("types", TITLE, table.alt("Bits per weight by layer and tensor group"), maps)
    lead = (
        "Bits per weight and types of the matrices, darker for more bits (lighter on a dark page); "
        "layers that are alike stand as one block. Norms and biases are never quantized."
    )
    return Section("types", TITLE, lead, (plot, *not_drawn(order, drawn), table))


def _cell(span: TypeSpan) -> LayerCell:
    bpw = number(span.bpw) or "?"
    names = " + ".join(span.types)
    counts = " + ".join(f"{name} x{count}" for name, count in span.types.items())
    texts = (f"{counts if len(span.types) > 1 else names}  {bpw}", f"{names}  {bpw}", bpw)
    shade = None if span.bpw is None else shade_of(span.bpw)
    return LayerCell(span.group, span.first_layer, span.last_layer, shade, texts)


def _row(name: str, span: TypeSpan) -> Cells:
    layers = "none" if span.first_layer is None else str(span.first_layer)
    if span.layers > 1:
        layers += f"-{span.last_layer}"
    counts = ", ".join(f"{count} {type_name}" for type_name, count in span.types.items())
    return name, span.group, layers, counts, number(span.bpw, ".3f")
