"""Models far larger than any disk: true headers, and data that is a hole in the file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from cook.formats.gguf import TensorInfo, ValueType, read_tensor_list
from cook.formats.gguf_writer import NewTensor, encode, encode_header
from cook.formats.naming import shard_path

LISTS = Path(__file__).parent / "data"
LING_1T = LISTS / "ling-1t.tensors.tsv"
"""The tensors of inclusionAI/Ling-1T in BF16: 80 layers, 256 experts, 2 TB."""

VOCABULARY = 157_184
SHARD_BYTES = 45 << 30
LING_FACTS: Mapping[str, int] = {
    "block_count": 80,
    "context_length": 32_768,
    "embedding_length": 8192,
    "expert_count": 256,
    "expert_used_count": 8,
    "leading_dense_block_count": 4,
}


def write_giant(
    folder: Path,
    tensor_list: Path = LING_1T,
    facts: Mapping[str, int] = LING_FACTS,
    shard_bytes: int = SHARD_BYTES,
) -> Path:
    """A split GGUF of the listed tensors, sparse; its first shard, with a whole vocabulary.

    OSError where the file system has no sparse files of that size.
    """
    tensors = read_tensor_list(tensor_list)
    parts = list(_parts(tensors, shard_bytes))
    for number, part in enumerate(parts):
        split = {
            "split.no": encode(number, ValueType.UINT16),
            "split.count": encode(len(parts), ValueType.UINT16),
            "split.tensors.count": encode(len(tensors), ValueType.INT32),
        }
        metadata = {**_metadata(facts), **split} if number == 0 else split
        path = shard_path(folder / "giant-BF16", number + 1, len(parts))
        path.write_bytes(encode_header(metadata, part))
        data = sum(t.size_bytes + -t.size_bytes % 32 for t in part)
        os.truncate(path, path.stat().st_size + data)
    return shard_path(folder / "giant-BF16", 1, len(parts))


def _parts(tensors: Sequence[TensorInfo], most: int) -> Iterator[list[NewTensor]]:
    """Tensors in order, as many a shard as fit: an empty first shard has no use here."""
    part: list[NewTensor] = []
    filled = 0
    for tensor in tensors:
        size = tensor.size_bytes
        assert size is not None, "listed by a type's name"
        if part and filled + size > most:
            yield part
            part, filled = [], 0
        part.append(NewTensor(tensor.name, tensor.shape, tensor.type_id, size, lambda: ()))
        filled += size
    yield part


def _metadata(facts: Mapping[str, int]) -> dict[str, bytes]:
    count = VOCABULARY
    return {
        "general.architecture": encode("bailingmoe2"),
        "general.name": encode("giant"),
        **{f"bailingmoe2.{key}": encode(value) for key, value in facts.items()},
        "tokenizer.ggml.model": encode("gpt2"),
        "tokenizer.ggml.tokens": encode([f"token{i}" for i in range(count)]),
        "tokenizer.ggml.token_type": encode([1] * count, ValueType.INT32),
        "tokenizer.ggml.merges": encode([f"to ken{i}" for i in range(count)]),
    }
