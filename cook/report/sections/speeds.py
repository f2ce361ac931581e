"""Sections: speeds. End-to-end speedups with no draft at 1, of each draft and by category of
prompt; what was predicted against what ran live; and where the time goes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from cook.record.record import Candidate, Objective, Record
from cook.report.canvas import Named, Plot, Sheet, label
from cook.report.compared import (
    Basis,
    Scored,
    at_common_setting,
    drawn,
    kind_of,
    picked,
    scored_as,
)
from cook.report.document import Cells, Section, Table, figures
from cook.report.sections.tables import speeds_table
from cook.report.speedups import (
    DECODE,
    WHOLE,
    Speedup,
    drafts_at_their_best,
    factor_notes,
    positive,
    runs_of,
    speed_notes,
    speedups_by_category,
)
from cook.report.texts import named, tokens_per_s
from cook.scoring.compare import figures as figures_of
from cook.units import number

MOST_DRAFTS = 16
MOST_CATEGORIES = 24
LEAST_SPAN = 0.2
"""In shares of no draft's speed."""
MOST_SPAN = 1.6
"""Intervals and single requests are cut where they leave the speedups by more than this."""


def by_draft(record: Record) -> Section:
    """A row a draft, fastest first: live filled, predicted hollow."""
    title, drafts = "End-to-end speedup of each draft", drafts_at_their_best(record)
    if not drafts:
        return Section("speedups", title, absent="no speed with a draft and without one")
    table = speeds_table(record, (one.candidate for one in drafts))
    pick = record.pick.candidate
    names = drawn([one.name for one in drafts], MOST_DRAFTS, pick)
    rows = [one for one in drafts if one.name in names]
    lead = "Each draft at its best draft length, over no draft (the line at 1)."
    if len({one.live for one in drafts}) > 1:
        lead += " Filled: ran live. Hollow: predicted."
    elif not drafts[0].live:
        lead += " All are predicted."
    notes = [f"{note}." for note in speed_notes(record)]
    if len(drafts) > len(rows):
        notes.append(f"{len(drafts) - len(rows)} slower drafts are in the table.")
    under = (" ".join(notes),) if notes else ()
    plot = _ratios_plot("speedups", title, table, rows, pick)
    return Section("speedups", title, lead, (plot, *under, table))


def by_category(record: Record) -> Section:
    """The gain or loss of the pick, or of the fastest draft where none won, in every category."""
    title, winner = "Speedup by category", picked(record)
    order = [winner] if winner is not None and winner.draft is not None else []
    order += [row.candidate for row in drafts_at_their_best(record)]
    gains = next((found for one in order if (found := speedups_by_category(record, one))), None)
    if gains is None:
        return Section("gains", title, absent="no draft has speeds by category")
    each = [(one, f"{sum(r < 1 for r in one.each)}/{len(one.each)}") for one in gains]
    table = figures(
        ("category", "speedup", "requests", "requests slower than no draft"),
        ((one.name, one.text, str(len(one.each)), slower) for one, slower in each),
    )
    losers = [one.name for one in gains if one.ratio < 1]
    candidate = gains[0].candidate
    lead = f"{label(candidate.name, 60)}, {'live' if candidate.live else 'predicted'}, over no "
    lead += "draft on the same requests. "
    if losers:
        lead += f"Slower than no draft on {named(losers)}."
    else:
        lead += "Faster than no draft in every category."
    lead += " A small dot is one request."
    plot = _ratios_plot("gains", title, table, gains[:MOST_CATEGORIES], None)
    return Section("gains", title, lead, (plot, table))


def _ratios_plot(
    name: str, title: str, table: Table, rows: Sequence[Speedup], pick: str | None
) -> Plot:
    """Rows of ratios to no draft, which is the line at 1; below it, shaded, is slower."""
    spread = [ratio for row in rows for ratio in row.each]
    spread += [end for row in rows if (sure := row.interval) for end in (sure.low, sure.high)]
    low, high = min(1.0, *(row.ratio for row in rows)), max(1.0, *(row.ratio for row in rows))
    low = max(min([low, *spread]), low - MOST_SPAN, 0.0)
    high = min(max([high, *spread]), high + MOST_SPAN)
    room = max((high - low) * 0.05, 0.02)

    def draw(sheet: Sheet) -> None:
        axes = sheet.axes("times the end-to-end speed without a draft", grid="x")
        axes.set(xlim=(max(0.0, low - room), high + room), ylim=(len(rows) - 0.4, -0.9))
        sheet.span(axes, "x", LEAST_SPAN)
        left, right = axes.get_xlim()
        axes.axvspan(left, 1, color=sheet.colour("grid"), alpha=0.45, linewidth=0, zorder=0)
        axes.axvline(1, color=sheet.colour("ink"), linewidth=1.4, linestyle=":", zorder=2)
        axes.text(1, -0.62, " no draft", va="center", ha="left")
        axes.spines["left"].set_visible(False)
        dots: Any = {"markersize": 3.2, "color": sheet.colour("muted"), "zorder": 2}
        for place, row in enumerate(rows):
            slower, strong = row.ratio < 1, row.name == pick
            each = [ratio for ratio in row.each if left < ratio < right]
            axes.plot(each, [place] * len(each), "o", **dots)
            ends = None
            if row.interval is not None:
                ends = max(row.interval.low, left), min(row.interval.high, right)
            colour = sheet.colour("s1" if slower else "pick" if strong else "s0")
            sheet.point(axes, row.ratio, place, colour, live=row.live, x_ends=ends)
            how = {"xycoords": ("axes fraction", "data"), "va": "center"}
            how["color"] = sheet.colour("s1" if slower else "ink")
            how["fontweight"] = "bold" if slower or strong else "normal"
            sheet.write(axes, f"{row.ratio:.2f}x", (1, place), (8, 0), **how)
        sheet.rows(axes, [row.name for row in rows], 30, pick)
        kinds = {"live" if row.live else "predicted" for row in rows}
        sheet.legend_of_kinds(axes, sorted(kinds))

    return Plot(name, title, table.alt(title), draw, height=96 + 30 * len(rows))


