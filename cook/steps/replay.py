"""Step: score one draft on a stored trace, at prefill speed, with the target not in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from cook.engines.base import Engine, ModelArgs
from cook.engines.worker.loading import model_load
from cook.engines.worker.messages import Replay, Rollouts
from cook.errors import InputError
from cook.formats.arrays import Floats, Floats32, Ids
from cook.formats.sampling import Sampling
from cook.formats.trace_file import Reply, ReplyHead, TraceFile
from cook.graph.step import Cost, Input, JsonValue, Step, Workbench
from cook.graph.store import Artifact
from cook.scoring.ngram import NgramRequest
from cook.scoring.sampled import (
    ExpectedReply,
    SampledReply,
    acceptance_probabilities,
    chain_distribution,
)
from cook.scoring.simulate import Positions, positions_of
from cook.steps.trace import TRACE_FILE, Trace, read_trace
from cook.steps.work import Phase, computed_bytes, model_bytes, model_path, read_bytes
from cook.trace.compatible import require_draft

REPLAY_FILE = "replay.npz"
TopLogp = tuple[Ids, Floats32]
"""The likeliest tokens at every position [positions, K]: their ids, and log-probabilities."""


@dataclass(frozen=True)
class ReplayOutcome:
    """Over the emitted tokens that a draft may propose (every reply's first one excepted).

    ``matches`` of ``positions`` are the draft's argmax; ``top5`` of them are among its five
    likeliest. ``mean_kld`` in nats is the target's divergence as far as its stored top-K shows
    it, with at most ``mean_rest`` of its probability unseen; over the tokens whose probabilities
    the trace knows, None where it knows none.
    """

    positions: int
    matches: int
    top5: int
    mean_kld: float | None
    mean_rest: float | None
    decode_ns: int
    reduce_ns: int

    @property
    def match_rate(self) -> float:
        return self.matches / self.positions


@dataclass(frozen=True)
class ReplayStep(Step[ReplayOutcome]):
    """``draft`` teacher-forced over ``trace``; artifact ``replay.npz``, an entry a token.

    ``rollout_steps`` > 0 follows every mismatch for so many tokens, which p_min > 0 needs, but no
    farther than to a confidence below ``rollout_floor``: there a draft of any p_min has ended.
    ``args`` carry the draft's KV types and flash attention: they are part of the candidate.
    """

    engine: Engine
    name: str
    draft: Input
    trace: Trace
    args: ModelArgs
    rollout_steps: int = 0
    width: int | None = None
    """Of the reply, tokens a batch; None: as many as are computed like a server's few."""
    prompts: tuple[str, ...] | None = None
    """Ids of the prompts to replay; None: the whole trace. A race replays it share by share."""
    rollout_floor: float = 0.0
    top: int = 0
    """Likeliest tokens of the draft to keep of every position: for other sampling chains, and
    for how far another quant of it is from it."""

    kind: ClassVar[str] = "replay"
    version: ClassVar[int] = 3  # 2: a reply in batches that are computed like few tokens. 3: ik KT
    phase: ClassVar[str] = Phase.REPLAY
    in_worker: ClassVar[bool] = True

    @property
    def label(self) -> str:
        shape = f" in batches of {self.width}" if self.width else ""
        shape = " token by token" if self.width == 1 else shape
        share = f" over {len(self.prompts)} prompts" if self.prompts is not None else ""
        return f"replay {self.name}{share}{shape} ({self.engine.name})"

    def params(self) -> Mapping[str, JsonValue]:
        return {
            **self.args.numerics(),
            **self.args.batching(),
            "rollout_steps": self.rollout_steps,
            "width": self.width,
            "prompts": list(self.prompts) if self.prompts is not None else None,
            # Only where it changes what is kept, so that older replays are found again.
            **({"rollout_floor": self.rollout_floor} if self.rollout_floor else {}),
            **({"top": self.top} if self.top else {}),
        }

    def cost(self) -> Cost | None:
        size = model_bytes(self.draft)
        if size is None:
            return None
        tokens, lengths = self.trace.tokens, self.trace.prompt_tokens()
        share = 1.0 if self.prompts is None else len(self.prompts) / len(lengths)
        if self.prompts is not None:
            tokens = float(len(self.prompts) * self.trace.max_tokens)
        drafted = tokens * (0.3 * self.rollout_steps + (self.width == 1))  # behind each wrong one
        read = sum(lengths) * share + tokens
        draft = self.draft
        return Cost((size,), drafted * read_bytes(draft), drafted, read * computed_bytes(draft))

    def wants(self, prompt_id: str) -> bool:
        """Whether this step replays that prompt."""
        return self.prompts is None or prompt_id in self.prompts

    def run(self, bench: Workbench) -> ReplayOutcome:
        return self.of_file(model_path(bench, self.draft), bench)

    def of_file(
        self,
        path: Path,
        bench: Workbench,
        place: str | None = None,
        reference: Callable[[int], TopLogp] | None = None,
    ) -> ReplayOutcome:
        """The replay of the draft in ``path``; ``place``: as :meth:`KeptWorkers.loaded` has it.

        ``reference``: by a reply's place in the trace, whose probabilities divergence is measured
        from; None: the target's, where the trace has them.
        """
        trace = read_trace(bench, self.trace)
        require_draft(trace, path, self.engine.flavour)
        temperature = trace.header.sampler.temperature or None
        arrays: dict[str, Any] = {}
        seen: list[tuple[Reply, Replay]] = []
        load = model_load(self.engine, path, self.args, trace.header.context)
        with bench.workers.loaded(self.engine, load, place=place) as (worker, _):
            for index, reply in enumerate(trace):
                if not self.wants(reply.head.id):
                    continue
                if reference is not None:
                    compared: TopLogp | None = reference(index)
                else:
                    compared = (reply.top_ids, reply.top_logp) if trace.header.top else None
                found = worker.replay(
                    reply.prompt,
                    reply.tokens,
                    width=self.width,
                    top=self.top,
                    temperature=temperature,
                    reference=compared,
                    rollout_steps=self.rollout_steps,
                    rollout_stop_below=self.rollout_floor,
                )
                columns: dict[str, Any] = {name: getattr(found, name) for name in _BY_TOKEN}
                if found.top_ids is not None:
                    columns |= {"top_ids": found.top_ids, "top_logits": found.top_logits}
                if found.divergence is not None:
                    columns["kld"] = found.divergence.kld
                if (rolled := found.rollouts) is not None:
                    columns |= {to: getattr(rolled, name) for name, to in _ROLLOUTS.items()}
                arrays |= {f"{index}.{name}": column for name, column in columns.items()}
                seen.append((reply, found))
                bench.advance((index + 1) / len(trace))
        np.savez(bench.directory / REPLAY_FILE, allow_pickle=False, **arrays)
        return _outcome(seen)


def replies(
    step: ReplayStep, trace: Artifact, replay: Artifact, *, n_predict: int, context: int
) -> Iterator[tuple[ReplyHead, Positions]]:
    """Every reply as the simulator sees it, with its head, in the trace's order."""
    recorded = TraceFile(trace.file(TRACE_FILE))
    for reply, found in replayed(step, recorded, replay):
        seen = positions_in(
            recorded, reply, found, step.rollout_floor, n_predict=n_predict, context=context
        )
        yield reply.head, seen


def replayed(
    step: ReplayStep, trace: TraceFile, replay: Artifact
) -> Iterator[tuple[Reply, Replay]]:
    """Every reply of ``trace`` that ``step`` replayed, with what its draft says of it."""
    with np.load(replay.file(REPLAY_FILE), allow_pickle=False) as arrays:
        for index, reply in enumerate(trace):
            if step.wants(reply.head.id):
                rolled = {name: f"{index}.{stored}" for name, stored in _ROLLOUTS.items()}
                rollouts = None
                if step.rollout_steps:
                    rollouts = Rollouts(**{name: arrays[stored] for name, stored in rolled.items()})
                yield (
                    reply,
                    Replay(
                        **{name: arrays[f"{index}.{name}"] for name in _BY_TOKEN},
                        top_ids=arrays[f"{index}.top_ids"] if step.top else None,
                        top_logits=arrays[f"{index}.top_logits"] if step.top else None,
                        divergence=None,
                        rollouts=rollouts,
                        decode_ns=0,
                        reduce_ns=0,
                    ),
                )


def likeliest(replay: Artifact) -> Callable[[int], TopLogp]:
    """The draft's own likeliest tokens at every position, by a reply's place in the trace: of a
    replay that kept them (``top``)."""
    arrays = np.load(replay.file(REPLAY_FILE), allow_pickle=False)

    def of_reply(index: int) -> TopLogp:
        total = arrays[f"{index}.logsumexp"]
        return arrays[f"{index}.top_ids"], arrays[f"{index}.top_logits"] - total[:, None]

    return of_reply


def divergences(
    step: ReplayStep, trace: TraceFile, replay: Artifact
) -> Iterator[tuple[Reply, Floats32 | None]]:
    """The draft's divergence from its reference at every token of every reply, in nats; None
    without a reference."""
    with np.load(replay.file(REPLAY_FILE), allow_pickle=False) as arrays:
        for index, reply in enumerate(trace):
            if step.wants(reply.head.id):
                yield reply, arrays.get(f"{index}.kld")


def positions_in(
    trace: TraceFile,
    reply: Reply,
    found: Replay,
    rollout_floor: float,
    *,
    n_predict: int,
    context: int,
) -> Positions:
    """One replayed reply as the simulator sees it."""
    return positions_of(
        found,
        reply.tokens,
        prompt=reply.head.prompt_tokens,
        reply=reply.head.emitted,
        eog=reply_ends(trace, reply),
        rollout_floor=rollout_floor,
        n_predict=n_predict,
        context=context,
    )


def ngram_request(trace: TraceFile, reply: Reply, *, n_predict: int, context: int) -> NgramRequest:
    """One recorded reply as draft-free methods see it."""
    return NgramRequest(
        reply.prompt,
        reply.tokens,
        reply.head.emitted,
        reply_ends(trace, reply),
        n_predict=n_predict,
        context=context,
    )


def reply_ends(trace: TraceFile, reply: Reply) -> frozenset[int]:
    """Tokens that end a reply, with the one that ended this: a trace over HTTP may not know all."""
    last = {int(reply.tokens[reply.head.emitted - 1])} if reply.head.stop == "eog" else set()
    return frozenset(trace.header.eog) | last


def sampled_reply(trace: TraceFile, reply: Reply, found: Replay) -> SampledReply | None:
    """The chance of each emitted token under rejection sampling; None where nothing is known,
    and for a greedy trace, where the two rules are one."""
    emitted = slice(0, reply.head.emitted)
    if not trace.header.sampler.temperature or not reply.known[emitted].any():
        return None
    accept = acceptance_probabilities(reply.chain_logp[emitted], found.logq_t[emitted])
    return _sampled(trace, reply, accept)


def expected_reply(
    trace: TraceFile, reply: Reply, found: Replay, sampling: Sampling
) -> ExpectedReply | None:
    """The chances of each emitted token's place under ``sampling``, which leaves nothing open, on
    the text as it was recorded; None where nothing is known of the target or of the draft.

    The draft is taken to draw at the same temperature, its tail not cut, as in
    :func:`sampled_reply`.
    """
    end, size = reply.head.emitted, trace.header.vocabulary_size
    known = reply.known[:end].any()
    if found.top_ids is None or found.top_logits is None or not trace.header.top or not known:
        return None
    uncut = replace(sampling, top_k=0, top_p=1.0, min_p=0.0)
    target = chain_distribution(sampling, reply.top_ids[:end], reply.top_logp[:end], size)
    draft_logp = found.top_logits[:end] - found.logsumexp[:end, None]
    draft = chain_distribution(uncut, found.top_ids[:end], draft_logp, size)
    engine, rejection = (
        (_sampled(trace, reply, chances.low), _sampled(trace, reply, chances.high))
        for chances in (target.of(found.argmax[:end]), target.overlap(draft))
    )
    return ExpectedReply(engine, rejection)


def _sampled(trace: TraceFile, reply: Reply, chances: Floats) -> SampledReply:
    """``chances`` of the emitted tokens of ``reply``; a hole takes the mean of the others."""
    head, known = reply.head, reply.known[: reply.head.emitted]
    filled = np.where(known, chances, chances[known].mean())
    n_predict = trace.header.n_predict
    return SampledReply(head.prompt_tokens, filled, n_predict, head.category, head.weight)


def _outcome(found: Sequence[tuple[Reply, Replay]]) -> ReplayOutcome:
    """Sums over replies, without each one's first token, which is never drafted."""
    positions = matches = top5 = known = 0
    kld = rest = 0.0
    for reply, replay in found:
        at = slice(1, reply.head.emitted)
        positions += reply.head.emitted - 1
        matches += int((replay.argmax[at] == reply.tokens[at]).sum())
        top5 += int((replay.rank[at] < 5).sum())
        if replay.divergence is not None:
            seen = reply.known[at]
            known += int(seen.sum())
            kld += float(replay.divergence.kld[at][seen].sum())
            rest += float(replay.divergence.rest[at][seen].sum())
    if not positions:
        raise InputError("the trace has no token that a draft could propose")
    return ReplayOutcome(
        positions=positions,
        matches=matches,
        top5=top5,
        mean_kld=kld / known if known else None,
        mean_rest=rest / known if known else None,
        decode_ns=sum(replay.decode_ns for _, replay in found),
        reduce_ns=sum(replay.reduce_ns for _, replay in found),
    )


_BY_TOKEN = ["argmax", "confidence", "logsumexp", "logq", "logq_t", "rank", "margin", "entropy"]
_ROLLOUTS = {
    "position": "rolled_position",
    "length": "rolled_length",
    "tokens": "rolled_tokens",
    "confidence": "rolled_confidence",
    "tail_tokens": "tail_tokens",
    "tail_confidence": "tail_confidence",
}
"""What the arrays of rollouts are called in the file."""
