"""Section: where the time goes, a bar a candidate."""

from __future__ import annotations

from dataclasses import dataclass

from cook.record.record import Candidate, Record
from cook.report.canvas import Plot, Sheet
from cook.report.compared import Basis, at_common_setting, figures_of, finite, kind_of, picked
from cook.report.document import Section, figures
from cook.report.numbers import number

TITLE = "Where the time goes"
MOST_BARS = 16
COLOURS = {
    "verify": "s0",
    "draft": "s1",
    "mirror": "s6",
    "sample": "s3",
    "decode": "s0",
    "prefill": "s4",
    "transport": "s7",
}
MEANING = {
    "verify": "the target's batches",
    "draft": "the draft's own tokens",
    "mirror": "the draft reading what the target verified",
    "sample": "sampling",
    "decode": "decoding, draft and target together",
    "prefill": "prompts",
    "transport": "request and reply",
}


@dataclass(frozen=True)
class Bar:
    """Milliseconds for each token after the first, by part."""

    name: str
    parts: dict[str, float]

    @property
    def total(self) -> float:
        return sum(self.parts.values())


def section(record: Record) -> Section:
    """No draft, the pick as it is run, and every draft at one setting."""
    kind = kind_of(record)
    winner = picked(record)
    chosen, every = at_common_setting(record, kind)
    wanted = [c for c in record.candidates if c.draft is None]
    wanted += [winner] if winner is not None else []
    wanted += [s.candidate for s in every]
    unique = {candidate.name: candidate for candidate in wanted}.values()
    bars = [bar for candidate in unique if (bar := _bar(candidate, kind))]
    if not bars:
        return Section("time", TITLE, absent="no candidate was timed")
    drawn = bars[:MOST_BARS]
    used = [part for part in COLOURS if any(bar.parts.get(part) for bar in bars)]
    alt = "Milliseconds a token: " + "; ".join(
        f"{bar.name} {bar.total:.2f} ("
        + ", ".join(f"{part} {ms:.2f}" for part, ms in bar.parts.items())
        + ")"
        for bar in drawn[:5]
    )

    def draw(sheet: Sheet) -> None:
        _draw(sheet, drawn, used, winner.name if winner else None)

    table = figures(
        ("candidate", *used, "sum"),
        (
            (bar.name, *(number(bar.parts.get(p), ".3f") for p in used), f"{bar.total:.3f}")
            for bar in bars
        ),
        title="Figures: ms a token",
        pick=winner.name if winner else None,
    )
    lead = "Milliseconds for each token, prompts included: no draft, the pick"
    lead += f", every draft at {chosen}. " if chosen else ". "
    lead += (
        "Parts as predicted from measured times: "
        if kind == "predicted"
        else "Live servers tell no more apart than this: "
    )
    lead += ", ".join(f"{part} is {MEANING[part]}" for part in used) + "."
    height = 90 + 27 * len(drawn)
    plot = Plot(
        "time", TITLE, alt + ".", draw, height=height, narrow_height=height + 40, width="full"
    )
    return Section("time", TITLE, lead, (plot, table))


def _bar(candidate: Candidate, kind: Basis) -> Bar | None:
    found = figures_of(candidate, kind)
    if found is None or found.tokens <= 0:
        return None
    prefill = found.prompt_ms
    if kind == "predicted" and candidate.predicted is not None:
        guess = candidate.predicted
        seconds = {
            "verify": guess.verify_s,
            "draft": guess.draft_s,
            "mirror": guess.mirror_s,
            "sample": guess.sample_s,
        }
        parts = {name: 1000 * s for name, s in seconds.items()}
        parts["prefill"] = prefill if prefill is not None else found.wall_ms - found.decode_ms
    else:
        parts = {"decode": found.decode_ms}
        if prefill is not None:
            parts["prefill"] = prefill
            parts["transport"] = max(0.0, found.wall_ms - found.decode_ms - prefill)
        else:
            parts["prefill"] = max(0.0, found.wall_ms - found.decode_ms)
    usable = {
        name: ms / found.tokens for name, ms in parts.items() if finite(ms) is not None and ms >= 0
    }
    return Bar(candidate.name, usable) if any(usable.values()) else None


def _draw(sheet: Sheet, bars: list[Bar], used: list[str], pick: str | None) -> None:
    axes = sheet.axes("milliseconds a token", grid="x")
    rows = range(len(bars))
    starts = [0.0] * len(bars)
    for part in used:
        widths = [bar.parts.get(part, 0.0) for bar in bars]
        axes.barh(
            rows, widths, left=starts, height=0.62, color=sheet.colour(COLOURS[part]), label=part
        )
        starts = [start + width for start, width in zip(starts, widths, strict=True)]
    for row, total in zip(rows, starts, strict=True):
        axes.annotate(
            f"{total:.2f}",
            (total, row),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            color=sheet.colour("ink"),
        )
    sheet.rows(axes, [bar.name for bar in bars], 20 if sheet.narrow else 34, pick)
    axes.set_ylim(len(bars) - 0.4, -0.6)
    axes.margins(x=0.1)
    axes.spines["left"].set_visible(False)
    sheet.legend(axes, 3 if sheet.narrow else len(used))
