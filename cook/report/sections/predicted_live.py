"""Section: predicted against live speed."""

from __future__ import annotations

from cook.record.record import Candidate, Record
from cook.report.canvas import Named, Plot, Sheet
from cook.report.compared import finite
from cook.report.document import Section, Table, Text
from cook.report.show import counted, noise_told

TITLE = "Predicted and live"
MOST_LABELS = 10


def section(record: Record) -> Section:
    """Candidates that have both figures, and how far apart they are."""
    both = [(c, live, guess) for c in record.candidates for live, guess in [_pair(c)] if live]
    pairs = [(c, live, guess) for c, live, guess in both if guess]
    if not pairs:
        return Section("forecast", TITLE, absent=_why(record))
    alt = "Predicted and live end-to-end speed: " + "; ".join(
        f"{c.name} predicted {guess:.2f} t/s, live {live:.2f} t/s" for c, live, guess in pairs[:6]
    )
    rows = tuple(_row(c, live, guess) for c, live, guess in pairs)
    table = Table(
        columns=(
            ("candidate", "left"),
            ("predicted t/s", "right"),
            ("live t/s", "right"),
            ("off by", "right"),
            ("predicted/live, interval", "right"),
        ),
        rows=rows,
        title="Figures",
    )

    def draw(sheet: Sheet) -> None:
        _draw(sheet, pairs, record.pick.candidate)

    lead = (
        "End-to-end speed over the prompts that ran live. On the diagonal the forecast was right; "
        "where the two disagree beyond the interval, trust the live figure."
    )
    plot = Plot("forecast", TITLE, alt + ".", draw, height=360, narrow_height=330)
    notes = [Text(told, quiet=True) for c in record.candidates if (told := counted(c))]
    notes += [Text(noise_told(floor), quiet=True) for floor in record.noise]
    return Section("forecast", TITLE, lead, (plot, table, *notes))


def _pair(candidate: Candidate) -> tuple[float | None, float | None]:
    live = finite(candidate.live.end_to_end_speed) if candidate.live else None
    found = candidate.predicted
    return live, finite(found.figures.end_to_end_speed) if found else None


def _why(record: Record) -> str:
    if not record.candidates:
        return "nothing was scored"
    if not any(c.predicted for c in record.candidates):
        return "nothing was predicted: every figure was measured live"
    return "no candidate has both a forecast and a live run"


def _row(candidate: Candidate, live: float, guess: float) -> tuple[str | None, ...]:
    found = candidate.predicted
    off_by = finite(found.off_by) if found else None
    interval = found.off_by_interval if found else None
    return (
        candidate.name,
        f"{guess:.2f}",
        f"{live:.2f}",
        f"{off_by:+.1%}" if off_by is not None else None,
        f"{interval.low:.3f} to {interval.high:.3f}" if interval else None,
    )


def _draw(sheet: Sheet, pairs: list[tuple[Candidate, float, float]], pick: str | None) -> None:
    axes = sheet.axes("predicted, tokens/s", "live, tokens/s")
    every = [v for _, live, guess in pairs for v in (live, guess)]
    space = (max(every) - min(every)) * 0.15 or max(every) * 0.1
    low, high = max(0.0, min(every) - space), max(every) + space
    axes.plot([low, high], [low, high], "--", color=sheet.colour("muted"), linewidth=1.2)
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)
    for candidate, live, guess in pairs:
        chosen = candidate.name == pick
        found = candidate.predicted
        interval = found.off_by_interval if found else None
        if interval and finite(interval.low) and finite(interval.high):
            # predicted/live lies in the interval, so live lies in predicted / interval.
            ends = [guess / interval.high, guess / interval.low]
            axes.plot([guess, guess], ends, color=sheet.colour("muted"), linewidth=1.4)
        axes.plot(
            [guess],
            [live],
            "o",
            color=sheet.colour("s0" if candidate.draft else "s7"),
            markersize=7,
            zorder=3,
        )
        if chosen:
            sheet.ring(axes, guess, live)
    sheet.name(
        axes,
        [
            Named(guess, live, candidate.name, candidate.name == pick)
            for candidate, live, guess in pairs
            if len(pairs) <= MOST_LABELS or candidate.name == pick
        ],
    )
