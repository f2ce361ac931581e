"""Drawing with matplotlib: themed SVG that goes inline into a page, SVG files and PNG.

matplotlib is imported here only, inside functions. Lengths are CSS pixels: a drawing is so wide
as it will be shown, so that its letters have the size of the page's. It is drawn in the colours
of a light page; in SVG each is then replaced by a CSS variable, so that one picture serves both
themes. Hence no two names may share a light colour.

A map of a model has a column a layer and a row a tensor group, each cell as dark as its figure.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from io import BytesIO
from math import log2
from typing import TYPE_CHECKING, Any, Literal

from cook.paths import package_dir
from cook.report.texts import clipped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


Colours = Mapping[str, str]

_PAIRS: dict[str, tuple[str, str]] = {
    "page": ("#fdfdfc", "#14171b"),
    "ink": ("#1c2127", "#e4e7ea"),
    "muted": ("#5d6670", "#98a2ad"),
    "grid": ("#dfe3e7", "#2b3138"),
    "pick": ("#b3261e", "#ff8a80"),
    # Series: distinct in both themes and by the colour-blind in the order given.
    "s0": ("#0b5fbe", "#62a8ff"),
    "s1": ("#c45500", "#f7954a"),
    "s2": ("#157a48", "#4cc27a"),
    "s3": ("#7a3fd0", "#be95ff"),
    "s4": ("#0c7b86", "#40c8d4"),
    "s5": ("#8a5f0d", "#dcb13a"),
    "s6": ("#b02e80", "#fb82c0"),
    "s7": ("#4f5a66", "#aab4bf"),
    # A ramp from few bits to many, and text that reads upon it.
    "h0": ("#e8f1fb", "#17283c"),
    "h1": ("#d0e3f6", "#1b3653"),
    "h2": ("#b0d0ef", "#20466d"),
    "h3": ("#8ab8e5", "#285a8b"),
    "h4": ("#5f9ad6", "#2f6699"),
    "h5": ("#2f70b8", "#4d8ecb"),
    "h6": ("#1f5fa8", "#77afe2"),
    "h7": ("#123f79", "#aed3f4"),
    "on_light": ("#1c2128", "#e4e7eb"),
    "on_dark": ("#fdfdfd", "#10141a"),
}

LIGHT: Colours = {name: light for name, (light, _) in _PAIRS.items()}
DARK: Colours = {name: dark for name, (_, dark) in _PAIRS.items()}
SERIES = 8
RAMP = 8


def css(colours: Colours) -> str:
    """Custom properties that hold ``colours``."""
    return "".join(f"--{name.replace('_', '-')}:{value};" for name, value in colours.items())


def ramp(value: float, low: float, high: float) -> tuple[str, str]:
    """(fill, text) names for ``value`` on a scale from ``low`` to ``high``."""
    share = (value - low) / (high - low) if high > low else 0.5
    step = min(RAMP - 1, max(0, int(share * RAMP)))
    return f"h{step}", "on_dark" if step >= RAMP // 2 + 1 else "on_light"


PAGE = package_dir() / "report" / "page"
WIDTHS = {"half": 430, "full": 1056}
"""A half-width drawing is so narrow that its letters can be read on a phone; a page scrolls the
full-width ones there."""
POINTS_PER_INCH = 72
FONT_PX = 11.5
LEGEND_LABEL = 22
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "h")
OFFSETS = tuple((dx, dy) for dy in (7, -8, 20, -21, 33, -34) for dx in (10, -10))
"""From point to name; a positive x has the name begin there, a negative one end there."""
_COLOURED = {
    **dict.fromkeys(("text.color", "axes.titlecolor"), "ink"),
    **dict.fromkeys(("axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), "muted"),
    **dict.fromkeys(("axes.facecolor", "figure.facecolor", "savefig.facecolor"), "page"),
    "grid.color": "grid",
}
_TAG = re.compile(r"<[^>]+>")
_NAME = re.compile(r' id="(?![a-z][0-9a-f]{10}")[^"]*"')
_COLOUR = re.compile(r"(?<=: )#[0-9a-f]{6}(?=[;\"])")
_FAMILY = re.compile(r"font-family: [^;\"]*")
_VARIABLES = {value: f"var(--{name.replace('_', '-')})" for name, value in LIGHT.items()}


@dataclass(frozen=True)
class Named:
    """A point in data coordinates and its name; ``strong``: the pick."""

    x: float
    y: float
    text: str
    strong: bool = False


@dataclass(frozen=True)
class Plot:
    """A picture to be drawn; ``alt`` says in words what it shows. ``height`` is in CSS pixels."""

    name: str
    title: str
    alt: str
    draw: Callable[[Sheet], None] = field(repr=False)
    height: int = 330
    width: Literal["half", "full"] = "half"


@dataclass(frozen=True)
class Sheet:
    """What a plot draws on."""

    figure: Figure
    colours: Colours

    def colour(self, name: str) -> str:
        """A palette colour by its name."""
        return self.colours[name]

    def series(self, index: int) -> tuple[str, str]:
        """(colour, marker) of the ``index``-th series; the pairs repeat after 64."""
        return self.colours[f"s{index % SERIES}"], MARKERS[(index // SERIES) % len(MARKERS)]

    def axes(
        self,
        x: str = "",
        y: str = "",
        grid: Literal["x", "y", "both"] = "both",
        place: tuple[int, int, int] = (1, 1, 1),
    ) -> Axes:
        """Axes with a grid in the directions of ``grid``; ``place``: (rows, columns, number)."""
        axes: Axes = self.figure.add_subplot(*place)
        axes.set(xlabel=x, ylabel=y)
        axes.grid(visible=True, axis=grid)
        return axes

    def line(
        self,
        axes: Axes,
        index: int,
        points: Sequence[tuple[float, float]],
        text: str,
        *,
        strong: bool = False,
    ) -> None:
        """The ``index``-th series as a line, named in the legend."""
        colour, marker = self.series(index)
        axes.plot(
            [x for x, _ in points],
            [y for _, y in points],
            marker=marker,
            markersize=4.5,
            color=colour,
            linewidth=2.8 if strong else 1.7,
            label=label(text, LEGEND_LABEL),
        )

    def level(self, axes: Axes, y: float, text: str) -> None:
        """A dotted line across the axes at ``y``, with its name on it."""
        axes.axhline(y, color=self.colour("ink"), linestyle=":", linewidth=1.4)
        self.write(axes, text, (1, y), (-3, 4), xycoords=("axes fraction", "data"), ha="right")

    def write(
        self, axes: Axes, text: str, at: tuple[float, float], away: tuple[float, float], **how: Any
    ) -> None:
        """``text`` so many pixels ``away`` from the point ``at``."""
        axes.annotate(text, at, xytext=away, textcoords="offset points", **how)

    def span(self, axes: Axes, axis: Literal["x", "y"], least: float) -> None:
        """An axis as long as ``least`` at least, so that a small difference does not look large."""
        low, high = axes.get_xlim() if axis == "x" else axes.get_ylim()
        short = least - abs(high - low)
        if short > 0:
            axes.set(**{f"{axis}lim": (low - short / 2, high + short / 2)})

    def point(
        self,
        axes: Axes,
        x: float,
        y: float,
        colour: str,
        *,
        live: bool,
        x_ends: tuple[float, float] | None = None,
        y_ends: tuple[float, float] | None = None,
    ) -> None:
        """A measured figure with its interval: filled where it ran ``live``, else hollow."""
        axes.plot(x_ends or (x, x), y_ends or (y, y), color=colour, linewidth=1.3, zorder=3)
        axes.plot([x], [y], **self._dot(colour, filled=live), zorder=4)

    def legend_of_kinds(self, axes: Axes, kinds: Sequence[str]) -> None:
        """The legend's words for the filled points, which ran "live", and the hollow ones."""
        for kind in kinds:
            axes.plot([], [], **self._dot(self.colour("ink"), filled=kind == "live"), label=kind)
        self.legend(axes, 2)

    def _dot(self, colour: str, *, filled: bool) -> dict[str, Any]:
        return {
            "marker": "o",
            "linestyle": "none",
            "markersize": 7.5,
            "markeredgecolor": colour,
            "markerfacecolor": colour if filled else self.colour("page"),
            "markeredgewidth": 1.6,
        }

    def rows(self, axes: Axes, names: Sequence[str], most: int, strong: str | None = None) -> None:
        """Names down the side, from the top; one is ``strong``."""
        axes.set_yticks(range(len(names)), [label(name, most) for name in names])
        for tick, name in zip(axes.get_yticklabels(), names, strict=True):
            tick.set(color=self.colour("ink"), fontweight="bold" if name == strong else "normal")
        axes.tick_params(axis="y", length=0)

    def ring(self, axes: Axes, x: float, y: float) -> None:
        """The mark of the pick around a point."""
        edge: Any = {"markerfacecolor": "none", "markeredgecolor": self.colour("pick")}
        axes.plot([x], [y], "o", markersize=15, markeredgewidth=1.8, zorder=5, **edge)

    def name(self, axes: Axes, points: Sequence[Named], most: int) -> None:
        """Words next to points, where they cover neither each other nor a point, if there is room.

        With more than ``most`` points only strong ones are named; these have the pick's ring.
        Call it last: it counts in pixels of the limits that the axes have by then.
        """
        from matplotlib.transforms import Bbox

        axes.get_xlim(), axes.get_ylim()  # brings the limits up to date
        named = [point for point in points if point.strong or len(points) <= most]
        named.sort(key=lambda point: not point.strong)
        spots = [axes.transData.transform((point.x, point.y)) for point in named]
        taken = [Bbox.from_bounds(x - 5, y - 5, 10, 10) for x, y in spots]
        inside: Any = axes.bbox

        def cost(box: Bbox) -> float:
            """The area that a name would cover of others, and 30 a pixel beyond the edges."""
            common = (Bbox.intersection(box, other) for other in taken)
            beyond: float = max(0.0, inside.x0 - box.x0) + max(0.0, box.x1 - inside.x1 - 4)
            return 30 * beyond + sum(float(part.width * part.height) for part in common if part)

        for point, (x, y) in zip(named, spots, strict=True):
            text = label(point.text, 24)
            width = len(text) * FONT_PX * (0.66 if point.strong else 0.6)
            boxes = {
                (dx, dy): Bbox.from_bounds(x + dx - (0 if dx > 0 else width), y + dy - 6, width, 12)
                for dx, dy in OFFSETS
            }
            dx, dy = min(boxes, key=lambda offset: cost(boxes[offset]))
            taken.append(boxes[dx, dy])
            if point.strong:
                self.ring(axes, point.x, point.y)
            side, weight = "left" if dx > 0 else "right", "bold" if point.strong else "normal"
            how = {"ha": side, "va": "center", "fontweight": weight, "zorder": 6}
            self.write(axes, text, (point.x, point.y), (dx, dy), **how)

    def legend(self, axes: Axes, columns: int | None = None) -> None:
        """The legend above the axes, in ``columns`` or as many as fit a half-width drawing."""
        handles, labels = axes.get_legend_handles_labels()
        if not handles:
            return
        widest = max(len(text) for text in labels) * FONT_PX * 0.6 + 36
        fitting = max(1, min(len(handles), int(WIDTHS["half"] / widest)))
        self.figure.legend(handles, labels, loc="outside upper left", ncols=columns or fitting)


