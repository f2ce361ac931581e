"""The predicted choice, before anything is confirmed live."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from cook.report.measured import Figures
from cook.report.record import Excluded

Maximize = Literal["end_to_end_speed", "decode_speed", "acceptance", "acceptance_length"]


@dataclass(frozen=True)
class Choice:
    """Chosen on ``prompts`` prompts by predicted figures.

    ``ranking`` best first; ``ties`` could not be told from the best, and the choice is the
    smallest file among them; ``probability`` of being best, by resampling prompts; ``margin`` is
    what the best rival may gain on the leader at the confidence asked for (None: too few
    prompts), which decides the question when it is at most ``within``.
    """

    name: str | None
    ranking: tuple[str, ...]
    ties: tuple[str, ...]
    probability: Mapping[str, float]
    margin: float | None
    within: float
    excluded: tuple[Excluded, ...]
    prompts: int

    @property
    def decided(self) -> bool:
        """Whether the leader is within ``within`` of the best, at the confidence asked for."""
        return self.margin is not None and self.margin <= self.within


def figure_of(found: Figures, maximize: Maximize) -> float:
    """The figure to maximize; 0 where it does not exist."""
    if maximize == "end_to_end_speed":
        return found.end_to_end_speed
    if maximize == "decode_speed":
        return found.decode_speed
    if maximize == "acceptance":
        return found.acceptance_rate or 0.0
    return found.acceptance_length or 0.0
