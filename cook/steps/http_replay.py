"""Step: score one draft on a trace through a stock server that has it as its model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from cook.engines.base import Engine, ModelArgs, ServerJob
from cook.formats.trace import TraceFile
from cook.graph.step import JsonValue, Source, Step, Workbench
from cook.speculation.profiles import Profile, Setting
from cook.speculation.simulate import Positions
from cook.steps.live import Model
from cook.steps.quantize import MODEL_FILE
from cook.steps.replay import end_of
from cook.steps.trace import TRACE_FILE, Trace

if TYPE_CHECKING:
    from cook.graph.store import Artifact

MATCHES_FILE = "matches.npz"


@dataclass(frozen=True)
class HttpReplayOutcome:
    """How many ``requests`` it took, over all draft lengths."""

    requests: int


@dataclass(frozen=True)
class HttpReplayStep(Step[HttpReplayOutcome]):
    """``draft`` over ``trace`` for every n_max, at p_min 0; artifact ``matches.npz``.

    For engines without headers, of which no worker can be built. Where cycles start depends on
    n_max and on whose accounting, so both are part of what is asked.
    """

    engine: Engine
    name: str
    draft: Model
    trace: Trace
    args: ModelArgs
    n_max: tuple[int, ...]
    profile: Profile

    kind: ClassVar[str] = "http-replay"
    result_type: ClassVar[type] = HttpReplayOutcome

    @property
    def label(self) -> str:
        return f"replay {self.name} over HTTP ({self.engine.name})"

    def uses(self) -> Engine:
        return self.engine

    def inputs(self) -> Mapping[str, Step[Any] | Source]:
        return {"draft": self.draft, "trace": self.trace}

    def params(self) -> Mapping[str, JsonValue]:
        return {
            "cache_types": [self.args.cache_type_k, self.args.cache_type_v],
            "flash_attention": self.args.flash_attention,
            "n_max": list(self.n_max),
            "profile": self.profile.value,
        }

    def work(self) -> float:
        return self.trace.work() * len(self.n_max)

    def run(self, bench: Workbench) -> HttpReplayOutcome:
        import numpy as np

        from cook.engines.server import Server
        from cook.speculation.http_replay import continuations, positions_over_http

        trace = TraceFile(bench.file(self.trace, TRACE_FILE))
        header = trace.header
        job = ServerJob(bench.file(self.draft, MODEL_FILE), self.args, header.context)
        matches: dict[str, Any] = {}
        requests, done, all_of_it = 0, 0, len(trace) * len(self.n_max)
        with Server(self.engine, job, bench.supervisor) as server:
            ask = continuations(server)
            for index, reply in enumerate(trace):
                for n_max in self.n_max:
                    found, asked = positions_over_http(
                        ask,
                        reply.prompt.tolist(),
                        reply.tokens.tolist(),
                        Setting(n_max),
                        self.profile,
                        reply=reply.head.emitted,
                        eog=frozenset(header.eog) | end_of(reply),
                        n_predict=header.n_predict,
                        context=header.context,
                    )
                    matches[f"{n_max}.{index}"] = found.match
                    requests += asked
                    done += 1
                    bench.advance(done / all_of_it)
        np.savez(bench.directory / MATCHES_FILE, allow_pickle=False, **matches)
        return HttpReplayOutcome(requests)


def http_positions(
    step: HttpReplayStep, trace: TraceFile, replay: Artifact, n_max: int
) -> list[Positions]:
    """Every reply as the simulator sees it under ``n_max`` and no other, in the trace's order."""
    import numpy as np

    header = trace.header
    found = []
    with np.load(replay.file(MATCHES_FILE), allow_pickle=False) as arrays:
        for index, reply in enumerate(trace):
            ends = frozenset(header.eog) | end_of(reply)
            found.append(
                Positions(
                    prompt=reply.head.prompt_tokens,
                    reply=reply.head.emitted,
                    match=arrays[f"{n_max}.{index}"],
                    eog=np.isin(reply.tokens, list(ends)),
                    n_predict=header.n_predict,
                    context=header.context,
                )
            )
    return found
