"""The text that servers with a draft wrote, as a trace to replay drafts on.

A batch of several tokens rounds otherwise than one of a single token. After a long prompt, where
two tokens are nearly as likely, a server with a draft writes another text than one without from
there on, and a trace of single tokens has the latter's. Many replies average out what a draft
accepts of the one and of the other; a cell of one long prompt compares the two by chance: after
16,384 tokens on mainline, all nine servers with a draft wrote one text, which left such a trace's
after 32 tokens. Of it a draft of eight layers had 189 of 515 drafted tokens accepted, of the
trace's 204 of 407; replayed on it, eight of nine had drafted and accepted exactly what their
servers had.
So traces of long prompts are of wider batches (docs/internals/scoring.md#the-width-of-its-batches),
and what is left is told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from cook.formats.trace_file import Reply, TraceFile, TraceWriter
from cook.record.prompt_runs import PromptRun

Texts = Mapping[str, tuple[int, ...]]
"""Tokens of replies, by the id of their prompt."""


def written_by(drafted: Iterable[PromptRun]) -> Texts:
    """What most of the ``drafted`` requests wrote to each prompt; without those whose engine tells
    no tokens (ik)."""
    texts: dict[str, Counter[tuple[int, ...]]] = {}
    for run in drafted:
        if run.tokens:
            texts.setdefault(run.id, Counter())[run.tokens] += 1
    return {name: counted.most_common(1)[0][0] for name, counted in texts.items()}


def recorded(trace: TraceFile) -> Texts:
    """What the target wrote."""
    return {r.head.id: tuple(r.tokens[: r.head.emitted].tolist()) for r in trace}


def rewrite(trace: TraceFile, texts: Texts, path: Path) -> None:
    """Write ``trace`` anew to ``path``, with the replies that are in ``texts`` as they are there;
    of all of them the tokens alone."""
    path.unlink(missing_ok=True)
    header = trace.header.model_copy(update={"top": 0, "extra_tokens": 0})
    replies = {**recorded(trace), **texts}
    with TraceWriter(path, header, trace.vocabulary) as writer:
        for reply in trace:
            tokens = replies[reply.head.id]
            stop = "eog" if tokens[-1] in header.eog else "limit"
            changes = {"tokens": len(tokens), "emitted": len(tokens), "stop": stop}
            head = reply.head.model_copy(update=changes)
            writer.append(Reply.of_tokens(head, reply.prompt, tokens))
