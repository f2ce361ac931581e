"""Headers and replies of traces in which little is known, for tests to fill in."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from cook.formats.sampling import Sampling
from cook.formats.trace_file import Reply, ReplyHead, TraceHeader


def server_header(**changes: Any) -> TraceHeader:
    """What a recording over HTTP without a GGUF at hand says of itself, with ``changes``."""
    fields = {
        "target_name": "t.gguf",
        "target_sha256": None,
        "tokenizer_sha256": None,
        "template_sha256": "c",
        "prompts_sha256": "d",
        "vocabulary_size": 8,
        "eog": (),
        "flavour": "llama.cpp",
        "engine_build": "b1",
        "engine_digest": None,
        "device": None,
        "cache_type_k": None,
        "cache_type_v": None,
        "context": 64,
        "n_predict": 8,
        "top": 0,
        "sampler": Sampling().applied(),
        "source": "server",
    }
    return TraceHeader.model_validate(fields | changes)


def blank_reply(head: ReplyHead, *, known: bool) -> Reply:
    """As many tokens as ``head`` says, all alike, every figure 0 and no top-K."""
    zeros = np.zeros(head.tokens, np.float32)
    return Reply(
        head=head,
        prompt=np.ones(head.prompt_tokens, np.int32),
        tokens=np.ones(head.tokens, np.int32),
        known=np.full(head.tokens, known),
        logp=zeros,
        chain_logp=zeros,
        logsumexp=zeros,
        margin=zeros,
        top_ids=np.zeros((head.tokens, 0), np.int32),
        top_logp=np.zeros((head.tokens, 0), np.float32),
    )


def even_reply(name: str, known: list[bool], category: str = "code", beyond: int = 0) -> Reply:
    """Two candidates of probability 1/2 a token."""
    n = len(known)
    half = np.full(n, math.log(0.5), np.float32)
    return Reply(
        head=ReplyHead(
            id=name,
            category=category,
            stop="eog" if beyond else "limit",
            prompt_tokens=3,
            tokens=n,
            emitted=n - beyond,
        ),
        prompt=np.arange(3, dtype=np.int32),
        tokens=np.arange(n, dtype=np.int32),
        known=np.array(known),
        logp=half,
        chain_logp=half,
        logsumexp=half * 0,
        margin=half * 0 + 0.25,
        top_ids=np.tile(np.array([1, 2], np.int32), (n, 1)),
        top_logp=np.stack([half, half], axis=1),
    )
