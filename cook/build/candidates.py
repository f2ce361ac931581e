"""What replay and measured times say of candidates, and the steps below it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from cook.engines.base import (DraftSettings, Flavour)
from cook.scoring.price import (Breakdown)
from cook.scoring.simulate import (Profile)
from cook.steps.curve import (CurveStep)
from cook.steps.live import (PromptRun)
from cook.build.layout import (DraftPlan, config_name)
from cook.steps.replay import (ReplayStep)
from cook.steps.trace import (Trace)

PROFILES = {
    Flavour.LLAMA_CPP: Profile.MAINLINE_2026_10,
    Flavour.IK_LLAMA_CPP: Profile.IK_2026_08,
}
"""Whose accounting a build of each flavour is taken to have; a live run is the test of it."""


@dataclass(frozen=True)
class DraftForecast:
    """What is needed to forecast one draft with one KV cache type.

    ``replays``: one a round of the race, or a single one; ``curves``: one a pass.
    """

    draft: DraftPlan
    cache_type: str
    replays: tuple[ReplayStep, ...]
    curves: tuple[CurveStep, ...]


@dataclass(frozen=True)
class ForecastPlan:
    """The steps below all forecasts of one recipe on one engine.

    ``verify``: the target's curve, one a pass. ``floor``: the largest draft replayed in batches
    of another shape, which shows how much acceptance differs for no reason at all.
    """

    trace: Trace
    verify: tuple[CurveStep, ...]
    drafts: tuple[DraftForecast, ...]
    settings: tuple[DraftSettings, ...]
    several_cache_types: bool
    floor: tuple[DraftForecast, ReplayStep] | None

    @property
    def rounds(self) -> int:
        """Rounds of the race; 1 where every draft replays the whole trace at once."""
        return max((len(draft.replays) for draft in self.drafts), default=0)

    def opening(self) -> Iterator[Trace | CurveStep | ReplayStep]:
        """Before anything can be predicted: the trace, the first replays, and the timings in
        turn, all passes but the last."""
        yield self.trace
        for draft in self.drafts:
            yield draft.replays[0]
        for turn, verify in enumerate(self.verify[:-1]):
            yield verify
            for draft in self.drafts:
                yield draft.curves[turn]

    def last_pass(self) -> Iterator[CurveStep]:
        """The last pass of the timings.

        It is taken amid the live rounds that overheads are fitted on, so that a machine that
        changes its speed meanwhile does so for both.
        """
        yield self.verify[-1]
        for draft in self.drafts:
            yield draft.curves[-1]

    def first(self) -> Iterator[Trace | CurveStep | ReplayStep]:
        """The trace, the first replays and all timings."""
        yield from self.opening()
        yield from self.last_pass()

    def certain(self) -> Iterator[Trace | CurveStep | ReplayStep]:
        """What is made however the race goes."""
        yield from self.first()
        if self.floor is not None:
            yield self.floor[1]

    def steps(self) -> Iterator[Trace | CurveStep | ReplayStep]:
        """Everything, had no draft to leave the race."""
        yield from self.certain()
        for draft in self.drafts:
            yield from draft.replays[1:]

    def name(self, draft: DraftForecast, settings: DraftSettings) -> str:
        """The candidate's name, as in the live score."""
        cache_type = draft.cache_type if self.several_cache_types else None
        return config_name(draft.draft.name, settings, cache_type)


@dataclass(frozen=True)
class Forecast:
    """One candidate, predicted. ``runs`` are per prompt, in the same form as live requests.

    ``by_depth``: (drafted, accepted) at each place of a draft, from 1 on, over all replies.
    """

    name: str
    draft: str | None
    cache_type: str | None
    settings: DraftSettings | None
    breakdown: Breakdown
    runs: tuple[PromptRun, ...]
    by_depth: tuple[tuple[int, int], ...] = ()

    @property
    def decode_speed(self) -> float:
        """Tokens after the first a second, over all replies."""
        tokens = sum(run.predicted_n - 1 for run in self.runs)
        return 1000 * tokens / sum(run.predicted_ms for run in self.runs)


@dataclass(frozen=True)
class Overheads:
    """Seconds beyond what was timed: of a plain step, a drafting cycle, a drafted token, and of a
    request without a draft and with one."""

    plain_s: float = 0.0
    cycle_s: float = 0.0
    decode_s: float = 0.0
    plain_request_s: float = 0.0
    request_s: float = 0.0