def label(text: str, most: int = 40) -> str:
    """``text`` fit for a plot: one line of at most ``most`` characters that XML may hold."""
    return clipped(text.replace("\n", " ").replace("\t", " "), most)


def inline_svg(plot: Plot) -> str:
    """The plot as an ``<svg>`` element whose colours are the page's CSS variables."""
    name = escape(plot.alt, quote=True)
    return _bare_svg(plot).replace("<svg ", f'<svg role="img" aria-label="{name}" ', 1)


def svg_file(plot: Plot) -> str:
    """The plot as a file of its own that follows the reader's light or dark theme."""
    style = (
        f":root{{--sans:sans-serif;{css(LIGHT)}}}"
        f"@media (prefers-color-scheme: dark){{:root{{{css(DARK)}}}}}"
        "*{stroke-linejoin:round}"
    )
    head = (
        f"<title>{escape(plot.title)}</title><desc>{escape(plot.alt)}</desc>"
        f'<style>{style}</style><rect width="100%" height="100%" style="fill:var(--page)"/>'
    )
    opening, rest = _bare_svg(plot).removeprefix("<svg ").split(">", 1)
    size = f'width="{WIDTHS[plot.width]}" height="{plot.height}"'
    return f"<svg {size} {opening}>{head}{rest}"


