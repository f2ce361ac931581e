"""What a recipe maximizes: its name, its unit, and how to read it from figures and requests."""

from __future__ import annotations

from enum import StrEnum

from cook.record.measured import Figures
from cook.record.prompt_runs import PromptRun


class Objective(StrEnum):
    """A ratio of two sums over requests; more is better."""

    END_TO_END_SPEED = "end_to_end_speed"
    DECODE_SPEED = "decode_speed"
    ACCEPTANCE = "acceptance"
    ACCEPTANCE_LENGTH = "acceptance_length"

    @property
    def unit(self) -> str:
        """What follows the value where it is printed."""
        return _UNITS[self]

    @property
    def columns(self) -> tuple[str, str]:
        """Numerator and denominator: columns of :class:`cook.record.measured.PromptFigures`, or
        ``cycles``, since tokens = accepted + cycles."""
        return _COLUMNS[self]

    @property
    def timed(self) -> bool:
        """Whether it is a speed, which no draft has too; the others are counts of drafts."""
        return self.columns[1].endswith("_ms")

    def of(self, figures: Figures) -> float | None:
        """Its value, by category weights where the figures have them; None where it does not exist
        (no draft has no acceptance)."""
        if not figures.tokens:
            return None
        match self:
            case Objective.END_TO_END_SPEED:
                return figures.end_to_end_speed
            case Objective.DECODE_SPEED:
                return figures.decode_speed
            case Objective.ACCEPTANCE:
                weighted = figures.weighted_acceptance_rate
                return weighted if weighted is not None else figures.acceptance_rate
            case Objective.ACCEPTANCE_LENGTH:
                weighted = figures.weighted_acceptance_length
                return weighted if weighted is not None else figures.acceptance_length

    def parts(self, run: PromptRun) -> tuple[float, float] | None:
        """(numerator, denominator) of one request; None where it has none."""
        columns: dict[str, float | None] = {
            "tokens": run.predicted_n - 1,
            "wall_ms": run.wall_ms,
            "decode_ms": run.predicted_ms,
            "drafted": run.draft_n,
            "accepted": run.draft_n_accepted,
            "cycles": run.cycles,
        }
        top, bottom = (columns[name] for name in self.columns)
        return None if top is None or bottom is None else (float(top), float(bottom))

    def why_none(self, figures: Figures) -> str:
        """Why a candidate with these figures has no value."""
        if not figures.tokens:
            return "no reply goes on after its first token"
        if figures.drafted is None:
            return f"no draft has no {self.unit}"
        return "it drafts nothing"


_UNITS = {
    Objective.END_TO_END_SPEED: "t/s end to end",
    Objective.DECODE_SPEED: "t/s decode",
    Objective.ACCEPTANCE: "acceptance",
    Objective.ACCEPTANCE_LENGTH: "tokens a cycle",
}
_COLUMNS = {
    Objective.END_TO_END_SPEED: ("tokens", "wall_ms"),
    Objective.DECODE_SPEED: ("tokens", "decode_ms"),
    Objective.ACCEPTANCE: ("accepted", "drafted"),
    Objective.ACCEPTANCE_LENGTH: ("tokens", "cycles"),
}
