"""A random-weight llama GGUF with a vocabulary of real size, for the cost of reductions."""

from __future__ import annotations

from pathlib import Path

import numpy as np


def write_random_model(path: Path, *, vocabulary: int = 150_000, width: int = 256) -> Path:
    """Two layers of ``width``, F16, ``vocabulary`` tokens; 150 MB at the defaults."""
    import gguf

    rng = np.random.default_rng(1)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(4096)
    writer.add_embedding_length(width)
    writer.add_block_count(2)
    writer.add_feed_forward_length(2 * width)
    writer.add_head_count(4)
    writer.add_head_count_kv(4)
    writer.add_rope_dimension_count(width // 4)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(vocabulary)
    writer.add_tokenizer_model("llama")
    tokens = [b"<unk>", b"<s>", b"</s>"] + [f"<0x{i:02X}>".encode() for i in range(256)]
    types = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL]
    types += [gguf.TokenType.BYTE] * 256
    tokens += [f"t{i}".encode() for i in range(vocabulary - len(tokens))]
    types += [gguf.TokenType.NORMAL] * (vocabulary - len(types))
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * vocabulary)
    writer.add_token_types(types)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)

    def weight(name: str, rows: int, columns: int) -> None:
        data = rng.standard_normal((rows, columns), dtype=np.float32) * 0.05
        writer.add_tensor(name, data.astype(np.float16))

    weight("token_embd.weight", vocabulary, width)
    weight("output.weight", vocabulary, width)
    writer.add_tensor("output_norm.weight", np.ones(width, np.float32))
    for layer in range(2):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            weight(f"blk.{layer}.{name}.weight", width, width)
        weight(f"blk.{layer}.ffn_gate.weight", 2 * width, width)
        weight(f"blk.{layer}.ffn_up.weight", 2 * width, width)
        weight(f"blk.{layer}.ffn_down.weight", width, 2 * width)
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", np.ones(width, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
