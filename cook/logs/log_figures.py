"""What server logs say of a draft: acceptance and speed by pair of models.

Ratios are given twice: averaged over requests (each request counts alike, whatever its length),
and of the totals (each token counts alike). A long answer with a poor draft pulls the second
down and hardly moves the first; the second is what a user waits for.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from cook.engines.server_api import DepthCount
from cook.errors import InputError
from cook.logs.lines import Drafting, SweepRow
from cook.logs.requests import LoggedRequest, ServerLog, read_server_log
from cook.scoring.totals import Share, Total, total
from cook.units import plural

CONFIDENCE = 0.95
STDIN = "-"


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
    logs = [(name if name != STDIN else "stdin", _read(name, stdin)) for name in names]
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
    return LogReport(
        files=tuple(_file(name, log) for name, log in logs),
        pairs=tuple(_pair(*key, members) for key, members in groups.items()),
        warnings=tuple(_warnings(logs)),
    )


def _read(name: str, stdin: BinaryIO) -> ServerLog:
    if name == STDIN:
        return read_server_log(stdin)
    try:
        with Path(name).expanduser().open("rb") as stream:
            return read_server_log(stream)
    except OSError as error:
        raise InputError(f"{name}: {error.strerror or error}") from None
    except ValueError:  # a NUL in the name
        raise InputError(f"{name!r}: bad file name") from None


def _file(name: str, log: ServerLog) -> LogFile:
    requests = len(log.requests)
    return LogFile(
        name,
        log.lines,
        requests,
        log.refused,
        log.too_long,
        log.unread,
        log.drafting,
        log.sweeps,
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


_Parts = tuple[float, float] | None


def _acceptance(request: LoggedRequest) -> _Parts:
    if not request.drafted or request.accepted is None:
        return None
    return float(request.accepted), float(request.drafted)


def _length(request: LoggedRequest) -> _Parts:
    """Tokens a cycle; the cycles follow from emitted = 1 + accepted + cycles."""
    n, accepted = request.predicted_n, request.accepted
    if n is None or accepted is None or n - 1 <= accepted:
        return None
    return float(n - 1), float(n - 1 - accepted)


def _decode(request: LoggedRequest) -> _Parts:
    n, ms = request.predicted_n, request.predicted_ms
    return (float(n - 1), ms / 1000) if n is not None and n > 1 and ms else None


def _logged(request: LoggedRequest) -> _Parts:
    rate, ms = request.logged_tokens_per_s, request.predicted_ms
    return (rate * ms / 1000, ms / 1000) if rate and ms else None


def _prompt(request: LoggedRequest) -> _Parts:
    n, ms = request.prompt_n, request.prompt_ms
    return (float(n), ms / 1000) if n and ms else None


def _end_to_end(request: LoggedRequest) -> _Parts:
    decode, ms = _decode(request), request.prompt_ms
    return (decode[0], decode[1] + ms / 1000) if decode is not None and ms is not None else None


_FIGURES: tuple[tuple[str, str, Callable[[LoggedRequest], _Parts], float, float], ...] = (
    ("acceptance", "", _acceptance, 0.0, 1.0),
    ("tokens a cycle", "", _length, 1.0, math.inf),
    ("decode speed", "t/s", _decode, 0.0, math.inf),
    ("decode speed as logged", "t/s", _logged, 0.0, math.inf),
    ("end-to-end speed", "t/s", _end_to_end, 0.0, math.inf),
    ("prompt speed", "t/s", _prompt, 0.0, math.inf),
)


def _pair(
    target: str | None, draft: str | None, file: str | None, requests: Sequence[LoggedRequest]
) -> Pair:
    found = (_figure(*spec, requests) for spec in _FIGURES)
    return Pair(
        target=target,
        draft=draft,
        file=file,
        figures=tuple(figure for figure in found if figure is not None),
        correlation=_correlation(requests),
        by_depth=_by_depth(requests),
        requests=tuple(requests),
    )


def _figure(
    name: str,
    unit: str,
    parts_of: Callable[[LoggedRequest], _Parts],
    least: float,
    most: float,
    requests: Sequence[LoggedRequest],
) -> PairFigure | None:
    parts = [p for request in requests if (p := parts_of(request)) is not None]
    whole = total([Share(*p) for p in parts], confidence=CONFIDENCE, least=least, most=most)
    if whole is None:
        return None
    return PairFigure(name, unit, spread([a / b for a, b in parts]), whole)


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


def _correlation(requests: Sequence[LoggedRequest]) -> float | None:
    both = [
        (a, s)
        for r in requests
        if (a := r.acceptance) is not None and (s := r.decode_tokens_per_s) is not None
    ]
    if len(both) < 3:
        return None
    try:
        return statistics.correlation([a for a, _ in both], [s for _, s in both])
    except statistics.StatisticsError:  # one of them is the same everywhere
        return None


def _by_depth(requests: Sequence[LoggedRequest]) -> tuple[DepthCount, ...]:
    counts: dict[int, tuple[int, int]] = {}
    for request in requests:
        for at in request.by_depth:
            drafted, accepted = counts.get(at.depth, (0, 0))
            counts[at.depth] = drafted + at.drafted, accepted + at.accepted
    return tuple(DepthCount(depth, *counts[depth]) for depth in sorted(counts))
