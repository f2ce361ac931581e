"""Section: predicted against live speed, on the same requests."""

from __future__ import annotations

from collections.abc import Iterator

from cook.record.record import Candidate, Objective, Record
from cook.report.canvas import Named, Plot, Sheet
from cook.report.document import Cells, Section, Text, figures
from cook.report.speedups import DECODE, WHOLE, factor_notes, positive, runs_of
from cook.report.texts import tokens_per_s
from cook.scoring.compare import figures as figures_of
from cook.units import number

TITLE = "Predicted and live"
MOST_LABELS = 10


def forecast_check(
    candidate: Candidate, objective: Objective = WHOLE
) -> tuple[float, float] | None:
    """The candidate's forecast and its live speed on the same requests, tokens/s; None where it
    does not have both."""
    guess, live = candidate.predicted, candidate.live
    if guess is None or guess.on_live is None or live is None:
        return None
    if guess.on_live.requests != live.requests and candidate.prompts and guess.prompts:
        known = set(guess.prompts.ids)  # some live requests have no forecast
        runs = [run for run in runs_of(candidate.prompts) if run.id in known]
        live = figures_of(runs) if runs else None
    predicted = positive(objective.of(guess.on_live))
    seen = positive(objective.of(live)) if live is not None else None
    return (predicted, seen) if predicted is not None and seen is not None else None


def section(record: Record) -> Section:
    """Candidates that have both figures, and how far apart they are."""
    checks = {c.name: found for c in record.candidates if (found := forecast_check(c))}
    if not checks:
        why = "no candidate has both a forecast and a live run"
        if not record.candidates:
            why = "nothing was scored"
        elif not any(c.predicted for c in record.candidates):
            why = "nothing was predicted: every figure was measured live"
        return Section("forecast", TITLE, absent=why)
    both = [c for c in record.candidates if c.name in checks]
    pick = record.pick.candidate
    table = figures(
        (
            *("candidate", "predicted t/s", "live t/s", "off by"),
            *("predicted decode t/s", "live decode t/s", "decode off by"),
        ),
        ((c.name, *_cells(checks[c.name]), *_cells(forecast_check(c, DECODE))) for c in both),
        pick=pick,
    )

    def draw(sheet: Sheet) -> None:
        axes = sheet.axes("predicted, tokens/s", "live, tokens/s")
        every = [speed for both in checks.values() for speed in both]
        room = (max(every) - min(every)) * 0.15 or max(every) * 0.1
        ends = max(0.0, min(every) - room), max(every) + room
        axes.plot(ends, ends, "--", color=sheet.colour("muted"), linewidth=1.2)
        axes.set(xlim=ends, ylim=ends)
        for guess, seen in checks.values():
            sheet.point(axes, guess, seen, sheet.colour("s0"), live=True)
        points = [Named(*pair, name, name == pick) for name, pair in checks.items()]
        sheet.name(axes, points, MOST_LABELS)

    lead = (
        "Speeds on the requests that ran live; off by: predicted / live - 1. Nothing in a forecast "
        "is fitted to live runs. On the diagonal it was right."
    )
    plot = Plot("forecast", TITLE, table.alt("Predicted and live speed"), draw, height=360)
    notes = [*(f"{note}." for note in factor_notes(record)), *_check_notes(record)]
    return Section("forecast", TITLE, lead, (plot, table, *map(Text, notes)))


def _check_notes(record: Record) -> Iterator[str]:
    """Whether replayed counts are the server's, what they would be by rejection sampling, and how
    they differ without any cause."""
    for candidate in record.candidates:
        guess = candidate.predicted
        other = guess.rejection if guess is not None else None
        if guess and other and candidate.live is not None and other.drafted:
            rate = number(guess.figures.acceptance_rate, ".1%") or "nothing"
            text = (
                f"{candidate.name}: by the server's rule {rate} of drafted tokens are accepted as "
                f"replayed, by rejection sampling {other.accepted / other.drafted:.1%} would be"
            )
            if other.decode_speed is not None:
                own = guess.figures.decode_speed
                text += f": {other.decode_speed:.2f} t/s decode in place of {own:.2f}"
            yield text
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
            f"{floor.acceptance:.2%} between one pass and token by token ({floor.confidence:.0%})"
        )


def _cells(found: tuple[float, float] | None) -> Cells:
    if found is None:
        return None, None, None
    guess, seen = found
    return tokens_per_s(guess), tokens_per_s(seen), f"{guess / seen - 1:+.1%}"
