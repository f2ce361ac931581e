"""One recording: ask a target what is not in the trace yet, and keep each answer at once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cook.formats.sampling import Sampling
from cook.formats.trace_file import Reply, ReplyHead, TraceFile, TraceHeader, TraceWriter
from cook.formats.vocabulary import Vocabulary
from cook.prompts.prompt_set import Prompt

TOP = 64
"""Candidates kept a token: K of docs/internals/scoring.md#the-trace, 408 bytes a token."""
EXTRA = 33
"""Tokens recorded beyond an end of reply: ik counts drafts of up to n_max = 32 past it."""


@dataclass(frozen=True)
class TracePlan:
    """What is recorded. ``max_tokens`` of each reply; prompt and reply fit ``context`` tokens.
    ``batch_width``: as :class:`TraceHeader` has it."""

    prompts: tuple[Prompt, ...]
    max_tokens: int
    context: int
    sampler: Sampling
    top: int = TOP
    extra: int = EXTRA
    batch_width: int = 1


@dataclass(frozen=True)
class Dropped:
    """A prompt without a usable answer, and why."""

    id: str
    reason: str


class RecordingTarget(Protocol):
    """A model that can be asked, wherever it runs."""

    @property
    def vocabulary(self) -> Vocabulary | None:
        """Its token texts; None when they are not known."""
        ...

    def header(self, plan: TracePlan) -> TraceHeader:
        """Under what conditions ``plan`` is recorded."""
        ...

    def prepare(self, prompts: Sequence[Prompt]) -> None:
        """Called once with the prompts that will be asked, before the first."""
        ...

    def reply(self, prompt: Prompt, plan: TracePlan) -> Reply | Dropped:
        """What it says to one prompt."""
        ...


@dataclass(frozen=True)
class TraceTotals:
    """A finished recording. ``asked`` now; the other replies were in the file already.

    ``tokens`` are emitted ones, ``holes`` those of them without probabilities.
    """

    path: Path
    replies: int
    asked: int
    tokens: int
    ended: int
    prompt_tokens: int
    holes: int
    file_bytes: int
    dropped: tuple[Dropped, ...]


def record(
    target: RecordingTarget,
    plan: TracePlan,
    path: Path,
    advance: Callable[[int], None] | None = None,
) -> TraceTotals:
    """Record ``plan`` into ``path``; go on where an earlier recording of it ended.

    Every reply is on the disk before the next is asked. ``advance`` gets how many prompts are
    done. InputError when ``path`` holds something else.
    """
    dropped = []
    with TraceWriter(path, target.header(plan), target.vocabulary) as writer:
        missing = [p for p in plan.prompts if p.id not in writer.done]
        if missing:
            target.prepare(missing)
        done = len(plan.prompts) - len(missing)
        for prompt in missing:
            answer = target.reply(prompt, plan)
            if isinstance(answer, Dropped):
                dropped.append(answer)
            else:
                writer.append(answer)
            done += 1
            if advance is not None:
                advance(done)
    return trace_totals(path, len(missing) - len(dropped), tuple(dropped))


def trace_totals(path: Path, asked: int = 0, dropped: tuple[Dropped, ...] = ()) -> TraceTotals:
    """What the trace at ``path`` holds; every checksum is verified."""
    trace = TraceFile(path)
    holes = sum(int((~reply.known[: reply.head.emitted]).sum()) for reply in trace)
    heads = trace.heads
    return TraceTotals(
        path=path,
        replies=len(heads),
        asked=asked,
        tokens=sum(h.emitted for h in heads),
        ended=sum(h.stop == "eog" for h in heads),
        prompt_tokens=sum(h.prompt_tokens for h in heads),
        holes=holes,
        file_bytes=path.stat().st_size,
        dropped=dropped,
    )


def reply_head(
    prompt: Prompt,
    text: str,
    ids: Sequence[int],
    plan: TracePlan,
    stop: str,
    tokens: int,
    emitted: int,
) -> ReplyHead:
    """The head of a reply to ``prompt``, rendered as ``text``, which is ``ids``."""
    return ReplyHead(
        id=prompt.id,
        category=prompt.category,
        half=prompt.half,
        rendered_sha256=sha256(text),
        seed=plan.sampler.seed,
        stop=stop,
        prompt_tokens=len(ids),
        tokens=tokens,
        emitted=emitted,
    )


def prompts_digest(prompts: Sequence[Prompt]) -> str:
    """SHA-256 over ids and texts, in order."""
    return sha256("\0".join(f"{p.id}\0{p.whole}" for p in prompts))


def sha256(text: str) -> str:
    """Hexadecimal, of the text in UTF-8."""
    return hashlib.sha256(text.encode()).hexdigest()
