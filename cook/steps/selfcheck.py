"""Step: is our accounting this engine's? A live run of the score, recounted from its own tokens.

Counts are called exact only where this has passed (scoring.md 2.4). The requests are those that
were run live anyway.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from cook.engines.base import DraftSettings, Engine, ModelArgs
from cook.engines.worker import Worker
from cook.errors import StepError
from cook.formats.trace import TraceFile
from cook.graph.step import JsonValue, Source, Step, Workbench, decode
from cook.speculation.profiles import Profile, Setting
from cook.speculation.selfcheck import LiveReply, check_counts
from cook.steps.live import LiveOutcome, LiveStep, Model
from cook.steps.loading import model_load
from cook.steps.quantize import MODEL_FILE
from cook.steps.trace import TRACE_FILE, Trace

REQUESTS = 8
"""Live requests recounted at the server's own batch shapes, which costs about a live run."""


@dataclass(frozen=True)
class SelfCheckOutcome:
    """``exact`` of ``requests`` have our counts equal to the server's, token batch by token batch.

    ``fast``: the same by one-pass replay, as every score is made. ``*_drafted`` and
    ``*_accepted`` are totals: the server's, and those of one-pass replay.
    """

    requests: int
    exact: int
    fast: int
    live_drafted: int
    live_accepted: int
    fast_drafted: int
    fast_accepted: int

    @property
    def passed(self) -> bool:
        """Every request equal, and something was drafted."""
        return self.exact == self.requests > 0 and self.live_drafted > 0


@dataclass(frozen=True)
class SelfCheckStep(Step[SelfCheckOutcome]):
    """Recount the first requests of ``live`` with its draft.

    ``trace`` gives the prompts' tokens. Fails where the engine returns no token ids (ik).
    """

    engine: Engine
    name: str
    draft: Model
    args: ModelArgs
    settings: DraftSettings
    profile: Profile
    trace: Trace
    live: LiveStep

    kind: ClassVar[str] = "selfcheck"
    result_type: ClassVar[type] = SelfCheckOutcome

    @property
    def label(self) -> str:
        return f"recount of live requests {self.name} ({self.engine.name})"

    def uses(self) -> Engine:
        return self.engine

    def inputs(self) -> Mapping[str, Step[Any] | Source]:
        return {"draft": self.draft, "trace": self.trace, "live": self.live}

    def params(self) -> Mapping[str, JsonValue]:
        return {
            "args": asdict(self.args),
            "settings": asdict(self.settings),
            "profile": str(self.profile),
            "requests": REQUESTS,
        }

    def run(self, bench: Workbench) -> SelfCheckOutcome:
        outcome: LiveOutcome = decode(self.live, bench.artifact(self.live))
        trace = TraceFile(bench.file(self.trace, TRACE_FILE))
        prompts = {reply.head.id: tuple(reply.prompt.tolist()) for reply in trace}
        replies = [
            LiveReply(
                prompt=prompts[run.id],
                tokens=run.tokens,
                n_predict=self.live.max_tokens,
                draft_n=run.draft_n or 0,
                draft_n_accepted=run.draft_n_accepted or 0,
                decode_s=run.predicted_ms / 1e3,
                stop=run.stop,
            )
            for run in outcome.runs
            if run.tokens is not None and run.id in prompts
        ][:REQUESTS]
        if not replies:
            raise StepError(f"{self.label}: this engine's server returns no token ids")
        setting = Setting(self.settings.n_max, self.settings.n_min, self.settings.p_min)
        with Worker.open(self.engine, bench.supervisor, name="selfcheck") as worker:
            path = bench.file(self.draft, MODEL_FILE)
            load = model_load(self.engine, path, self.args, self.live.context, bench.threads)
            info = worker.load(load)
            found = check_counts(
                worker, info, replies, setting, self.profile, context=self.live.context
            )
        return SelfCheckOutcome(
            requests=found.requests,
            exact=found.exact,
            fast=found.fast,
            live_drafted=found.live_total[0],
            live_accepted=found.live_total[1],
            fast_drafted=found.fast_total[0],
            fast_accepted=found.fast_total[1],
        )
