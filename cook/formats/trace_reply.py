"""One recorded reply, and its bytes in a trace file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cook.errors import InputError
from cook.formats.trace_schema import ReplyHead

Ids = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Reply:
    """One recorded reply. Arrays have one entry per recorded token.

    The first ``head.emitted`` tokens are the reply, an end-of-generation token included; the
    others continue past it (ik counts drafts there). ``known``: False where a recording over
    HTTP had no probabilities (its numbers are then zero). ``top_ids``/``top_logp`` [n, K]: raw
    log-probabilities of the largest logits, falling; id -1 where absent.
    """

    head: ReplyHead
    prompt: Ids
    tokens: Ids
    known: npt.NDArray[np.bool_]
    logp: Floats
    chain_logp: Floats
    logsumexp: Floats
    margin: Floats
    top_ids: Ids
    top_logp: Floats

    def __post_init__(self) -> None:
        n, k = len(self.tokens), self.top_ids.shape[1] if self.top_ids.ndim == 2 else -1
        columns = (self.known, self.logp, self.chain_logp, self.logsumexp, self.margin)
        if any(len(c) != n for c in columns) or self.top_ids.shape != (n, k):
            raise InputError(f"reply {self.head.id!r}: its arrays differ in length")
        if self.top_logp.shape != (n, k) or not 0 < self.head.emitted <= n or not len(self.prompt):
            raise InputError(f"reply {self.head.id!r}: impossible lengths")


def _layout(prompt: int, tokens: int, top: int) -> list[tuple[str, np.dtype[Any], tuple[int, ...]]]:
    f4, i4 = np.dtype("<f4"), np.dtype("<i4")
    column = (tokens,)
    return [
        ("prompt", i4, (prompt,)),
        ("tokens", i4, column),
        ("logp", f4, column),
        ("chain_logp", f4, column),
        ("logsumexp", f4, column),
        ("margin", f4, column),
        ("top1_logp", f4, column),
        ("top_ids", i4, (tokens, top)),
        ("top_relative", np.dtype("<f2"), (tokens, top)),
        ("known", np.dtype("u1"), column),
    ]


def pack_reply(reply: Reply, top: int) -> bytes:
    """The arrays of ``reply``, one after another; InputError unless it has ``top`` candidates."""
    if reply.top_ids.shape[1] != top:
        raise InputError(f"reply {reply.head.id!r} has top-{reply.top_ids.shape[1]}, not {top}")
    best = reply.top_logp[:, :1] if top else np.zeros((len(reply.tokens), 1), np.float32)
    values: dict[str, npt.NDArray[Any]] = {
        "prompt": reply.prompt,
        "tokens": reply.tokens,
        "logp": reply.logp,
        "chain_logp": reply.chain_logp,
        "logsumexp": reply.logsumexp,
        "margin": reply.margin,
        "top1_logp": best[:, 0],
        "top_ids": reply.top_ids,
        "top_relative": np.maximum(reply.top_logp - best, -60000.0),
        "known": reply.known,
    }
    layout = _layout(len(reply.prompt), len(reply.tokens), top)
    return b"".join(np.ascontiguousarray(values[n], t).tobytes() for n, t, _ in layout)


def unpack_reply(head: ReplyHead, top: int, payload: bytes, where: str) -> Reply:
    """The reply in ``payload``; InputError, with ``where``, for bytes of another length."""
    layout = _layout(head.prompt_tokens, head.tokens, top)
    need = sum(int(np.prod(shape, dtype=np.int64)) * t.itemsize for _, t, shape in layout)
    if need != len(payload):
        raise InputError(f"{where}: reply {head.id!r} has {len(payload)} bytes, not {need}")
    got: dict[str, npt.NDArray[Any]] = {}
    at = 0
    for name, dtype, shape in layout:
        count = int(np.prod(shape, dtype=np.int64))
        got[name] = np.frombuffer(payload, dtype, count, at).reshape(shape)
        at += count * dtype.itemsize
    relative = got["top_relative"].astype(np.float32)
    return Reply(
        head=head,
        prompt=got["prompt"],
        tokens=got["tokens"],
        known=got["known"] != 0,
        logp=got["logp"],
        chain_logp=got["chain_logp"],
        logsumexp=got["logsumexp"],
        margin=got["margin"],
        top_ids=got["top_ids"],
        top_logp=relative + got["top1_logp"][:, None],
    )
