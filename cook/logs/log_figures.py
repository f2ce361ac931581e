"""What server logs say of a draft: acceptance and speed by pair of models.

Ratios are given twice: averaged over requests (each request counts alike, whatever its length),
and of the totals (each token counts alike). A long answer with a poor draft pulls the second
down and hardly moves the first; the second is what a user waits for. The scatter has a point a
request, acceptance against decode speed, and a colour a pair.
"""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from cook.engines.server_api import DepthCount
from cook.errors import InputError
from cook.files import atomic_write
from cook.logs.lines import Drafting, SweepRow
from cook.logs.requests import LoggedRequest, ServerLog, read_server_log
from cook.scoring.totals import Share, Total, total
from cook.units import plural

if TYPE_CHECKING:
    from cook.report.canvas import Sheet

CONFIDENCE = 0.95
STDIN = "-"
SUFFIXES = (".svg", ".png")
MOST_PAIRS = 16
MOST_POINTS = 20_000


@dataclass(frozen=True)
class Spread:
    """A figure over ``n`` requests, each counting alike. ``stdev`` is of the sample (n - 1)."""

    n: int
    mean: float
    median: float
    stdev: float | None
    low: float
    high: float


@dataclass(frozen=True)
class PairFigure:
    """One figure of a pair: over requests, and of the totals (None where there are no totals)."""

    name: str
    unit: str
    spread: Spread
    total: Total


@dataclass(frozen=True)
class Pair:
    """A target with a draft, or with none; ``file`` only where the log names no draft."""

    target: str | None
    draft: str | None
    file: str | None
    figures: tuple[PairFigure, ...]
    correlation: float | None
    """Pearson's, of acceptance and decode speed over requests; None with fewer than three."""
    by_depth: tuple[DepthCount, ...]
    requests: tuple[LoggedRequest, ...]

    @property
    def name(self) -> str:
        """For a person: the models that are known, else the file."""
        models = " + ".join(m for m in (self.target, self.draft) if m)
        return f"{models} ({self.file})" if models and self.file else models or self.file or "?"

    def figure(self, name: str) -> PairFigure | None:
        """The figure called ``name``, where some request has it."""
        return next((f for f in self.figures if f.name == name), None)


@dataclass(frozen=True)
class LogFile:
    """One log: what was read of it and what was not."""

    file: str
    lines: int
    requests: int
    refused: int
    too_long: int
    unread: int
    drafting: tuple[Drafting, ...]
    sweeps: tuple[tuple[SweepRow, ...], ...]


@dataclass(frozen=True)
class LogReport:
    """All logs together; pairs in the order in which the logs name them."""

    files: tuple[LogFile, ...]
    pairs: tuple[Pair, ...]
    warnings: tuple[str, ...]


def read_logs(names: Sequence[str], stdin: BinaryIO) -> LogReport:
    """Read the logs called ``names`` (``-``: ``stdin``). InputError for one that can't be read."""
    if names.count(STDIN) > 1:
        raise InputError("standard input can be read once only")
    logs = []
    for name in names:
        if name == STDIN:
            logs.append(("stdin", read_server_log(stdin)))
            continue
        try:
            with Path(name).expanduser().open("rb") as stream:
                logs.append((name, read_server_log(stream)))
        except OSError as error:
            raise InputError(f"{name}: {error.strerror or error}") from None
        except ValueError:  # a NUL in the name
            raise InputError(f"{name!r}: bad file name") from None
    return report(logs)


def report(logs: Sequence[tuple[str, ServerLog]]) -> LogReport:
    """Statistics of logs that were read, each with its name."""
    groups: dict[tuple[str | None, str | None, str | None], list[LoggedRequest]] = {}
    for name, log in logs:
        for request in log.requests:
            # Without a draft's name only the file tells one draft's runs from another's.
            alone = request.draft is None and (len(logs) > 1 or request.target is None)
            key = (request.target, request.draft, name if alone else None)
            groups.setdefault(key, []).append(replace(request, file=name))
    files = (
        LogFile(
            file=name,
            lines=log.lines,
            requests=len(log.requests),
            refused=log.refused,
            too_long=log.too_long,
            unread=log.unread,
            drafting=log.drafting,
            sweeps=log.sweeps,
        )
        for name, log in logs
    )
    return LogReport(
        files=tuple(files),
        pairs=tuple(_pair(*key, members) for key, members in groups.items()),
        warnings=tuple(_warnings(logs)),
    )


