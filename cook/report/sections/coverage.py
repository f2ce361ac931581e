"""Section: what the importance matrix covers."""

from __future__ import annotations

from cook.record.record import Record
from cook.report.canvas import Plot, Sheet
from cook.report.document import Block, Cells, Items, Section, Table, Text
from cook.units import number

TITLE = "Importance matrix"


def section(record: Record) -> Section:
    """Its size and its coverage of the experts, layer by layer where there are gaps."""
    found = record.imatrix
    if found is None:
        return Section("imatrix", TITLE, absent="no importance matrix was made for this record")
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
    return Section("imatrix", TITLE, lead, tuple(blocks))
