"""Section: where the time goes, a bar a candidate."""

from __future__ import annotations

from cook.record.record import Record
from cook.report.canvas import Plot, Sheet
from cook.report.compared import Basis, Scored, at_common_setting, kind_of, picked, scored_as
from cook.report.document import Section, figures
from cook.units import number

TITLE = "Where the time goes"
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


def section(record: Record) -> Section:
    """No draft, the pick as it is run, and every draft at one setting: ms a token after the
    first."""
    kind, pick, winner = kind_of(record), record.pick.candidate, picked(record)
    chosen, every = at_common_setting(record, kind)
    first = [c for c in record.candidates if c.draft is None]
    first += [winner] if winner is not None else []
    wanted = (*(scored_as(record, c, kind) for c in first), *every)
    bars = {s.candidate.name: parts for s in wanted if s is not None and (parts := _parts(s, kind))}
    if not bars:
        return Section("time", TITLE, absent="no candidate was timed")
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
    plot = Plot("time", TITLE, table.alt("Milliseconds a token"), draw, height, "full")
    at = f", every draft at {chosen}" if chosen else ""
    how = "Live servers separate no more than this"
    if kind == "predicted":
        how = "Parts as predicted from measured times"
    lead = f"Milliseconds for each token, prompts included: no draft, the pick{at}. {how}: "
    lead += ", ".join(f"{part} is {PARTS[part][1]}" for part in used) + "."
    return Section("time", TITLE, lead, (plot, table))


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
