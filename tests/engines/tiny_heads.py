"""A tiny random glm4moe with a multi-token-prediction head, whole and in its parts.

The trunk has two layers, of which the second does little; the head is a copy of the first that
reads the token's embedding, and a little of the hidden state. So it often agrees with the target.
Both engines load it: ik wants the biases of attention, mainline takes them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from tests.engines.tiny_model import VOCAB, add_vocabulary

WIDTH, HEADS, KV_HEADS, HEAD, FFN, EXPERTS = 256, 4, 2, 64, 256, 8
Arrays = dict[str, npt.NDArray[np.float32]]


def write_tiny_heads(folder: Path) -> Path:
    """`whole.gguf`, `trunk.gguf`, and heads alone: `head.gguf`, `head-q8_0.gguf`, and broken ones,
    `zeroed.gguf` and `foreign.gguf`, with the block of another model."""
    rng = np.random.default_rng(7)
    embeddings = rng.standard_normal((VOCAB, WIDTH)).astype(np.float32)
    embeddings /= np.sqrt((embeddings**2).mean(1, keepdims=True))
    output = (rng.standard_normal((VOCAB, WIDTH)) * 3 / WIDTH**0.5).astype(np.float32)
    # Control tokens and the bytes above ASCII never win: ik answers 500 to text that is no UTF-8.
    output[:3] = output[3 + 128 : 3 + 256] = 0
    top = {
        "token_embd.weight": embeddings,
        "output_norm.weight": np.ones(WIDTH, np.float32),
        "output.weight": output,
    }
    first, second = _block(rng, 1.0), _block(rng, 0.2)
    mix = (rng.standard_normal((WIDTH, WIDTH)) * 0.1 / WIDTH**0.5).astype(np.float32)
    ones = np.ones(WIDTH, np.float32)
    head = first | {
        "nextn.eh_proj.weight": np.concatenate([np.eye(WIDTH, dtype=np.float32), mix], 1),
        "nextn.enorm.weight": ones,
        "nextn.hnorm.weight": ones,
        "nextn.shared_head_norm.weight": ones,
    }
    trunk = {0: first, 1: second}
    _write(folder / "whole.gguf", top, {**trunk, 2: head})
    _write(folder / "trunk.gguf", top, trunk)
    _write(folder / "head.gguf", top, {2: head})
    _write(folder / "head-q8_0.gguf", top, {2: head}, "Q8_0")
    _write(
        folder / "zeroed.gguf",
        top,
        {2: head | {"nextn.eh_proj.weight": np.zeros((WIDTH, 2 * WIDTH), np.float32)}},
    )
    foreign = _block(np.random.default_rng(8), 1.0)
    _write(folder / "foreign.gguf", top, {2: head | foreign})
    return folder


def _block(rng: np.random.Generator, strength: float) -> Arrays:
    def matrix(*shape: int, gain: float = 1.0) -> npt.NDArray[np.float32]:
        return np.float32(gain / shape[-1] ** 0.5) * rng.standard_normal(shape, dtype=np.float32)

    queries, keys = HEADS * HEAD, KV_HEADS * HEAD
    return {
        "attn_norm.weight": np.ones(WIDTH, np.float32),
        "post_attention_norm.weight": np.ones(WIDTH, np.float32),
        "attn_q.weight": matrix(queries, WIDTH, gain=2.5),
        "attn_k.weight": matrix(keys, WIDTH, gain=2.5),
        "attn_v.weight": matrix(keys, WIDTH),
        "attn_q.bias": np.zeros(queries, np.float32),
        "attn_k.bias": np.zeros(keys, np.float32),
        "attn_v.bias": np.zeros(keys, np.float32),
        "attn_output.weight": matrix(WIDTH, queries, gain=1.5 * strength),
        "attn_q_norm.weight": np.ones(HEAD, np.float32),
        "attn_k_norm.weight": np.ones(HEAD, np.float32),
        "ffn_gate_inp.weight": matrix(EXPERTS, WIDTH, gain=2.0),
        "exp_probs_b.bias": np.zeros(EXPERTS, np.float32),
        "ffn_gate_exps.weight": matrix(EXPERTS, FFN, WIDTH),
        "ffn_up_exps.weight": matrix(EXPERTS, FFN, WIDTH),
        "ffn_down_exps.weight": matrix(EXPERTS, WIDTH, FFN, gain=1.5 * strength),
        "ffn_gate_shexp.weight": matrix(FFN, WIDTH),
        "ffn_up_shexp.weight": matrix(FFN, WIDTH),
        "ffn_down_shexp.weight": matrix(WIDTH, FFN, gain=1.5 * strength),
    }


def _write(path: Path, top: Arrays, blocks: dict[int, Arrays], of_blocks: str = "F16") -> None:
    import gguf
    from gguf.quants import quantize

    writer = gguf.GGUFWriter(path, "glm4moe")
    writer.add_block_count(3)
    writer.add_nextn_predict_layers(1)
    writer.add_context_length(2048)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD)
    writer.add_value_length(HEAD)
    writer.add_rope_dimension_count(HEAD // 2)
    writer.add_rope_freq_base(10_000.0)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_expert_count(EXPERTS)
    writer.add_expert_used_count(2)
    writer.add_expert_shared_count(1)
    writer.add_expert_feed_forward_length(FFN)
    writer.add_leading_dense_block_count(0)
    writer.add_expert_weights_scale(1.0)
    writer.add_expert_weights_norm(True)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    writer.add_vocab_size(VOCAB)
    add_vocabulary(writer)
    named = {f"blk.{n}.{name}": a for n, block in blocks.items() for name, a in block.items()}
    for name, array in (top | named).items():
        if array.ndim == 1 or "norm" in name or "ffn_gate_inp" in name:
            writer.add_tensor(name, array)
        else:
            kind = gguf.GGMLQuantizationType[of_blocks if name in named else "F16"]
            writer.add_tensor(name, quantize(array, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