FORECAST = "Predicted and live"
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


def predicted_live(record: Record) -> Section:
    """Candidates that have both figures, and how far apart they are."""
    checks = {c.name: found for c in record.candidates if (found := forecast_check(c))}
    if not checks:
        why = "no candidate has both a forecast and a live run"
        if not record.candidates:
            why = "nothing was scored"
        elif not any(c.predicted for c in record.candidates):
            why = "nothing was predicted: every figure was measured live"
        return Section("forecast", FORECAST, absent=why)
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
    plot = Plot("forecast", FORECAST, table.alt("Predicted and live speed"), draw, height=360)
    notes = [*(f"{note}." for note in factor_notes(record)), *_check_notes(record)]
    return Section("forecast", FORECAST, lead, (plot, table, *notes))


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


TIME = "Where the time goes"
MOST_BARS = 16
PARTS = {
    "verify": ("s0", "the target's batches"),
    "draft": ("s1", "the draft's own tokens"),
    "mirror": ("s6", "the draft reading what the target verified"),
    "sample": ("s3", "sampling"),
    "decode": ("s0", "decoding, draft and target together"),
    "prefill": ("s4", "prompts"),
    "transport": ("s7", "request and reply"),
}
"""Part -> (its colour, what it is)."""


def where_time_goes(record: Record) -> Section:
    """No draft, the pick as it is run, and every draft at one setting: ms a token after the
    first."""
    kind, pick, winner = kind_of(record), record.pick.candidate, picked(record)
    chosen, every = at_common_setting(record, kind)
    first = [c for c in record.candidates if c.draft is None]
    first += [winner] if winner is not None else []
    wanted = (*(scored_as(record, c, kind) for c in first), *every)
    bars = {s.candidate.name: parts for s in wanted if s is not None and (parts := _parts(s, kind))}
    if not bars:
        return Section("time", TIME, absent="no candidate was timed")
    used = [part for part in PARTS if any(bar.get(part) for bar in bars.values())]
    table = figures(
        ("candidate", *used, "sum"),
        (
            (name, *(number(bar.get(p), ".3f") for p in used), f"{sum(bar.values()):.3f}")
            for name, bar in bars.items()
        ),
        title="Figures: ms a token",
        pick=pick,
    )
    names = [*bars][:MOST_BARS]

    def draw(sheet: Sheet) -> None:
        axes = sheet.axes("milliseconds a token", grid="x")
        starts = [0.0] * len(names)
        for part in used:
            widths = [bars[name].get(part, 0.0) for name in names]
            colour = sheet.colour(PARTS[part][0])
            axes.barh(range(len(names)), widths, left=starts, height=0.62, color=colour, label=part)
            starts = [start + width for start, width in zip(starts, widths, strict=True)]
        for row, total in enumerate(starts):
            sheet.write(axes, f"{total:.2f}", (total, row), (4, 0), va="center")
        sheet.rows(axes, names, 34, pick)
        axes.set_ylim(len(names) - 0.4, -0.6)
        axes.margins(x=0.1)
        axes.spines["left"].set_visible(False)
        sheet.legend(axes, len(used))

    height = 90 + 27 * len(names)
    plot = Plot("time", TIME, table.alt("Milliseconds a token"), draw, height, "full")
    at = f", every draft at {chosen}" if chosen else ""
    how = "Live servers separate no more than this"
    if kind == "predicted":
        how = "Parts as predicted from measured times"
    lead = f"Milliseconds for each token, prompts included: no draft, the pick{at}. {how}: "
    lead += ", ".join(f"{part} is {PARTS[part][1]}" for part in used) + "."
    return Section("time", TIME, lead, (plot, table))


def _parts(one: Scored, kind: Basis) -> dict[str, float]:
    """Milliseconds for each token after the first, by part."""
    found, guess = one.figures, one.candidate.predicted
    if found.tokens <= 0:
        return {}
    rest_ms = found.wall_ms - found.decode_ms
    parts = {"decode": found.decode_ms}
    if kind == "predicted" and guess is not None:
        parts = {
            "verify": 1000 * guess.verify_s,
            "draft": 1000 * guess.draft_s,
            "mirror": 1000 * guess.mirror_s,
            "sample": 1000 * guess.sample_s,
        }
    elif found.prompt_ms is not None:
        parts["transport"] = max(0.0, rest_ms - found.prompt_ms)
    parts["prefill"] = found.prompt_ms if found.prompt_ms is not None else max(0.0, rest_ms)
    usable = {part: ms / found.tokens for part, ms in parts.items() if ms >= 0}
    return usable if any(usable.values()) else {}