def png(plot: Plot, *, dark: bool = False) -> bytes:
    """The plot as a PNG at twice the resolution of a plain screen."""
    return _draw(plot, DARK if dark else LIGHT, "png", dpi=2 * POINTS_PER_INCH)


def _draw(plot: Plot, colours: Colours, form: str, **how: Any) -> bytes:
    from matplotlib import style
    from matplotlib.figure import Figure

    themed: Any = {key: colours[name] for key, name in _COLOURED.items()}
    size = (WIDTHS[plot.width] / POINTS_PER_INCH, plot.height / POINTS_PER_INCH)
    stream = BytesIO()
    # "default" first: a reader's own matplotlibrc (LaTeX, sizes) is not what was designed here.
    styles: list[Any] = ["default", PAGE / "report.mplstyle", {**themed, "svg.hashsalt": plot.name}]
    with warnings.catch_warnings(), style.context(styles):
        # Scripts that are not in DejaVu are drawn by the reader's browser, not by matplotlib.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        warnings.filterwarnings("ignore", message=".*(constrained_layout|layout engine).*")
        figure = Figure(figsize=size, layout="constrained")
        plot.draw(Sheet(figure, colours))
        figure.savefig(stream, format=form, **how)
    return stream.getvalue()


def _bare_svg(plot: Plot) -> str:
    """matplotlib's document as an element that shares a page with others.

    Its colours become variables; its size, the rule for all elements of the page and the names of
    its parts go. What it refers to is called by a hash that the plot's name salts.
    """
    how = {"dpi": POINTS_PER_INCH, "transparent": True, "metadata": {"Date": None}}
    svg = _draw(plot, LIGHT, "svg", **how).decode()
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg ") :], flags=re.DOTALL)
    svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", svg, count=1, flags=re.DOTALL)
    svg = re.sub(r' (?:width|height)="[\d.]+pt"', "", svg, count=2)

    def themed(match: re.Match[str]) -> str:
        tag = _NAME.sub("", match[0])
        tag = _COLOUR.sub(lambda m: _VARIABLES.get(m[0], m[0]), tag)
        return _FAMILY.sub("font-family: var(--sans)", tag).replace("\n", "")

    # Only tags are touched: a label is data, whatever it looks like.
    return _TAG.sub(themed, svg).strip()