def _warnings(logs: Sequence[tuple[str, ServerLog]]) -> list[str]:
    """What was left out of each log. InputError where that is all that the log holds."""
    warnings = []
    for name, log in logs:
        unread = plural(log.unread, "line")
        if log.first_unread is not None:
            first = log.first_unread
            if not (log.requests or log.sweeps or log.drafting):
                raise InputError(
                    f"{name}:{first.line}: {unread} with the engine's words for timings or "
                    f"acceptance, none of which could be read; the first is: {first.why}",
                    hint="cut off what stands before the engine's words, or show us such a line",
                )
            warnings.append(
                f"{name}: {unread} with the engine's words for timings or acceptance not read, "
                f"first line {first.line}: {first.why}"
            )
        elif not log.requests and not log.sweeps:
            lines = plural(log.lines, "line")
            warnings.append(f"{name}: no request in {lines}; is it a llama-server log?")
        if log.refused:
            first, lines = log.suspects[0], plural(log.refused, "line")
            warnings.append(
                f"{name}: {lines} with figures that contradict themselves left out, first line "
                f"{first.line}: {first.why}"
            )
        if log.too_long:
            lines = plural(log.too_long, "line")
            warnings.append(f"{name}: {lines} of more than 4 MiB not read")
    return warnings


_FIGURES = {
    "acceptance": ("", 0.0, 1.0),
    "tokens a cycle": ("", 1.0, math.inf),
    "decode speed": ("t/s", 0.0, math.inf),
    "decode speed as logged": ("t/s", 0.0, math.inf),
    "end-to-end speed": ("t/s", 0.0, math.inf),
    "prompt speed": ("t/s", 0.0, math.inf),
}
"""Figure -> its unit, and the least and the most that it can be."""


def _parts(request: LoggedRequest) -> dict[str, tuple[float, float]]:
    """The numerator and the denominator of each figure that the request has."""
    n, ms, accepted = request.predicted_n, request.predicted_ms, request.accepted
    found: dict[str, tuple[float, float]] = {}
    if request.drafted and accepted is not None:
        found["acceptance"] = float(accepted), float(request.drafted)
    if n is not None and accepted is not None and n - 1 > accepted:
        # The cycles follow from emitted = 1 + accepted + cycles.
        found["tokens a cycle"] = float(n - 1), float(n - 1 - accepted)
    if n is not None and n > 1 and ms:
        found["decode speed"] = float(n - 1), ms / 1000
        if request.prompt_ms is not None:
            found["end-to-end speed"] = float(n - 1), ms / 1000 + request.prompt_ms / 1000
    if request.logged_tokens_per_s and ms:
        found["decode speed as logged"] = request.logged_tokens_per_s * ms / 1000, ms / 1000
    if request.prompt_n and request.prompt_ms:
        found["prompt speed"] = float(request.prompt_n), request.prompt_ms / 1000
    return found


def _pair(
    target: str | None, draft: str | None, file: str | None, requests: Sequence[LoggedRequest]
) -> Pair:
    figures = []
    every = [_parts(request) for request in requests]
    for name, (unit, least, most) in _FIGURES.items():
        parts = [found[name] for found in every if name in found]
        whole = total([Share(*p) for p in parts], confidence=CONFIDENCE, least=least, most=most)
        if whole is not None:
            figures.append(PairFigure(name, unit, spread([a / b for a, b in parts]), whole))
    counts: dict[int, tuple[int, int]] = {}
    for request in requests:
        for at in request.by_depth:
            drafted, accepted = counts.get(at.depth, (0, 0))
            counts[at.depth] = drafted + at.drafted, accepted + at.accepted
    correlation = None
    points = _points(requests)
    if len(points) >= 3:
        with contextlib.suppress(statistics.StatisticsError):  # one is the same everywhere
            correlation = statistics.correlation(*zip(*points, strict=True))
    return Pair(
        target=target,
        draft=draft,
        file=file,
        figures=tuple(figures),
        correlation=correlation,
        by_depth=tuple(DepthCount(depth, *counts[depth]) for depth in sorted(counts)),
        requests=tuple(requests),
    )


def _points(requests: Sequence[LoggedRequest]) -> list[tuple[float, float]]:
    """Acceptance and decode speed of each request that has both."""
    return [
        (acceptance, speed)
        for r in requests
        if (acceptance := r.acceptance) is not None and (speed := r.decode_tokens_per_s) is not None
    ]


def spread(values: Sequence[float]) -> Spread:
    """Mean, median, standard deviation and range of at least one value."""
    return Spread(
        n=len(values),
        mean=statistics.fmean(values),
        median=statistics.median(values),
        stdev=statistics.stdev(values) if len(values) > 1 else None,
        low=min(values),
        high=max(values),
    )


def check_plot_path(path: Path) -> None:
    """InputError where a plot cannot be written to ``path``."""
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"{path}: a plot is .svg or .png")
    if not path.absolute().parent.is_dir():
        raise InputError(f"{path.absolute().parent} is no directory")


def write_scatter(pairs: Sequence[Pair], path: Path) -> int:
    """Draw ``pairs`` into ``path``; the number of points. InputError where there is none."""
    from cook.report.canvas import Plot, label, png, svg_file

    series = [(pair, points) for pair in pairs if (points := _points(pair.requests))]
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
