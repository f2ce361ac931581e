"""Drawing with matplotlib: themed SVG that goes inline into a page, SVG files and PNG.

matplotlib is imported here only, inside functions. Lengths are CSS pixels: a drawing is so wide
as it will be shown, so that its letters have the size of the page's.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import escape
from io import BytesIO
from typing import TYPE_CHECKING, Any, Literal

from cook.report.palette import DARK, LIGHT, SERIES, Colours, css
from cook.report.plain import clipped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTHS = {"half": 430, "full": 1056}
"""A half-width drawing is so narrow that its letters can be read on a phone; a page scrolls the
full-width ones there."""
POINTS_PER_INCH = 72
FONT_PX = 11.5
MAX_LABEL = 40
LEGEND_LABEL = 22
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "h")
_TAG = re.compile(r"<[^>]+>")
_ID = re.compile(r' id="([^"]*)"')
_REFERENCE = re.compile(r'(?:xlink:href="#|url\(#)([^")]+)')
_COLOUR = re.compile(r"(?<=: )#[0-9a-f]{6}(?=[;\"])")
_FAMILY = re.compile(r"font-family: [^;\"]*")
_NO_TURN = re.compile(r' transform="rotate\(-?0 [^"]*"')
_VARIABLES = {value: f"var(--{name.replace('_', '-')})" for name, value in LIGHT.items()}

Box = tuple[float, float, float, float]
"""Left, bottom, right, top in pixels."""
OFFSETS = tuple((dx, dy) for dy in (7, -8, 20, -21, 33, -34) for dx in (10, -10))
"""From point to name; a positive x has the name begin there, a negative one end there."""
POINT_PX = 5
HALF_LINE_PX = 6
OUTSIDE = 30
"""What a pixel beyond the edge costs, in square pixels of overlap."""


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
        axes.set_xlabel(x)
        axes.set_ylabel(y)
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
        axes.annotate(
            text,
            (1, y),
            xycoords=("axes fraction", "data"),
            xytext=(-3, 4),
            textcoords="offset points",
            ha="right",
        )

    def span(self, axes: Axes, axis: Literal["x", "y"], least: float) -> None:
        """An axis as long as ``least`` at least, so that a small difference does not look large."""
        low, high = axes.get_xlim() if axis == "x" else axes.get_ylim()
        short = least - abs(high - low)
        if short > 0:
            ends = (low - short / 2, high + short / 2)
            axes.set_xlim(*ends) if axis == "x" else axes.set_ylim(*ends)

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

    def legend_of_kinds(self, axes: Axes, *, live: bool, predicted: bool) -> None:
        """The legend's words for filled and hollow points."""
        for kind in ["live"] * live + ["predicted"] * predicted:
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
            tick.set_color(self.colour("ink"))
            tick.set_fontweight("bold" if name == strong else "normal")
        axes.tick_params(axis="y", length=0)

    def ring(self, axes: Axes, x: float, y: float) -> None:
        """The mark of the pick around a point."""
        axes.plot(
            [x],
            [y],
            "o",
            markersize=15,
            markerfacecolor="none",
            markeredgecolor=self.colour("pick"),
            markeredgewidth=1.8,
            zorder=5,
        )

    def name(self, axes: Axes, points: Sequence[Named], most: int) -> None:
        """Words next to points, where they cover neither each other nor a point, if there is room.

        With more than ``most`` points only strong ones are named; these have the pick's ring.
        Call it last: it counts in pixels of the limits that the axes have by then.
        """
        axes.get_xlim(), axes.get_ylim()  # brings the limits up to date
        named = [point for point in points if point.strong or len(points) <= most]
        named.sort(key=lambda point: not point.strong)
        if not named:
            return
        spots = axes.transData.transform([(point.x, point.y) for point in named])
        widths = [len(label(p.text, 24)) * FONT_PX * (0.66 if p.strong else 0.6) for p in named]
        offsets = places(spots.tolist(), widths, axes.bbox.x0, axes.bbox.x1 + 4)
        for point, offset in zip(named, offsets, strict=True):
            if point.strong:
                self.ring(axes, point.x, point.y)
            axes.annotate(
                label(point.text, 24),
                (point.x, point.y),
                xytext=offset,
                textcoords="offset points",
                ha="left" if offset[0] > 0 else "right",
                va="center",
                fontweight="bold" if point.strong else "normal",
                zorder=6,
            )

    def legend(self, axes: Axes, columns: int | None = None) -> None:
        """The legend above the axes, in ``columns`` or as many as fit a half-width drawing."""
        handles, labels = axes.get_legend_handles_labels()
        if not handles:
            return
        widest = max(len(text) for text in labels) * FONT_PX * 0.6 + 36
        self.figure.legend(
            handles,
            labels,
            loc="outside upper left",
            ncols=columns or max(1, min(len(handles), int(WIDTHS["half"] / widest))),
        )


