"""Random-weight llama GGUFs of any proportions: a cost is real where no text needs to be."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

BYTES = 256


@dataclass(frozen=True)
class Shape:
    """Proportions of a model; ``type`` of its matrices is F16 or Q8_0.

    With ``experts`` there are so many feed-forward networks of ``hidden`` each, of which two see a
    token.
    """

    vocabulary: int = 150_000
    width: int = 256
    layers: int = 2
    hidden: int = 512
    heads: int = 4
    kv_heads: int = 4
    context: int = 4096
    type: str = "F16"
    experts: int = 0


def write_random_model(path: Path, shape: Shape | None = None) -> Path:
    """A model of ``shape``, 150 MB at the defaults; a tensor's weights follow from its name."""
    import gguf
    from gguf.quants import quantize

    shape = shape or Shape()
    kind = gguf.GGMLQuantizationType[shape.type]
    head = shape.width // shape.heads
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.hidden)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_rope_dimension_count(head)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(shape.vocabulary)
    if shape.experts:
        writer.add_expert_count(shape.experts)
        writer.add_expert_used_count(2)
    _add_vocabulary(writer, shape.vocabulary)

    def weight(name: str, *rows_columns: int) -> None:
        rng = np.random.default_rng(crc32(name.encode()))
        data = rng.standard_normal(rows_columns, dtype=np.float32) / rows_columns[-1] ** 0.5
        writer.add_tensor(name, quantize(data, kind), raw_dtype=kind)

    def ones(name: str) -> None:
        writer.add_tensor(name, np.ones(shape.width, np.float32))

    weight("token_embd.weight", shape.vocabulary, shape.width)
    weight("output.weight", shape.vocabulary, shape.width)
    ones("output_norm.weight")
    for layer in range(shape.layers):
        block = f"blk.{layer}"
        ones(f"{block}.attn_norm.weight")
        ones(f"{block}.ffn_norm.weight")
        weight(f"{block}.attn_q.weight", shape.width, shape.width)
        weight(f"{block}.attn_k.weight", shape.kv_heads * head, shape.width)
        weight(f"{block}.attn_v.weight", shape.kv_heads * head, shape.width)
        weight(f"{block}.attn_output.weight", shape.width, shape.width)
        if shape.experts:
            router = np.random.default_rng(layer).standard_normal((shape.experts, shape.width))
            writer.add_tensor(f"{block}.ffn_gate_inp.weight", router.astype(np.float32))
        count, suffix = ((shape.experts,), "_exps") if shape.experts else ((), "")
        weight(f"{block}.ffn_gate{suffix}.weight", *count, shape.hidden, shape.width)
        weight(f"{block}.ffn_up{suffix}.weight", *count, shape.hidden, shape.width)
        weight(f"{block}.ffn_down{suffix}.weight", *count, shape.width, shape.hidden)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_vocabulary(writer: Any, size: int) -> None:
    """Three control tokens, the bytes, and made-up words that no text is made of."""
    import gguf

    writer.add_tokenizer_model("llama")
    tokens = [b"<unk>", b"<s>", b"</s>"] + [f"<0x{i:02X}>".encode() for i in range(BYTES)]
    types = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL]
    types += [gguf.TokenType.BYTE] * BYTES
    tokens += [f"t{i}".encode() for i in range(size - len(tokens))]
    types += [gguf.TokenType.NORMAL] * (size - len(types))
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * size)
    writer.add_token_types(types)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
