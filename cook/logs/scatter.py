"""The scatter of a log: acceptance against decode speed, a point a request, a colour a pair."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cook.errors import InputError
from cook.files import atomic_write
from cook.logs.log_figures import Pair
from cook.report.canvas import Plot, Sheet, label, png, svg_file

SUFFIXES = (".svg", ".png")
MOST_PAIRS = 16
MOST_POINTS = 20_000


def check_plot_path(path: Path) -> None:
    """InputError where a plot cannot be written to ``path``."""
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"{path}: a plot is .svg or .png")
    if not path.absolute().parent.is_dir():
        raise InputError(f"{path.absolute().parent} is no directory")


def write_scatter(pairs: Sequence[Pair], path: Path) -> int:
    """Draw ``pairs`` into ``path``; the number of points. InputError where there is none."""
    series = [(pair, points) for pair in pairs if (points := _points(pair))]
    if not series:
        raise InputError(
            "nothing to plot: no request has both draft counts and a decode time",
            hint="acceptance is logged when the server drafts; see `cook logs` without --plot",
        )
    drawn = series[:MOST_PAIRS]
    count = sum(len(points) for _, points in drawn)
    alt = "Acceptance against decode speed, a point a request: " + "; ".join(
        f"{pair.name}, {len(points)} requests" for pair, points in drawn
    )

    def draw(sheet: Sheet) -> None:
        axes = sheet.axes("acceptance, % of drafted tokens", "decode speed, t/s")
        for index, (pair, points) in enumerate(drawn):
            colour, marker = sheet.series(index)
            shown = points[:: -(-len(points) // MOST_POINTS)]
            axes.scatter(
                [100 * acceptance for acceptance, _ in shown],
                [speed for _, speed in shown],
                s=18,
                color=colour,
                marker=marker,
                alpha=0.75,
                linewidths=0,
                label=label(f"{pair.name} (n={len(points)})", 48),
            )
        sheet.legend(axes, len(drawn))

    plot = Plot("log-scatter", "Acceptance and speed by request", alt, draw, 420, width="full")
    image = png(plot) if path.suffix.lower() == ".png" else svg_file(plot).encode()
    with atomic_write(path) as file:
        file.write(image)
    return count


def _points(pair: Pair) -> list[tuple[float, float]]:
    return [
        (point.acceptance, point.decode_tokens_per_s)
        for point in pair.requests
        if point.acceptance is not None and point.decode_tokens_per_s is not None
    ]