def label(text: str, most: int = MAX_LABEL) -> str:
    """``text`` fit for a plot: one line of at most ``most`` characters that XML may hold."""
    return clipped(text.replace("\n", " ").replace("\t", " "), most)


def places(
    spots: Sequence[tuple[float, float]], widths: Sequence[float], left: float, right: float
) -> list[tuple[int, int]]:
    """An offset for each of ``spots``, whose names are ``widths`` wide; the first choose first.

    Greedy: the least overlap with points and names already placed, within ``left`` and
    ``right``; the first of equals.
    """
    taken: list[Box] = [(x - POINT_PX, y - POINT_PX, x + POINT_PX, y + POINT_PX) for x, y in spots]
    chosen: list[tuple[int, int]] = []
    for spot, width in zip(spots, widths, strict=True):
        costs = []
        for offset in OFFSETS:
            mine = box(spot, width, offset)
            beyond = max(0.0, left - mine[0]) + max(0.0, mine[2] - right)
            costs.append(sum(overlap(mine, other) for other in taken) + OUTSIDE * beyond)
        best = OFFSETS[costs.index(min(costs))]
        taken.append(box(spot, width, best))
        chosen.append(best)
    return chosen


def box(spot: tuple[float, float], width: float, offset: tuple[int, int]) -> Box:
    """What a name covers."""
    (x, y), (dx, dy) = spot, offset
    start = x + dx if dx > 0 else x + dx - width
    return start, y + dy - HALF_LINE_PX, start + width, y + dy + HALF_LINE_PX


def overlap(one: Box, other: Box) -> float:
    """The area that two boxes share."""
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    return max(0.0, width) * max(0.0, height)


def inline_svg(plot: Plot) -> str:
    """The plot as an ``<svg>`` element whose colours are the page's CSS variables."""
    svg = _bare(_draw(plot, LIGHT, "svg").decode(), plot.name)
    name = escape(plot.alt, quote=True)
    return svg.replace("<svg ", f'<svg role="img" aria-label="{name}" ', 1)


def svg_file(plot: Plot) -> str:
    """The plot as a file of its own that follows the reader's light or dark theme."""
    svg = _bare(_draw(plot, LIGHT, "svg").decode(), plot.name)
    style = (
        f":root{{--sans:sans-serif;{css(LIGHT)}}}"
        f"@media (prefers-color-scheme: dark){{:root{{{css(DARK)}}}}}"
        "*{stroke-linejoin:round}"
    )
    head = (
        f"<title>{escape(plot.title)}</title><desc>{escape(plot.alt)}</desc>"
        f'<style>{style}</style><rect width="100%" height="100%" style="fill:var(--page)"/>'
    )
    size = f'width="{WIDTHS[plot.width]}" height="{plot.height}"'
    return re.sub(r"<svg ([^>]*>)", lambda m: f"<svg {size} {m[1]}{head}", svg, count=1)


def png(plot: Plot, *, dark: bool = False) -> bytes:
    """The plot as a PNG at twice the resolution of a plain screen."""
    return _draw(plot, DARK if dark else LIGHT, "png")


