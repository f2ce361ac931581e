"""Models far larger than any disk: true headers, and data that is a hole in the file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from cook.formats.gguf import ValueType, read_tensor_list
from cook.formats.gguf_writer import NewTensor, SplitLimit, encode, encode_header
from cook.formats.naming import shard_path

LISTS = Path(__file__).parent / "data"
LING_1T = LISTS / "ling-1t.tensors.tsv"
"""The tensors of inclusionAI/Ling-1T in BF16: 80 layers, 256 experts, 2 TB."""
VOCABULARY = 157_184
FACTS = {
    "block_count": 80,
    "context_length": 32_768,
    "embedding_length": 8192,
    "expert_count": 256,
    "expert_used_count": 8,
    "leading_dense_block_count": 4,
}


def write_giant(
    folder: Path, tensor_list: Path = LING_1T, facts: Mapping[str, int] = FACTS
) -> Path:
    """A split GGUF of the listed tensors, sparse; its first shard, with a whole vocabulary.

    OSError where the file system has no sparse files of that size.
    """
    tensors = [
        NewTensor(t.name, t.shape, t.type_id, t.size_bytes or 0, lambda: ())
        for t in read_tensor_list(tensor_list)
    ]
    metadata = {
        "general.architecture": encode("bailingmoe2"),
        "general.name": encode("giant"),
        **{f"bailingmoe2.{key}": encode(value) for key, value in facts.items()},
        "tokenizer.ggml.model": encode("gpt2"),
        "tokenizer.ggml.tokens": encode([f"token{i}" for i in range(VOCABULARY)]),
        "tokenizer.ggml.token_type": encode([1] * VOCABULARY, ValueType.INT32),
        "tokenizer.ggml.merges": encode([f"to ken{i}" for i in range(VOCABULARY)]),
    }
    parts = SplitLimit(45 << 30).shards(tensors)
    for number, part in enumerate(parts):
        split = {
            "split.no": encode(number, ValueType.UINT16),
            "split.count": encode(len(parts), ValueType.UINT16),
            "split.tensors.count": encode(len(tensors), ValueType.INT32),
        }
        path = shard_path(folder / "giant-BF16", number + 1, len(parts))
        path.write_bytes(encode_header(metadata | split if number == 0 else split, part))
        data = sum(t.size_bytes + -t.size_bytes % 32 for t in part)
        os.truncate(path, path.stat().st_size + data)
    return shard_path(folder / "giant-BF16", 1, len(parts))
