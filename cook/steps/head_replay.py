"""Steps: the target's hidden states over a trace, which its heads draft from; and every draft that
a head begins in the replies of a trace, with the target not in memory, but for heads of ik, which
are a part of it.

One pass and short branches give all draft lengths and every p_min
(docs/internals/scoring.md#heads).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar
from zipfile import ZipFile

import numpy as np
import numpy.typing as npt

from cook.engines.base import Engine, ModelArgs
from cook.engines.worker.loading import head_load, model_load
from cook.engines.worker.messages import HeadReplay, ModelLoad
from cook.engines.worker.worker import Worker
from cook.errors import StepError
from cook.formats.arrays import Floats32, Ids
from cook.formats.gguf import header_if_there, read_gguf
from cook.formats.gguf_writer import write_copy
from cook.formats.heads import gives_on, head_alone
from cook.formats.quant_types import Flavour
from cook.formats.trace_file import Reply, ReplyHead, TraceFile
from cook.graph.step import Cost, Input, JsonValue, Source, Step, Workbench
from cook.graph.store import Artifact
from cook.scoring.simulate import Positions
from cook.steps.replay import reply_ends
from cook.steps.trace import TRACE_FILE, Trace, read_trace
from cook.steps.work import (
    Phase,
    computed_bytes,
    head_bytes,
    model_bytes,
    model_path,
    trunk_bytes,
)
from cook.units import size

ROWS_FILE = "rows.npz"
ROW_BYTES, MOST_BYTES = 2, 8 << 30


@dataclass(frozen=True)
class RowsOutcome:
    """``tokens`` read, each with a row of ``width`` numbers."""

    tokens: int
    width: int


@dataclass(frozen=True)
class RowsStep(Step[RowsOutcome]):
    """Reads the replies of ``trace`` once more with ``target``, and keeps a row a token in f16;
    artifact ``rows.npz``, an array a reply. StepError beyond :data:`MOST_BYTES`, and for an engine
    that gives none."""

    engine: Engine
    target: Source
    args: ModelArgs
    trace: Trace

    kind: ClassVar[str] = "rows"
    phase: ClassVar[str] = Phase.REPLAY
    in_worker: ClassVar[bool] = True

    @property
    def label(self) -> str:
        return f"hidden states of the target ({self.engine.name})"

    def params(self) -> Mapping[str, JsonValue]:
        return {**self.args.numerics(), **self.args.batching()}

    def cost(self) -> Cost | None:
        held = trunk_bytes(self.target)
        if held is None:
            return None
        return Cost((held,), computed_bytes=self._tokens * computed_bytes(self.target))

    def predicted_bytes(self) -> int | None:
        file = header_if_there(self.target.path)
        width = file.integer(f"{file.architecture}.embedding_length") if file is not None else None
        return round(ROW_BYTES * self._tokens * width) if width else None

    @property
    def _tokens(self) -> float:
        """About as many as will be read."""
        return sum(self.trace.prompt_tokens()) + self.trace.tokens

    def load(self, bench: Workbench, context: int) -> ModelLoad:
        """The target as it gives its rows."""
        model = (self.engine, model_path(bench, self.target), self.args, context)
        return model_load(*model, gives_rows=True)

    def run(self, bench: Workbench) -> RowsOutcome:
        trace, done = read_trace(bench, self.trace), 0
        tokens = sum(head.prompt_tokens + head.tokens - 1 for head in trace.heads)
        load = self.load(bench, trace.header.context)
        with (
            bench.workers.loaded(self.engine, load) as (worker, _),
            ZipFile(bench.directory / ROWS_FILE, "w") as file,  # as np.savez, an array at a time
        ):
            for index, reply in enumerate(trace):
                rows = rows_of(worker, reply)
                width = rows.shape[1]
                if (needed := ROW_BYTES * tokens * width) > MOST_BYTES:
                    raise StepError(
                        f"{self.label}: {size(needed)} for these prompts, and at most "
                        f"{size(MOST_BYTES)} are kept",
                        hint="fewer prompts (`score.limit`), or `score: {method: live}`",
                    )
                with file.open(f"{index}.npy", "w", force_zip64=True) as array:
                    np.lib.format.write_array(array, rows, allow_pickle=False)
                done += len(rows)
                bench.advance(done / tokens)
        return RowsOutcome(tokens, width)


def rows_of(worker: Worker, reply: Reply) -> npt.NDArray[np.float16]:
    """The rows of ``reply`` as they are kept. StepError where they do not fit f16."""
    rows = worker.rows(reply.prompt, reply.tokens).astype(np.float16)
    if not np.isfinite(rows).all():
        raise StepError("the target's hidden states hold numbers beyond f16")
    return rows


def read_rows(bench: Workbench, step: RowsStep) -> Iterator[Floats32]:
    """Of every reply, in the trace's order: [prompt + reply - 1, width]."""
    with np.load(bench.file(step, ROWS_FILE), allow_pickle=False) as arrays:
        for index in range(len(arrays.files)):
            yield arrays[str(index)].astype(np.float32)