def _draw(plot: Plot, colours: Colours, form: Literal["svg", "png"]) -> bytes:
    from matplotlib.figure import Figure

    size = (WIDTHS[plot.width] / POINTS_PER_INCH, plot.height / POINTS_PER_INCH)
    stream = BytesIO()
    with _style(colours, plot.name):
        figure = Figure(figsize=size, layout="constrained")
        plot.draw(Sheet(figure, colours))
        figure.savefig(
            stream,
            format=form,
            dpi=POINTS_PER_INCH * (2 if form == "png" else 1),
            transparent=form == "svg",
            metadata={"Date": None} if form == "svg" else None,
        )
    return stream.getvalue()


@contextmanager
def _style(colours: Colours, salt: str) -> Iterator[None]:
    import matplotlib
    from matplotlib import style

    ink, muted, grid, page = (colours[n] for n in ("ink", "muted", "grid", "page"))
    settings: Any = {
        "svg.fonttype": "none",  # letters stay letters: small, and in the page's own font
        "svg.hashsalt": salt,
        "text.parse_math": False,  # names are data: a dollar sign in one is no formula
        "font.family": "sans-serif",
        "font.sans-serif": ["DejaVu Sans"],
        "font.size": FONT_PX,
        "axes.labelsize": FONT_PX,
        "axes.titlesize": FONT_PX,
        "axes.titlelocation": "left",
        "axes.titleweight": "bold",
        "xtick.labelsize": FONT_PX - 0.5,
        "ytick.labelsize": FONT_PX - 0.5,
        "legend.fontsize": FONT_PX - 0.5,
        "text.color": ink,
        "axes.labelcolor": muted,
        "axes.titlecolor": ink,
        "axes.edgecolor": muted,
        "axes.facecolor": page,
        "figure.facecolor": page,
        "savefig.facecolor": page,
        "xtick.color": muted,
        "ytick.color": muted,
        "grid.color": grid,
        "grid.linewidth": 0.8,
        "axes.linewidth": 0.8,
        "axes.axisbelow": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "legend.frameon": False,
        "legend.handlelength": 1.4,
        "legend.columnspacing": 1.2,
        "lines.linewidth": 1.8,
        "lines.markersize": 6.0,
        "axes.formatter.useoffset": False,
    }
    # "default" first: a reader's own matplotlibrc (LaTeX, sizes) is not what was designed here.
    with (
        warnings.catch_warnings(),
        style.context("default"),
        matplotlib.rc_context(settings),
    ):
        # Scripts that DejaVu lacks are drawn by the reader's browser, not by matplotlib.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        warnings.filterwarnings("ignore", message=".*constrained_layout.*")
        warnings.filterwarnings("ignore", message=".*layout engine.*")
        yield


def _bare(svg: str, prefix: str) -> str:
    """matplotlib's document as an element that shares a page with others.

    Its colours become variables, identifiers that nothing refers to go and the others get
    ``prefix``; the rule for all elements of the page goes as well.
    """
    svg = svg[svg.index("<svg ") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", svg, count=1, flags=re.DOTALL)
    svg = re.sub(r'(<svg [^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg [^>]*?) height="[^"]*"', r"\1", svg, count=1)
    tags = _TAG.findall(svg)
    used = {name for tag in tags for name in _REFERENCE.findall(tag)}

    def mended(match: re.Match[str]) -> str:
        tag = _ID.sub(lambda m: f' id="{prefix}-{m[1]}"' if m[1] in used else "", match[0])
        tag = _REFERENCE.sub(lambda m: m[0].replace("#", f"#{prefix}-", 1), tag)
        tag = _COLOUR.sub(lambda m: _VARIABLES.get(m[0], m[0]), tag)
        tag = _FAMILY.sub("font-family: var(--sans)", tag)
        return _NO_TURN.sub("", tag).replace("\n", "")

    # Only tags are touched: a label is data, whatever it looks like.
    return _TAG.sub(mended, svg).strip()
