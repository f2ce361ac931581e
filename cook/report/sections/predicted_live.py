"""Section: predicted against live speed, on the same requests."""

from __future__ import annotations

from collections.abc import Sequence

from cook.record.record import Candidate, Record
from cook.report.canvas import Named, Plot, Sheet
from cook.report.document import Section, Text, figures
from cook.report.numbers import tokens_per_s
from cook.report.show import counted, noise_text
from cook.report.speedups import DECODE, ForecastCheck, factor_notes, forecast_check

TITLE = "Predicted and live"
MOST_LABELS = 10

_Pair = tuple[Candidate, ForecastCheck]


def section(record: Record) -> Section:
    """Candidates that have both figures, and how far apart they are."""
    pairs = [(c, found) for c in record.candidates if (found := forecast_check(c)) is not None]
    if not pairs:
        return Section("forecast", TITLE, absent=_why(record))
    alt = "Predicted and live end-to-end speed: " + "; ".join(
        f"{c.name} predicted {p.predicted:.2f} t/s, live {p.live:.2f} t/s" for c, p in pairs[:6]
    )
    table = figures(
        (
            *("candidate", "predicted t/s", "live t/s", "off by"),
            *("predicted decode t/s", "live decode t/s", "decode off by"),
        ),
        ((c.name, *_cells(whole), *_cells(forecast_check(c, DECODE))) for c, whole in pairs),
        pick=record.pick.candidate,
    )

    def draw(sheet: Sheet) -> None:
        _draw(sheet, pairs, record.pick.candidate)

    lead = (
        "Speeds on the requests that ran live; off by: predicted / live - 1. Nothing in a forecast "
        "is fitted to live runs. On the diagonal it was right."
    )
    plot = Plot("forecast", TITLE, alt + ".", draw, height=360, narrow_height=330)
    notes = [f"{note}." for note in factor_notes(record)]
    notes += [text for c in record.candidates if (text := counted(c))]
    notes += [noise_text(floor) for floor in record.noise]
    return Section("forecast", TITLE, lead, (plot, table, *(Text(n, quiet=True) for n in notes)))


def _cells(found: ForecastCheck | None) -> tuple[str | None, ...]:
    if found is None:
        return None, None, None
    return tokens_per_s(found.predicted), tokens_per_s(found.live), f"{found.off_by:+.1%}"


def _why(record: Record) -> str:
    if not record.candidates:
        return "nothing was scored"
    if not any(c.predicted for c in record.candidates):
        return "nothing was predicted: every figure was measured live"
    return "no candidate has both a forecast and a live run"


def _draw(sheet: Sheet, pairs: Sequence[_Pair], pick: str | None) -> None:
    axes = sheet.axes("predicted, tokens/s", "live, tokens/s")
    every = [v for _, p in pairs for v in (p.live, p.predicted)]
    space = (max(every) - min(every)) * 0.15 or max(every) * 0.1
    low, high = max(0.0, min(every) - space), max(every) + space
    axes.plot([low, high], [low, high], "--", color=sheet.colour("muted"), linewidth=1.2)
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)
    for candidate, found in pairs:
        colour = sheet.colour("s0" if candidate.draft else "s7")
        axes.plot([found.predicted], [found.live], "o", color=colour, markersize=7, zorder=3)
    named = [Named(p.predicted, p.live, c.name, c.name == pick) for c, p in pairs]
    sheet.name(axes, named, MOST_LABELS)