HEAD_FILE = "head.npz"
WAVE = 32
"""Drafts that go on side by side."""
CHANCE, LEAST_DRAFTS = 0.02, 200
"""A head is broken whose drafts are right as seldom as guesses are: the share, and its least n."""
TRIED, TRIED_BYTES, LEAST_GAIN = 600, 1 << 28, 0.05
"""So many drafts, with at most so many bytes of rows, begin without the head's block as well, which
should add that share of right ones. The demo's adds 0.107, other layers' 0.017 to 0.021 and 0.055.
"""


def broken_head(right: int, drafts: int, guessed: int = 0) -> str | None:
    """What is wrong with a head of whose ``drafts`` so few were ``right``, if anything is:
    ``guessed`` are right without it (:func:`guessed_without`)."""
    if drafts < LEAST_DRAFTS or right > max(CHANCE * drafts, guessed):
        return None
    found = f"a broken head: {right} tokens were right in {drafts} drafts"
    if right <= CHANCE * drafts:
        return (
            f"{found}, as by chance. No quant does that to a head that works: compare with its "
            "unquantized file"
        )
    return (
        f"{found}, and {guessed} are right without it, by what mostly followed the same token in "
        "the replies before: its file is damaged or of too few bits. Compare with its unquantized "
        "file, and that with the model's: eh_proj and the order of its halves, enorm, hnorm"
    )


def guessed_without(replies: Iterable[Ids]) -> int:
    """Of the drafts that a head begins in ``replies``, those whose first token is right if it is
    what followed the last one most often in the replies before."""
    follows: dict[int, Counter[int]] = {}
    right = 0
    for reply in replies:
        pairs = [*pairwise(reply.tolist())]
        known = ((follows[last], token) for last, token in pairs if last in follows)
        right += sum(token == seen.most_common(1)[0][0] for seen, token in known)
        for last, token in pairs:
            follows.setdefault(last, Counter())[token] += 1
    return right


@dataclass(frozen=True)
class HeadReplayOutcome:
    """``drafts`` begun, and of how many the first token is right. Of the first ``tried`` of them
    ``tried_right`` are, and ``without_block`` with zeros for what the head's block adds."""

    drafts: int
    right: int
    replay_ns: int
    tried: int = 0
    tried_right: int = 0
    without_block: int = 0

    @property
    def idle_block(self) -> str | None:
        """That its block is of no use, if it is not."""
        gained = self.tried_right - self.without_block
        few = self.tried < LEAST_DRAFTS or broken_head(self.right, self.drafts)
        if few or gained > LEAST_GAIN * self.tried:
            return None
        return (
            f"its block adds next to nothing: in {self.tried} drafts {self.tried_right} first "
            f"tokens are right, and {self.without_block} with zeros for what the block gives. Is "
            "it another layer's, another model's, or of too few bits?"
        )


