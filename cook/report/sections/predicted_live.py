"""Section: predicted against live speed, on the same requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from cook.record.record import Candidate, Record
from cook.report.canvas import Named, Plot, Sheet
from cook.report.document import Cells, Section, Text, figures
from cook.report.numbers import number, tokens_per_s
from cook.report.speedups import DECODE, ForecastCheck, factor_notes, forecast_check

TITLE = "Predicted and live"
MOST_LABELS = 10


def section(record: Record) -> Section:
    """Candidates that have both figures, and how far apart they are."""
    pairs = [(c, found) for c in record.candidates if (found := forecast_check(c)) is not None]
    if not pairs:
        return Section("forecast", TITLE, absent=_why(record))
    table = figures(
        (
            *("candidate", "predicted t/s", "live t/s", "off by"),
            *("predicted decode t/s", "live decode t/s", "decode off by"),
        ),
        ((c.name, *_cells(whole), *_cells(forecast_check(c, DECODE))) for c, whole in pairs),
        pick=record.pick.candidate,
    )
    points = {candidate.name: found for candidate, found in pairs}

    def draw(sheet: Sheet) -> None:
        _draw(sheet, points, record.pick.candidate)

    lead = (
        "Speeds on the requests that ran live; off by: predicted / live - 1. Nothing in a forecast "
        "is fitted to live runs. On the diagonal it was right."
    )
    plot = Plot("forecast", TITLE, table.alt("Predicted and live speed"), draw, height=360)
    notes = [*(f"{note}." for note in factor_notes(record)), *check_notes(record)]
    return Section("forecast", TITLE, lead, (plot, table, *(Text(n, quiet=True) for n in notes)))


def check_notes(record: Record) -> Iterator[str]:
    """Whether replayed counts are the server's, what they would be by rejection sampling, and how
    they differ without any cause."""
    for candidate in record.candidates:
        if (other := _by_rejection(candidate)) is not None:
            yield other
        found = candidate.counts
        if found is None:
            continue
        text = (
            f"{candidate.name}: {found.exact} of {found.requests} live requests recounted exactly"
        )
        if found.live_drafted and found.replay_drafted:
            live = found.live_accepted / found.live_drafted
            replay = found.replay_accepted / found.replay_drafted
            text += f"; one-pass replay counts {replay:.1%} accepted, the server {live:.1%}"
        if found.passed_over:
            text += f"; {found.passed_over} replies passed over, known only as text"
        yield text
    for floor in record.noise:
        yield (
            f"noise floor on {floor.engine}: one draft's acceptance differs by up to "
            f"{floor.acceptance:.2%} between two batch shapes ({floor.confidence:.0%})"
        )


def _by_rejection(candidate: Candidate) -> str | None:
    guess = candidate.predicted
    found = guess.rejection if guess is not None else None
    if guess is None or found is None or candidate.live is None or not found.drafted:
        return None
    rate = number(guess.figures.acceptance_rate, ".1%") or "nothing"
    text = (
        f"{candidate.name}: by the server's rule {rate} of drafted tokens are accepted as "
        f"replayed, by rejection sampling {found.accepted / found.drafted:.1%} would be"
    )
    if found.decode_speed is not None:
        text += (
            f": {found.decode_speed:.2f} t/s decode in place of {guess.figures.decode_speed:.2f}"
        )
    return text


def _cells(found: ForecastCheck | None) -> Cells:
    if found is None:
        return None, None, None
    return tokens_per_s(found.predicted), tokens_per_s(found.live), f"{found.off_by:+.1%}"


def _why(record: Record) -> str:
    if not record.candidates:
        return "nothing was scored"
    if not any(c.predicted for c in record.candidates):
        return "nothing was predicted: every figure was measured live"
    return "no candidate has both a forecast and a live run"


def _draw(sheet: Sheet, points: Mapping[str, ForecastCheck], pick: str | None) -> None:
    axes = sheet.axes("predicted, tokens/s", "live, tokens/s")
    every = [speed for found in points.values() for speed in (found.live, found.predicted)]
    room = (max(every) - min(every)) * 0.15 or max(every) * 0.1
    ends = max(0.0, min(every) - room), max(every) + room
    axes.plot(ends, ends, "--", color=sheet.colour("muted"), linewidth=1.2)
    axes.set_xlim(ends)
    axes.set_ylim(ends)
    for found in points.values():
        sheet.point(axes, found.predicted, found.live, sheet.colour("s0"), live=True)
    named = [Named(p.predicted, p.live, name, name == pick) for name, p in points.items()]
    sheet.name(axes, named, MOST_LABELS)
