"""Live rounds of configurations whose true speeds are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cook.record.prompt_runs import PromptRun
from cook.scoring.rounds import Round

TOKENS = 100


@dataclass(frozen=True)
class Machine:
    """Spreads of log-times: of a server's ``start``, of a ``request``, and ``drift`` from round to
    round, or ``creep``: what each server is slower than the one before it, ``turn`` by turn."""

    start: float = 0.008
    request: float = 0.02
    drift: float = 0.0
    creep: float = 0.0


def request(prompt: int, ms: float, drafted: bool = True) -> PromptRun:
    return PromptRun(
        id=f"p{prompt}",
        category="abc"[prompt % 3],
        prompt_n=10,
        prompt_ms=5.0,
        predicted_n=TOKENS + 1,
        predicted_ms=ms,
        wall_ms=ms + 5.0,
        draft_n=100 if drafted else None,
        draft_n_accepted=60 if drafted else None,
        tokens=None,
        text="",
        stop="",
    )


@dataclass
class Lab:
    """Measures configurations on ``machine``. ``ms``: of a prompt, in truth."""

    machine: Machine
    ms: Mapping[str, float]
    rng: np.random.Generator
    prompts: int = 18
    servers: int = 0

    def __post_init__(self) -> None:
        self.hard = self.rng.lognormal(0, 0.2, self.prompts)

    def rounds(self, keys: Sequence[str], times: int = 1) -> list[Round[str]]:
        """Both shares of the prompts, ``times`` over; backwards every other time."""
        return [
            self.round(keys if turn % 2 == 0 else keys[::-1], turn % 2) for turn in range(2 * times)
        ]

    def round(self, keys: Sequence[str], share: int) -> Round[str]:
        rng, machine = self.rng, self.machine
        drift = rng.normal(0, machine.drift)
        runs = {}
        for key in keys:
            slow = drift + rng.normal(0, machine.start) + machine.creep * self.servers
            self.servers += 1
            runs[key] = tuple(
                request(i, self.ms[key] * float(self.hard[i] * np.exp(slow + noise)), key != "bare")
                for i, noise in enumerate(rng.normal(0, machine.request, self.prompts))
                if i % 2 == share
            )
        return Round(share, runs)
