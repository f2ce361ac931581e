"""Section: predicted against live speed."""

from __future__ import annotations

from cook.record.measured import Calibration
from cook.record.record import Candidate, Record
from cook.report.canvas import Named, Plot, Sheet
from cook.report.compared import finite
from cook.report.document import Section, Text, figures
from cook.report.numbers import number
from cook.report.show import counted, noise_told
from cook.units import plural

TITLE = "Predicted and live"
MOST_LABELS = 10
JUDGED = ("decode off by", "by timings alone", "judged on")
"""``judged on``: live replies that nothing was fitted on."""


def section(record: Record) -> Section:
    """Candidates that have both figures, and how far apart they are."""
    both = [(c, live, guess) for c in record.candidates for live, guess in [_pair(c)] if live]
    pairs = [(c, live, guess) for c, live, guess in both if guess]
    if not pairs:
        return Section("forecast", TITLE, absent=_why(record))
    alt = "Predicted and live end-to-end speed: " + "; ".join(
        f"{c.name} predicted {guess:.2f} t/s, live {live:.2f} t/s" for c, live, guess in pairs[:6]
    )
    table = figures(
        (
            *("candidate", "predicted t/s", "live t/s", "off by", "predicted/live, interval"),
            *(JUDGED if record.calibrations else ()),
        ),
        (
            (*_row(c, live, guess), *(_judged(c) if record.calibrations else ()))
            for c, live, guess in pairs
        ),
    )

    def draw(sheet: Sheet) -> None:
        _draw(sheet, pairs, record.pick.candidate)

    lead = (
        "End-to-end speed over the prompts that ran live. On the diagonal the forecast was right; "
        "where the two disagree beyond the interval, trust the live figure."
    )
    plot = Plot("forecast", TITLE, alt + ".", draw, height=360, narrow_height=330)
    notes = [Text(_fitted(one), quiet=True) for one in record.calibrations]
    notes += [Text(told, quiet=True) for c in record.candidates if (told := counted(c))]
    notes += [Text(noise_told(floor), quiet=True) for floor in record.noise]
    return Section("forecast", TITLE, lead, (plot, table, *notes))


def _judged(candidate: Candidate) -> tuple[str | None, ...]:
    found = candidate.predicted
    assert found is not None, "it was paired"
    return (
        number(finite(found.decode_off_by), "+.1%"),
        number(finite(found.timed_off_by), "+.1%"),
        str(found.judged) if found.judged else None,
    )


def _fitted(found: Calibration) -> str:
    """What corrected the timings of one engine, and on what it was fitted."""
    over = found.overheads
    parts = {
        "a step without a draft": over.plain_s,
        "a step with one": over.step_s,
        "a drafted token": over.decode_s,
        "a request without a draft": over.plain_request_s,
        "a request with one": over.request_s,
    }
    told = f"{over.slower:+.1%} of every step and prompt, "
    told += ", ".join(f"{1000 * s:+.3g} ms {what}" for what, s in parts.items())
    prompts = plural(len(found.prompts), "prompt")
    text = (
        f"{found.engine}: fitted to live requests, beside what was timed: {told}; on {prompts} "
        f"({found.replies} replies of {', '.join(found.candidates)}). Errors are told on the others"
    )
    if found.halved:
        text += "; there was one live round only, and its prompts were split in two halves"
    return text + "."


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
        number(off_by, "+.1%"),
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
    named = [Named(guess, live, c.name, c.name == pick) for c, live, guess in pairs]
    sheet.name(axes, named, MOST_LABELS)
