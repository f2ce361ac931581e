"""Whose accounting: the drafting loops of the engines, as they were at a date.

Read in the sources and verified against live servers; docs/internals/scoring.md#profiles has them
side by side.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from cook.errors import InputError


class Profile(StrEnum):
    """An engine's drafting loop; the worker knows those of servers by the same names."""

    MAINLINE_2026_10 = "mainline-2026-10"
    MAINLINE_2025 = "mainline-2025"
    IK_2026_08 = "ik-2026-08"
    IK_SPEC_BENCH_2026_08 = "ik-spec-bench-2026-08"


@dataclass(frozen=True)
class Rules:
    """How one loop drafts and counts.

    ``uses_p_min``: ik computes its confidence without normalising, so its p_min never fires.
    ``keeps_low_token``: the token below p_min is drafted all the same (before llama.cpp #22506).
    ``breaks_at_eog``: a matched end-of-generation token that is not the draft's last is not
    counted, nor is anything after it. ``mirrors``: the draft re-evaluates the verify batch and
    keeps no cache of its own (TAG_SPEC_AVOID_DRAFT_REEVAL); the others keep the cache, so a
    discarded draft that came true is offered again, shorter. ``skips_short_room``: no drafting
    when fewer than n_min tokens fit. ``drafts_full``: drafts n_max whatever fits, then truncates.
    ``carries``: llama-spec-bench holds the last token of a cycle over to the next. So it leaves
    room for one token more, and looks for an end of generation only there: one that was accepted
    inside a draft ends nothing, and it writes on to the limit. Its n_min shrinks with the room.
    """

    uses_p_min: bool
    keeps_low_token: bool
    breaks_at_eog: bool
    mirrors: bool
    skips_short_room: bool
    drafts_full: bool
    carries: bool = False


RULES: dict[Profile, Rules] = {
    Profile.MAINLINE_2026_10: Rules(
        uses_p_min=True,
        keeps_low_token=False,
        breaks_at_eog=True,
        mirrors=True,
        skips_short_room=False,
        drafts_full=False,
    ),
    Profile.MAINLINE_2025: Rules(
        uses_p_min=True,
        keeps_low_token=True,
        breaks_at_eog=False,
        mirrors=False,
        skips_short_room=True,
        drafts_full=False,
    ),
    Profile.IK_2026_08: Rules(
        uses_p_min=False,
        keeps_low_token=False,
        breaks_at_eog=False,
        mirrors=False,
        skips_short_room=True,
        drafts_full=True,
    ),
    Profile.IK_SPEC_BENCH_2026_08: Rules(
        uses_p_min=False,
        keeps_low_token=False,
        breaks_at_eog=False,
        mirrors=False,
        skips_short_room=False,
        drafts_full=False,
        carries=True,
    ),
}


@dataclass(frozen=True, order=True)
class Setting:
    """Draft settings to simulate: ``n_max`` 0 means no drafting; ``p_min`` in [0, 1]."""

    n_max: int
    n_min: int = 0
    p_min: float = 0.0

    def __post_init__(self) -> None:
        if self.n_max < 0 or self.n_min < 0 or not 0.0 <= self.p_min <= 1.0:
            raise InputError(f"impossible draft settings: {self}")
