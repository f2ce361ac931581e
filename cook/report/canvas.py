"""Drawing with matplotlib: themed SVG that goes inline into a page, SVG files and PNG.

matplotlib is imported here only, inside functions. Lengths are CSS pixels: a drawing is so wide
as it will be shown, so that its letters have the size of the page's.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape
from io import BytesIO
from typing import TYPE_CHECKING, Any, Literal

from cook.paths import package_dir
from cook.report.palette import DARK, LIGHT, SERIES, Colours, css
from cook.report.texts import clipped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
        for point, (x, y) in zip(named, spots, strict=True):
            text = label(point.text, 24)
            width = len(text) * FONT_PX * (0.66 if point.strong else 0.6)
            boxes = {
                (dx, dy): Bbox.from_bounds(x + dx - (0 if dx > 0 else width), y + dy - 6, width, 12)
                for dx, dy in OFFSETS
            }
            dx, dy = min(boxes, key=lambda offset: _cost(boxes[offset], taken, axes.bbox))
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


def _cost(box: Any, taken: Sequence[Any], inside: Any) -> float:
    """The area that a name would cover of what is ``taken``, and 30 a pixel beyond the edges."""
    from matplotlib.transforms import Bbox

    common = (Bbox.intersection(box, other) for other in taken)
    beyond: float = max(0.0, inside.x0 - box.x0) + max(0.0, box.x1 - inside.x1 - 4)
    return 30 * beyond + sum(float(part.width * part.height) for part in common if part)


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
        # Scripts that DejaVu lacks are drawn by the reader's browser, not by matplotlib.
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
