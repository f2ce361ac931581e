"""Small sound files that the attacks start from."""

from __future__ import annotations

import numpy as np

from cook.formats.gguf import ValueType
from cook.formats.gguf_writer import encode, encode_header, tensor_of
from cook.formats.imatrix_file import Imatrix, ImatrixEntry


def gguf_header() -> bytes:
    metadata = {
        "general.architecture": encode("llama"),
        "general.alignment": encode(32),
        "split.count": encode(1, ValueType.UINT16),
        "tokenizer.ggml.model": encode("gpt2"),
        "tokenizer.ggml.pre": encode("default"),
        "tokenizer.ggml.tokens": encode(["a", "bc", "def", ""]),
        "tokenizer.ggml.scores": encode([0.5, 1.5]),
        "tokenizer.ggml.bos_token_id": encode(1),
        "flag": encode(True),
        "wide": encode(1, ValueType.UINT64),
    }
    tensors = [
        tensor_of("token_embd.weight", (4, 2), 0, bytes(32)),
        tensor_of("blk.0.x.weight", (256,), 158, bytes(60)),
        tensor_of("blk.1.y.weight", (2, 2, 2), 777, bytes(9)),
    ]
    return encode_header(metadata, tensors) + bytes(192)


def small_imatrix() -> Imatrix:
    ones = np.ones((3, 4), np.float32)
    return Imatrix(
        {
            "a.weight": ImatrixEntry(ones[:1], np.ones(1, np.float32)),
            "b_exps.weight": ImatrixEntry(ones, np.array([1, 0, 2], np.float32)),
        },
        ("text",),
        1,
        512,
        "gguf",
    )
