"""What a trace holds, summed up: for ``cook inspect``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cook.formats.trace import TraceFile
from cook.formats.trace_schema import TraceHeader

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True)
class CategoryCount:
    """One category of prompts: replies, tokens of prompts, emitted tokens, and those that have
    no probabilities."""

    name: str
    replies: int
    prompt_tokens: int
    tokens: int
    holes: int


@dataclass(frozen=True)
class Spread:
    """Mean and quantiles (5, 25, 50, 75 and 95 %) of a number over tokens."""

    mean: float
    quantiles: tuple[float, ...]


@dataclass(frozen=True)
class TraceReport:
    """A trace. ``stops``: how many replies ended how.

    Over emitted tokens with probabilities, None where there are none: ``entropy`` in nats of the
    target's raw distribution, all that is not stored counted as one token, so a lower bound;
    ``stored`` the share of its probability that the top-K holds; ``margin`` between the two
    largest logits (small ones flip when kernels change); ``certain`` the share of tokens with a
    probability above 0.9. ``bytes_per_token`` of the whole file.
    """

    kind: str
    path: Path
    file_bytes: int
    cut_short: bool
    header: TraceHeader
    replies: int
    prompt_tokens: int
    tokens: int
    beyond: int
    holes: int
    stops: dict[str, int]
    categories: tuple[CategoryCount, ...]
    entropy: Spread | None
    margin: Spread | None
    stored: Spread | None
    certain: float | None
    bytes_per_token: float | None


def report_trace(path: Path) -> TraceReport:
    """Read the trace at ``path`` whole; InputError for a damaged one."""
    trace = TraceFile(path)
    entropy, margin, stored, logp = _columns(), _columns(), _columns(), _columns()
    holes: dict[str, int] = {}
    for reply in trace:
        known = reply.known[: reply.head.emitted]
        holes[reply.head.category] = holes.get(reply.head.category, 0) + int((~known).sum())
        columns = slice(0, reply.head.emitted)
        logp.append(reply.logp[columns][known])
        if trace.header.top > 1:
            margin.append(reply.margin[columns][known])
        if trace.header.top:
            rows, present = reply.top_logp[columns][known], reply.top_ids[columns][known] >= 0
            bits, shares = _entropy(rows, present)
            entropy.append(bits)
            stored.append(shares)
    heads = trace.heads
    tokens = sum(head.emitted for head in heads)
    stops: dict[str, int] = {}
    for head in heads:
        stops[head.stop] = stops.get(head.stop, 0) + 1
    chances = np.exp(np.concatenate(logp))
    file_bytes = path.stat().st_size
    return TraceReport(
        kind="trace",
        path=path,
        file_bytes=file_bytes,
        cut_short=trace.cut_short,
        header=trace.header,
        replies=len(heads),
        prompt_tokens=sum(head.prompt_tokens for head in heads),
        tokens=tokens,
        beyond=sum(head.tokens - head.emitted for head in heads),
        holes=sum(holes.values()),
        stops=stops,
        categories=tuple(_categories(trace, holes)),
        entropy=_spread(entropy),
        margin=_spread(margin),
        stored=_spread(stored),
        certain=float((chances > 0.9).mean()) if len(chances) else None,
        bytes_per_token=file_bytes / tokens if tokens else None,
    )


def _entropy(
    logp: npt.NDArray[np.float32], present: npt.NDArray[np.bool_]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """(entropy, share of the probability stored) of each row; the rest is taken as one token."""
    p = np.where(present, np.exp(logp.astype(np.float64)), 0.0)
    stored = np.minimum(p.sum(axis=1), 1.0)
    rest = 1.0 - stored
    parts = np.where(p > 0, p * logp, 0.0).sum(axis=1)
    last = np.where(rest > 1e-9, rest * np.log(np.maximum(rest, 1e-9)), 0.0)
    return np.maximum(-parts - last, 0.0), stored


def _spread(columns: list[npt.NDArray[Any]]) -> Spread | None:
    values = np.concatenate(columns)
    if not len(values):
        return None
    quantiles = np.quantile(values, QUANTILES)
    return Spread(float(values.mean()), tuple(float(q) for q in quantiles))


def _categories(trace: TraceFile, holes: dict[str, int]) -> list[CategoryCount]:
    found = []
    for name in dict.fromkeys(head.category for head in trace.heads):
        heads = [head for head in trace.heads if head.category == name]
        prompts, tokens = sum(h.prompt_tokens for h in heads), sum(h.emitted for h in heads)
        found.append(CategoryCount(name, len(heads), prompts, tokens, holes[name]))
    return found


def _columns() -> list[npt.NDArray[Any]]:
    """Pieces of a column; the first is empty, so that they can always be joined."""
    return [np.zeros(0)]
