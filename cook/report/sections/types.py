"""Sections: which tensor has which type, and what the importance matrix covers."""

from __future__ import annotations

from cook.record.record import Record, TypeSpan
from cook.report.canvas import LayerCell, Plot, Sheet, map_plot, shade_of
from cook.report.compared import best_of_each, kind_of, label_of, not_drawn, picked_draft
from cook.report.document import Block, Cells, Items, Section, Table, Text, figures
from cook.report.texts import clipped
from cook.units import number

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
        blocks.append(Text("Every expert of every layer saw tokens."))
    else:
        blocks.append(Text("The model has no experts."))
    if found.skipped:
        more = found.skipped_count - len(found.skipped)
        names = [*found.skipped, *([f"and {more} more"] if more > 0 else [])]
        blocks += [Text("Tensors without any data:"), Items(tuple(names))]
    lead = "Experts that saw no token of the calibration text are quantized blindly."
    return Section("imatrix", COVERAGE, lead, tuple(blocks))
