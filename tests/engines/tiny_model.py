"""A tiny random llama-architecture GGUF, enough for every tool to run on in milliseconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

VOCAB = 320
WORDS = 256


def write_tiny_model(
    path: Path,
    *,
    layers: int = 2,
    width: int = 256,
    hidden: int = 512,
    seed: int = 1,
    odd_hidden: bool = False,
    vocabulary: str = "a",
    template: str | None = None,
) -> Path:
    """Write a model of ``layers`` blocks; ``odd_hidden`` makes ffn_down rows no type divides."""
    import gguf

    rng = np.random.default_rng(seed)
    hidden = hidden + 32 if odd_hidden else hidden
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(2048)
    writer.add_embedding_length(width)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(hidden)
    writer.add_head_count(4)
    writer.add_head_count_kv(4)
    writer.add_rope_dimension_count(width // 4)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCAB)
    add_vocabulary(writer, vocabulary)
    if template is not None:
        writer.add_chat_template(template)

    def weight(name: str, rows: int, columns: int, scale: float = 0.05) -> None:
        data = rng.standard_normal((rows, columns)).astype(np.float32) * scale
        writer.add_tensor(name, data.astype(np.float16))

    weight("token_embd.weight", VOCAB, width, 0.5)
    writer.add_tensor("output_norm.weight", np.ones(width, np.float32))
    # Control tokens and the bytes above ASCII never win: ik answers 500 to text that is no UTF-8.
    output = (rng.standard_normal((VOCAB, width)) * 0.2).astype(np.float16)
    output[:3] = output[3 + 128 : 3 + 256] = 0
    writer.add_tensor("output.weight", output)
    for block in range(layers):
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{block}.{name}.weight", np.ones(width, np.float32))
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            weight(f"blk.{block}.{name}.weight", width, width)
        weight(f"blk.{block}.ffn_gate.weight", hidden, width)
        weight(f"blk.{block}.ffn_up.weight", hidden, width)
        weight(f"blk.{block}.ffn_down.weight", width, hidden)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_vocabulary(writer: Any, vocabulary: str = "a") -> None:
    """Three control tokens, the bytes, and words that no text is made of."""
    import gguf

    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    tokens = [b"<unk>", b"<s>", b"</s>"] + [f"<0x{i:02X}>".encode() for i in range(256)]
    tokens += [f"{vocabulary}{i}".encode() for i in range(VOCAB - len(tokens))]
    types = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL]
    types += [gguf.TokenType.BYTE] * 256
    types += [gguf.TokenType.NORMAL] * (VOCAB - len(types))
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * VOCAB)
    writer.add_token_types(types)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(True)
