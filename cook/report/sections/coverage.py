"""Section: what the importance matrix covers."""

from __future__ import annotations

from cook.record.measured import ImatrixCoverage
from cook.record.record import Record
from cook.report.canvas import Plot, Sheet
from cook.report.document import Items, Section, Table, Text
from cook.report.numbers import number

TITLE = "Importance matrix"


def section(record: Record) -> Section:
    """Its size and its coverage of the experts, layer by layer where there are gaps."""
    found = record.imatrix
    if found is None:
        return Section("imatrix", TITLE, absent="no importance matrix was made for this record")
    rows: list[tuple[str | None, ...]] = [
        ("chunks", f"{found.chunks} of {found.context} tokens"),
        ("entries", str(found.entries)),
        ("perplexity of the source meanwhile", number(found.perplexity, ".4f")),
    ]
    fraction = found.fraction
    if fraction is not None:
        share = f"{found.experts_covered} of {found.experts_total} ({fraction:.2%})"
        rows.append(("experts with data", share))
    rows.append(("tensors without data", str(found.skipped_count)))
    blocks: list[Table | Plot | Items | Text] = [
        Table((("importance matrix", "left"), ("", "right")), tuple(rows))
    ]
    gaps = [layer for layer in found.layers if layer.covered < layer.experts]
    if gaps:
        blocks.append(_plot(found))
    elif found.layers:
        blocks.append(Text("Every expert of every layer saw tokens."))
    else:
        blocks.append(Text("The model has no experts."))
    if found.skipped:
        more = found.skipped_count - len(found.skipped)
        names = [*found.skipped, *([f"and {more} more"] if more > 0 else [])]
        blocks += [Text("Tensors without any data:"), Items(tuple(names))]
    lead = "Experts that saw no token of the calibration text are quantized blindly."
    return Section("imatrix", TITLE, lead, tuple(blocks))


def _plot(found: ImatrixCoverage) -> Plot:
    layers = found.layers
    worst = min(layers, key=lambda x: x.covered / x.experts if x.experts else 1.0)
    alt = (
        f"Experts with data by layer, {len(layers)} layers; the least covered is layer "
        f"{worst.layer} with {worst.covered} of {worst.experts}."
    )

    def draw(sheet: Sheet) -> None:
        from matplotlib.ticker import MaxNLocator

        axes = sheet.axes("layer", "experts with data, %", grid="y")
        shares = [100 * x.covered / x.experts if x.experts else 0.0 for x in layers]
        colours = [sheet.colour("s0" if x.covered >= x.experts else "s1") for x in layers]
        axes.bar([x.layer for x in layers], shares, color=colours, width=0.8)
        axes.set_ylim(0, 102)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))

    return Plot("imatrix", "Experts with data, by layer", alt, draw)
