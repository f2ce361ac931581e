"""Step: is our accounting this engine's? A live run of the score, recounted from its own tokens.

Counts are called exact only where this has passed (docs/internals/scoring.md#recount). The requests
are those that were run live anyway. ik returns no token ids, and leaves out of the text some that
it counted: there only replies are recounted whose text is that of the trace, or has as many tokens
as the server counted. Even so a request may differ there that we count rightly: ik's draft keeps
what its cache holds of the request before wherever tokens match by chance, though computed behind
another text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import ClassVar

from cook.engines.base import DraftSettings, Engine, ModelArgs
from cook.engines.worker.loading import model_load
from cook.engines.worker.messages import ModelInfo
from cook.engines.worker.worker import Worker
from cook.formats.trace_file import Reply
from cook.graph.cost import Cost
from cook.graph.step import Input, JsonValue, Step, Workbench
from cook.record.outcomes import SelfCheckOutcome
from cook.record.prompt_runs import PromptRun
from cook.scoring.count_check import LiveReply, check_counts
from cook.scoring.simulate import Profile
from cook.steps.deal import Dealt
from cook.steps.made_model import model_path
from cook.steps.phase import Phase
from cook.steps.trace import Trace, read_trace
from cook.steps.work import CHUNK_TOKENS, TOKENS_A_CYCLE, computed_bytes, model_bytes, read_bytes

REQUESTS = 8
"""Most live requests recounted at the server's own batch shapes, which costs about a live run."""


@dataclass(frozen=True)
class SelfCheckStep(Step[SelfCheckOutcome]):
    """Recount the first requests of ``live`` with its draft.

    ``trace`` gives the prompts' tokens. No request is recounted where no reply's tokens are known.
    """

    engine: Engine
    name: str
    draft: Input
    args: ModelArgs
    settings: DraftSettings
    profile: Profile
    trace: Trace
    live: Dealt

    kind: ClassVar[str] = "selfcheck"
    phase: ClassVar[str] = Phase.CHECKS
    version: ClassVar[int] = 3
    """2: ik's text tokenized again. 3: of what was dealt."""
    in_worker: ClassVar[bool] = True

    @property
    def label(self) -> str:
        return f"recount of live requests {self.name} ({self.engine.name})"

    def inputs(self) -> Mapping[str, Input]:
        return {**super().inputs(), **self.live.inputs("live")}

    def params(self) -> Mapping[str, JsonValue]:
        return {
            "args": asdict(self.args),
            "settings": asdict(self.settings),
            "profile": str(self.profile),
            "requests": REQUESTS,
            "candidate": self.live.name,
        }

    def cost(self) -> Cost | None:
        size = model_bytes(self.draft)
        if size is None:
            return None
        requests = min(REQUESTS, len(self.live.prompts))
        cycles = requests * self.live.live.max_tokens / TOKENS_A_CYCLE
        tokens = cycles * (self.settings.n_max + 1)
        computed = requests * CHUNK_TOKENS * computed_bytes(self.draft)
        return Cost((), tokens * read_bytes(self.draft), tokens, computed, memory_bytes=size)

    def run(self, bench: Workbench) -> SelfCheckOutcome:
        trace = read_trace(bench, self.trace)
        recorded = {reply.head.id: reply for reply in trace}
        runs = [run for run in self.live.read(bench) if run.id in recorded]
        path = model_path(bench, self.draft)
        load = model_load(self.engine, path, self.args, self.live.live.context)
        with bench.workers.loaded(self.engine, load) as (worker, info):
            replies: list[LiveReply] = []
            passed_over = 0
            for run in runs:
                reply = recorded[run.id]
                tokens = emitted_tokens(run, reply, worker, info, self.settings.n_max)
                if tokens is None:
                    passed_over += 1
                elif len(replies) < REQUESTS:
                    prompt = tuple(reply.prompt.tolist())
                    replies.append(_as_reply(run, prompt, tokens, self.live.live.max_tokens))
            found = check_counts(
                worker, info, replies, self.settings, self.profile, context=self.live.live.context
            )
        return replace(found, passed_over=passed_over)


def emitted_tokens(
    run: PromptRun, recorded: Reply, worker: Worker, info: ModelInfo, n_max: int
) -> tuple[int, ...] | None:
    """The tokens of a reply as the server counted them; None where they are not known.

    ik leaves out of the text what follows an end of generation or, at the limit, the first token
    of the last cycle, and counts it all the same: up to ``n_max`` tokens, which the trace knows
    where it says the same until there.
    """
    if run.tokens is not None:
        return run.tokens
    said = recorded.tokens[: run.predicted_n]
    if len(said) == run.predicted_n:
        whole, least = (
            worker.detokenize(part, special=False).rstrip("\ufffd")
            for part in (said, said[:-n_max])
        )
        if whole.startswith(run.text) and run.text.startswith(least):
            return tuple(said.tolist())
    tokens = worker.tokenize(run.text, add_special=False, parse_special=False)
    if worker.detokenize(tokens, special=False) != run.text:
        return None
    if run.stop == "eos" and len(info.eog) == 1:
        tokens = (*tokens, *info.eog)
    return tokens if len(tokens) == run.predicted_n else None


def _as_reply(
    run: PromptRun, prompt: tuple[int, ...], tokens: tuple[int, ...], n_predict: int
) -> LiveReply:
    return LiveReply(
        prompt=prompt,
        tokens=tokens,
        n_predict=n_predict,
        draft_n=run.draft_n or 0,
        draft_n_accepted=run.draft_n_accepted or 0,
        decode_s=run.predicted_ms / 1e3,
        stop=run.stop,
    )