ROW_PX = 25
EDGE = 0.22
"""Width of the column of tensors that belong to no layer, in shares of the layers."""
LETTERS = 128
"""Letters next to each other for which the cells of a full-width drawing have room."""


@dataclass(frozen=True)
class LayerCell:
    """Layers that are alike in one row, as a block. ``first_layer`` None: of no layer.

    ``shade`` None: there is no figure. The longest of ``texts`` that has room stands in it.
    """

    row: str
    first_layer: int | None
    last_layer: int | None
    shade: float | None
    texts: tuple[str, ...]


def shade_of(bpw: float) -> float:
    """Of bits per weight: from 1 to 16, each doubling alike."""
    return log2(min(max(bpw, 1.0), 16.0))


def map_plot(
    name: str,
    title: str,
    alt: str,
    maps: Sequence[tuple[str, Sequence[LayerCell]]],
    ends: tuple[float, float] | None = None,
) -> Plot:
    """``maps`` with their titles, two next to each other, rows in the order of their first cells,
    shaded between ``ends`` or else their own extremes."""
    shades = [cell.shade for _, cells in maps for cell in cells if cell.shade is not None]
    shaded = ends or (min(shades, default=0.0), max(shades, default=1.0))
    columns = min(len(maps), 2)
    rows = [len({cell.row for cell in cells}) for _, cells in maps]
    heights = [max(rows[i : i + columns]) for i in range(0, len(rows), columns)]

    def draw(sheet: Sheet) -> None:
        grid = sheet.figure.subplots(
            len(heights), columns, squeeze=False, gridspec_kw={"height_ratios": heights}
        ).flatten()
        for unused in grid[len(maps) :]:
            unused.set_axis_off()
        for (name, cells), axes in zip(maps, grid, strict=False):
            axes.set_title(label(name, 46), pad=6)
            _draw_map(sheet, axes, cells, shaded, LETTERS / columns)

    return Plot(name, title, alt, draw, 20 + sum(62 + ROW_PX * count for count in heights), "full")


def _draw_map(
    sheet: Sheet,
    axes: Axes,
    cells: Sequence[LayerCell],
    ends: tuple[float, float],
    letters: float,
) -> None:
    axes.spines[:].set_visible(False)
    rows = list(dict.fromkeys(cell.row for cell in cells))
    layers = 1 + max((c.last_layer for c in cells if c.last_layer is not None), default=-1)
    edge = max(layers, 4) * EDGE
    whole = max(layers, 1) + edge
    for cell in cells:
        if cell.first_layer is None or cell.last_layer is None:
            left, width = -edge, edge * 0.94
        else:
            left, width = float(cell.first_layer), float(cell.last_layer - cell.first_layer + 1)
        row = rows.index(cell.row)
        fill, ink = ramp(cell.shade, *ends) if cell.shade is not None else ("grid", "ink")
        gap = min(0.06 * width, 0.002 * whole)
        axes.barh(row, width - 2 * gap, 0.92, left + gap, color=sheet.colour(fill))
        text = next((t for t in cell.texts if len(t) <= width / whole * letters), "")
        middle = left + width / 2
        axes.text(middle, row, text, ha="center", va="center", fontsize=10, color=sheet.colour(ink))
    axes.set(xlim=(-edge, max(layers, 1)), ylim=(len(rows) - 0.5, -0.5))
    axes.set_yticks(range(len(rows)), [row.replace("_", " ") for row in rows])
    ticks = range(0, layers, max(1, -(-layers // 16)))
    axes.set_xticks([-edge / 2, *(t + 0.5 for t in ticks)], ["-", *map(str, ticks)])
    axes.tick_params(length=0)
    axes.set_xlabel("layer (-: of no layer)")
