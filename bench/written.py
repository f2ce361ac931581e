"""The text that servers with a draft wrote, as a trace to replay drafts on.

A batch of several tokens rounds otherwise than one of a single token. After a long prompt, where
two tokens are nearly as likely, a server with a draft writes another text than one without from
there on, and the trace has the latter's. Many replies average out what a draft accepts of the one
and of the other; a cell of one long prompt compares the two by chance: after 16,384 tokens on
mainline, all nine servers with a draft wrote one text, which left the trace's after 32 tokens. Of
it a draft of eight layers had 189 of 515 drafted tokens accepted, of the trace's 204 of 407;
replayed on it, eight of nine had drafted and accepted exactly what their servers had.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np

from cook.build.layout import ForecastPlan
from cook.formats.trace_file import Reply, TraceFile, TraceWriter
from cook.record.prompt_runs import PromptRun
from cook.steps.trace import given_trace


def written_by(drafted: Iterable[PromptRun]) -> dict[str, tuple[int, ...]]:
    """What most of the ``drafted`` requests wrote to each prompt, by its id; without those whose
    engine tells no tokens (ik)."""
    texts: dict[str, Counter[tuple[int, ...]]] = {}
    for run in drafted:
        if run.tokens:
            texts.setdefault(run.id, Counter())[run.tokens] += 1
    return {name: counted.most_common(1)[0][0] for name, counted in texts.items()}


def alike(reply: Reply, tokens: tuple[int, ...]) -> int:
    """Tokens until the first that the ``reply`` of a trace and ``tokens`` differ in."""
    recorded = reply.tokens[: reply.head.emitted].tolist()
    pairs = zip(recorded, tokens, strict=False)
    shorter = min(len(recorded), len(tokens))
    return next((place for place, (one, other) in enumerate(pairs) if one != other), shorter)


def rewritten(trace: TraceFile, texts: dict[str, tuple[int, ...]], path: Path) -> None:
    """Write ``trace`` to ``path`` with the replies that ``texts`` has as they are there, without
    probabilities, and the others as they are."""
    path.unlink(missing_ok=True)
    header = trace.header.model_copy(update={"top": 0, "extra_tokens": 0})
    with TraceWriter(path, header, trace.vocabulary) as writer:
        for reply in trace:
            recorded = tuple(reply.tokens[: reply.head.emitted].tolist())
            writer.append(_of_tokens(reply, texts.get(reply.head.id, recorded)))


def _of_tokens(reply: Reply, tokens: tuple[int, ...]) -> Reply:
    unknown = np.zeros(len(tokens), np.float32)
    count = {"tokens": len(tokens), "emitted": len(tokens)}
    return Reply(
        head=reply.head.model_copy(update=count),
        prompt=reply.prompt,
        tokens=np.array(tokens, np.int32),
        known=np.zeros(len(tokens), np.bool_),
        logp=unknown,
        chain_logp=unknown,
        logsumexp=unknown,
        margin=unknown,
        top_ids=np.zeros((len(tokens), 0), np.int32),
        top_logp=np.zeros((len(tokens), 0), np.float32),
    )


def on_text(plan: ForecastPlan, path: Path) -> ForecastPlan:
    """``plan`` with its drafts on the trace at ``path``, priced with the same times."""
    trace = given_trace(path)
    drafts = tuple(
        replace(d, replays=tuple(replace(replay, trace=trace) for replay in d.replays))
        for d in plan.drafts
    )
    return replace(plan, trace=trace, drafts=drafts)
