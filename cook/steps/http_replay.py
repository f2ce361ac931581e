"""Step: score one draft on a trace through a stock server that has it as its model.

For where no worker can be built. One greedy continuation for each cycle that a server drafting
with it would have made: the prompt and the reply so far go in, up to n_max tokens come out, and
where they leave the reply the next cycle starts. That gives the same arrays as the worker's pass
at the positions that count, for one draft length at a time, and the same simulator counts them.
Slower by the requests; and the server decodes token by token where the worker's pass is batched,
so near-ties may fall otherwise: :class:`Agreement` says how often.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from cook.engines.base import DraftSettings, Engine, ModelArgs, ServerJob
from cook.errors import InputError, StepError
from cook.formats.trace_file import TraceFile
from cook.graph.step import Input, JsonValue, Step, Workbench
from cook.scoring.simulate import RULES, Positions, Profile
from cook.steps.made_model import model_path
from cook.steps.replay import end_of
from cook.steps.trace import TRACE_FILE, Trace

if TYPE_CHECKING:
    from cook.engines.server import Server
    from cook.engines.server_api import Completion
    from cook.graph.store import Artifact

Continue = Callable[[Sequence[int], int], "Completion"]
"""(token ids, tokens wanted) -> a greedy continuation."""


@dataclass(frozen=True)
class Agreement:
    """HTTP against the worker, over the same replies and setting. ``equal`` of ``replies`` have
    both counts the same; the totals are (drafted, accepted)."""

    replies: int
    equal: int
    http: tuple[int, int]
    worker: tuple[int, int]

    @property
    def error_points(self) -> float | None:
        """Acceptance over HTTP minus the worker's, in percentage points; None without drafts."""
        if not self.http[0] or not self.worker[0]:
            return None
        return 100 * (self.http[1] / self.http[0] - self.worker[1] / self.worker[0])

    def __str__(self) -> str:
        error = self.error_points
        difference = "nothing was drafted" if error is None else f"{error:+.2f} points"
        return (
            f"{self.equal} of {self.replies} replies have equal counts; accepted/drafted "
            f"{self.http[1]}/{self.http[0]} over HTTP, {self.worker[1]}/{self.worker[0]} by the "
            f"worker ({difference})"
        )


def continuations(server: Server) -> Continue:
    """Greedy continuations of a running server that has the draft as its model."""

    def ask(tokens: Sequence[int], wanted: int) -> Completion:
        return server.complete(tokens, wanted, cache_prompt=True, sampling={"top_k": 1})

    return ask


def positions_over_http(
    ask: Continue,
    prompt: Sequence[int],
    tokens: Sequence[int],
    setting: DraftSettings,
    profile: Profile,
    *,
    reply: int,
    eog: frozenset[int],
    n_predict: int | None = None,
    context: int | None = None,
) -> tuple[Positions, int]:
    """(the reply as the simulator sees it under ``setting`` and no other, requests made).

    ``tokens`` were emitted, of which the first ``reply`` belong to the reply. InputError for a
    setting with n_min or p_min, whose discarded drafts and confidences would need more; StepError
    for a server that tells no token ids.
    """
    if setting.n_min or setting.p_min:
        raise InputError(
            "replay over HTTP scores neither n_min nor p_min",
            hint="leave both at 0, or use a worker",
        )
    count = len(tokens)
    match = np.zeros(count, np.bool_)
    limit = count if n_predict is None else n_predict
    room_in_context = (1 << 60) if context is None else context - len(prompt)
    requests, start = 0, 1
    while start < reply:
        wanted = min(setting.n_max, limit - start - 1, room_in_context - start - 1)
        if wanted <= 0:
            start += 1
            continue
        drafted, asked = _draft(ask, [*prompt, *tokens[:start]], wanted)
        requests += asked
        right = 0
        while right < len(drafted) and start + right < count:
            if drafted[right] != tokens[start + right]:
                break
            right += 1
        match[start : start + right] = True
        start += _taken(right, drafted, tokens, start, eog, profile)
    return (
        Positions(
            prompt=len(prompt),
            reply=reply,
            match=match,
            confidence=np.ones(count, np.float32),
            eog=np.isin(np.asarray(tokens), list(eog)),
            rollout=None,
            tail=None,
            n_predict=n_predict,
            context=context,
        ),
        requests,
    )


def _taken(
    right: int,
    drafted: Sequence[int],
    tokens: Sequence[int],
    start: int,
    eog: frozenset[int],
    profile: Profile,
) -> int:
    """Tokens that this cycle emits: where the next one starts."""
    if RULES[profile].breaks_at_eog:
        for k in range(min(right, len(drafted) - 1)):
            if tokens[start + k] in eog:
                return k + 1
    return right + 1


def _draft(ask: Continue, text: list[int], wanted: int) -> tuple[list[int], int]:
    """(tokens, requests): a draft goes on past an end of generation, so the server, which stops
    there, is asked again."""
    drafted: list[int] = []
    requests = 0
    while len(drafted) < wanted:
        answer = ask([*text, *drafted], wanted - len(drafted))
        requests += 1
        if not answer.tokens:
            raise StepError(
                "this server tells no token ids, so no draft can be scored through it",
                hint="use llama-server of mainline, or an engine with its headers",
            )
        drafted += answer.tokens
    return drafted[:wanted], requests


def agreement(http: Sequence[tuple[int, int]], worker: Sequence[tuple[int, int]]) -> Agreement:
    """How (drafted, accepted) of the same replies compare."""
    if len(http) != len(worker) or not http:
        raise InputError("the two have not the same replies")
    ours, theirs = np.sum(http, axis=0), np.sum(worker, axis=0)
    equal = sum(tuple(a) == tuple(b) for a, b in zip(http, worker, strict=True))
    return Agreement(
        len(http), equal, (int(ours[0]), int(ours[1])), (int(theirs[0]), int(theirs[1]))
    )


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
    draft: Input
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

    def inputs(self) -> Mapping[str, Input]:
        return {"draft": self.draft, "trace": self.trace}

    def params(self) -> Mapping[str, JsonValue]:
        return {
            **self.args.numerics(),
            "n_max": list(self.n_max),
            "profile": self.profile.value,
        }

    def work(self) -> float:
        return self.trace.work() * len(self.n_max)

    def run(self, bench: Workbench) -> HttpReplayOutcome:
        import numpy as np

        from cook.engines.server import Server

        trace = TraceFile(bench.file(self.trace, TRACE_FILE))
        header = trace.header
        job = ServerJob(model_path(bench, self.draft), self.args, header.context)
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
                        DraftSettings(n_max),
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