@dataclass(frozen=True)
class HeadReplayStep(Step[HeadReplayOutcome]):
    """``draft``, a head, over ``trace`` with the target's ``rows``; artifact ``head.npz``.

    ``depth``: the longest draft. ``floor`` > 0: as far as to a confidence below that, which p_min
    needs; 0: to the first wrong token.
    """

    engine: Engine
    name: str
    draft: Input
    trace: Trace
    rows: RowsStep
    args: ModelArgs
    depth: int
    floor: float = 0.0
    streams: bool = False
    """The target is in memory as well, and what it gives is not kept: ``rows`` says how."""

    kind: ClassVar[str] = "head-replay"
    phase: ClassVar[str] = Phase.REPLAY
    version: ClassVar[int] = 2
    """2: a part of it again without the head's block."""
    in_worker: ClassVar[bool] = True

    @property
    def label(self) -> str:
        return f"replay head {self.name} ({self.engine.name})"

    def params(self) -> Mapping[str, JsonValue]:
        numbers = {**self.args.batching(), "depth": self.depth, "floor": self.floor}
        streamed = {"rows": dict(self.rows.params())} if self.streams else {}
        return {**self.args.numerics(), **numbers, "wave": WAVE, **streamed}

    def inputs(self) -> Mapping[str, Input]:
        found = super().inputs()
        return {**found, "rows": self.rows.target} if self.streams else found

    def cost(self) -> Cost | None:
        held = model_bytes(self.draft)
        if held is None:
            return None
        each, tokens = head_bytes(self.draft), self.trace.tokens
        read = sum(self.trace.prompt_tokens()) + 2 * tokens
        cost = Cost((held,), decodes=2 * tokens / WAVE, computed_bytes=read * each)
        target = self.rows.cost() if self.streams else None
        if target is None and self.engine.flavour != Flavour.LLAMA_CPP:
            return cost
        if target is None:  # a part of it again, without the block
            again = 1 + min(1.0, TRIED / max(tokens, 1))
            return Cost(
                loads=(held, each),
                decodes=again * cost.decodes,
                computed_bytes=again * cost.computed_bytes,
                copied_bytes=each,
            )
        both = (*target.loads, held)
        computed = cost.computed_bytes + target.computed_bytes
        return replace(cost, loads=both, computed_bytes=computed, memory_bytes=sum(both))

    def run(self, bench: Workbench) -> HeadReplayOutcome:
        trace = read_trace(bench, self.trace)
        before: Floats32 | None = None
        arrays: dict[str, Any] = {}
        drafts = right = spent_ns = tried_right = 0
        tried: list[tuple[Reply, Floats32, Floats32 | None]] = []
        path, context = model_path(bench, self.draft), trace.header.context
        load = head_load(self.engine, path, self.args, context, WAVE, self.depth)
        first = self.rows.load(bench, context) if self.streams else load
        with bench.workers.loaded(self.engine, first) as (worker, _):
            if self.streams:
                worker.load(load, onto=True)
            streamed = (rows_of(worker, reply).astype(np.float32) for reply in trace)
            kept = streamed if self.streams else read_rows(bench, self.rows)
            for index, (reply, rows) in enumerate(zip(trace, kept, strict=True)):
                sampled = drafts < TRIED and sum(r.nbytes for _, r, _ in tried) < TRIED_BYTES
                if sampled and not self.streams:
                    tried.append((reply, rows, before))
                found = worker.replay_head(
                    reply.prompt,
                    reply.tokens,
                    rows,
                    before=before,
                    depth=self.depth,
                    floor=self.floor,
                )
                if self.engine.flavour == Flavour.LLAMA_CPP:
                    # Which clears it never: the next request begins on the last row of this one.
                    before = rows[len(reply.prompt) + reply.head.emitted - 2]
                arrays |= {f"{index}.tokens": found.tokens, f"{index}.confidence": found.confidence}
                drafts += reply.head.emitted - 1
                right += _first_right(reply, found)
                tried_right = right if sampled else tried_right
                spent_ns += found.replay_ns
                bench.advance((index + 1) / len(trace))
        if not drafts:
            raise StepError(f"{self.label}: the trace has no token that a draft could propose")
        np.savez(bench.directory / HEAD_FILE, allow_pickle=False, **arrays)
        outcome = HeadReplayOutcome(drafts, right, spent_ns)
        file = read_gguf(path)
        zeros = gives_on(file) if self.engine.flavour == Flavour.LLAMA_CPP else ()
        if not tried or not zeros:
            return outcome
        # Without its block what eh_proj gives goes on as it is: a head that drafts as well has
        # one that does nothing.
        idle = write_copy(head_alone(file), bench.directory / "idle.gguf", zeros)
        load = head_load(self.engine, idle, self.args, context, WAVE, 1)
        try:
            with bench.workers.loaded(self.engine, load, place="idle head") as (worker, _):
                without = sum(
                    _first_right(
                        reply,
                        worker.replay_head(
                            reply.prompt, reply.tokens, rows, before=before, depth=1
                        ),
                    )
                    for reply, rows, before in tried
                )
        except StepError:
            return outcome  # the engine runs this head inside of its target's file alone
        finally:
            idle.unlink()
        begun = sum(reply.head.emitted - 1 for reply, *_ in tried)
        return replace(outcome, tried=begun, tried_right=tried_right, without_block=without)


def _first_right(reply: Reply, found: HeadReplay) -> int:
    ours = slice(1, reply.head.emitted)
    return int((found.tokens[ours, 0] == reply.tokens[ours]).sum())


def head_replies(
    step: HeadReplayStep, trace: Artifact, replay: Artifact, *, n_predict: int, context: int
) -> Iterator[tuple[ReplyHead, Positions]]:
    """Every reply as the simulator sees it, with its head, in the trace's order."""
    recorded = TraceFile(trace.file(TRACE_FILE))
    with np.load(replay.file(HEAD_FILE), allow_pickle=False) as arrays:
        for index, reply in enumerate(recorded):
            tokens, confidence = (arrays[f"{index}.{name}"] for name in ("tokens", "confidence"))
            yield (
                reply.head,
                head_positions(
                    HeadReplay(tokens, confidence, replay_ns=0),
                    reply.tokens,
                    prompt=reply.head.prompt_tokens,
                    reply=reply.head.emitted,
                    eog=reply_ends(recorded, reply),
                    rollout_floor=step.floor,
                    n_predict=n_predict,
                    context=context,
                ),
            )


def head_positions(
    found: HeadReplay,
    emitted: Ids,
    *,
    prompt: int,
    reply: int,
    eog: frozenset[int],
    rollout_floor: float,
    n_predict: int,
    context: int,
) -> Positions:
    """The simulator's view of one replayed reply, as :func:`cook.scoring.simulate.positions_of`."""
    depth = found.tokens.shape[1]
    ahead = np.concatenate([emitted, np.full(depth, -2)])  # which no head guesses
    text = np.lib.stride_tricks.sliding_window_view(ahead, depth)[: len(emitted)]
    right = np.cumprod(found.tokens == text, axis=1).sum(axis=1)
    return Positions(
        prompt=prompt,
        reply=reply,
        match=right > 0,
        eog=np.isin(emitted, list(eog)),
        rollout_floor=rollout_floor,
        n_predict=n_predict,
        context=context,
        chains=(right, found.confidence),
    )
