"""bailingmoe2's forward pass in plain NumPy, to hold the engines' logits against.

It reads the GGUF that the engines read and follows llama.cpp's
`src/models/bailingmoe2.cpp` and `build_moe_ffn`, in float32, without a cache.
Quantized weights are dequantized first; the engines multiply q8_0 weights by
activations that they round to 8 bits as well, so those agree less closely.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
Tokens = NDArray[np.int64]


@dataclass(frozen=True)
class Reference:
    """One model: its metadata without the architecture prefix, its tensors by name."""

    metadata: dict[str, Any]
    tensors: dict[str, Array]

    @classmethod
    def read(cls, path: Path) -> Reference:
        from gguf import GGUFReader, dequantize

        reader = GGUFReader(path)
        prefix = f"{reader.fields['general.architecture'].contents()}."
        metadata = {
            name.removeprefix(prefix): field.contents()
            for name, field in reader.fields.items()
            if name.startswith(prefix)
        }
        tensors = {t.name: dequantize(t.data, t.tensor_type) for t in reader.tensors}
        return cls(metadata, tensors)

    def logits(self, tokens: Tokens) -> Array:
        """Logits [length, vocabulary] of one sequence of token ids [length]."""
        return np.asarray(self.states(tokens) @ self.tensors["output.weight"].T)

    def states(self, tokens: Tokens) -> Array:
        """The normed residual stream [length, width] at its end, which heads read."""
        return self._norm(self.stream(tokens, self.metadata["block_count"]), "output_norm")

    def stream(self, tokens: Tokens, layers: int) -> Array:
        """The residual stream [length, width] behind so many layers."""
        x = self.tensors["token_embd.weight"][tokens]
        for layer in range(layers):
            x = self.block(x, layer)
        return x

    def block(self, x: Array, layer: int) -> Array:
        """The residual stream [length, width] behind a layer."""
        x = self.attended(x, layer)
        return x + self.feed_forward(self.normed(x, layer), layer)

    def attended(self, x: Array, layer: int) -> Array:
        """The residual stream [length, width] after a layer's attention."""
        return x + self._attention(self._norm(x, f"blk.{layer}.attn_norm"), layer)

    def normed(self, x: Array, layer: int) -> Array:
        """What the layer's feed-forward network sees of it."""
        return self._norm(x, f"blk.{layer}.ffn_norm")

    def feed_forward(self, x: Array, layer: int) -> Array:
        """The dense network, or routed and shared experts."""
        if layer < self.metadata["leading_dense_block_count"]:
            return self._swiglu(x, layer)
        return self._routed(x, layer) + self._swiglu(x, layer, "_shexp")

    def _matrix(self, name: str, layer: int) -> Array:
        return self.tensors[f"blk.{layer}.{name}.weight"]

    def _norm(self, x: Array, name: str) -> Array:
        epsilon = self.metadata["attention.layer_norm_rms_epsilon"]
        scale = 1.0 / np.sqrt(np.mean(np.square(x), axis=-1, keepdims=True) + epsilon)
        return np.asarray(x * scale * self.tensors[f"{name}.weight"], dtype=np.float32)

    def _swiglu(self, x: Array, layer: int, suffix: str = "") -> Array:
        gate = x @ self._matrix(f"ffn_gate{suffix}", layer).T
        up = x @ self._matrix(f"ffn_up{suffix}", layer).T
        return np.asarray((silu(gate) * up) @ self._matrix(f"ffn_down{suffix}", layer).T)

    def _routed(self, x: Array, layer: int) -> Array:
        """The chosen experts' outputs; the bias chooses, the unbiased scores weigh."""
        used = self.metadata["expert_used_count"]
        scores = sigmoid(x @ self._matrix("ffn_gate_inp", layer).T)
        biased = scores + self.tensors[f"blk.{layer}.exp_probs_b.bias"]
        chosen = np.argsort(-biased, axis=-1, kind="stable")[:, :used]
        shares = np.take_along_axis(scores, chosen, axis=-1)
        shares = shares / np.maximum(shares.sum(axis=-1, keepdims=True), 6.103515625e-5)
        shares = shares * self.metadata["expert_weights_scale"]
        gate, up, down = (self._matrix(f"ffn_{n}_exps", layer) for n in ("gate", "up", "down"))
        out = np.zeros_like(x)
        for expert in range(len(gate)):
            rows, rank = np.nonzero(chosen == expert)
            part = x[rows]
            hidden = silu(part @ gate[expert].T) * (part @ up[expert].T)
            out[rows] += shares[rows, rank, None] * (hidden @ down[expert].T)
        return out

    def _attention(self, x: Array, layer: int) -> Array:
        length, width = len(x), self.metadata["attention.key_length"]
        heads = self.metadata["attention.head_count"]
        heads_kv = self.metadata["attention.head_count_kv"]
        qkv = (x @ self._matrix("attn_qkv", layer).T).reshape(length, -1, width)
        q, k, v = np.split(qkv, [heads, heads + heads_kv], axis=1)
        q = self._rotate(self._norm(q, f"blk.{layer}.attn_q_norm"))
        k = self._rotate(self._norm(k, f"blk.{layer}.attn_k_norm"))
        k, v = (np.repeat(a, heads // heads_kv, axis=1) for a in (k, v))
        q, k, v = (a.transpose(1, 0, 2) for a in (q, k, v))
        scores = q @ k.transpose(0, 2, 1) / np.sqrt(width)
        scores = np.where(np.tri(length, dtype=bool), scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        mixed = (weights @ v).transpose(1, 0, 2).reshape(length, -1)
        return np.asarray(mixed @ self._matrix("attn_output", layer).T, dtype=np.float32)

    def _rotate(self, x: Array) -> Array:
        """NEOX rotation of the first `rope.dimension_count` of x [length, heads, width]."""
        half = len(self._frequencies)
        angles = np.arange(len(x))[:, None, None] * self._frequencies
        cos, sin = np.cos(angles), np.sin(angles)
        a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
        turned = [a * cos - b * sin, b * cos + a * sin, rest]
        return np.concatenate(turned, axis=-1).astype(np.float32)

    @cached_property
    def _frequencies(self) -> NDArray[np.float64]:
        half = self.metadata["rope.dimension_count"] // 2
        return np.asarray(self.metadata["rope.freq_base"] ** (-np.arange(half) / half))


def sigmoid(x: Array) -> Array:
    return np.asarray(1.0 / (1.0 + np.exp(-x)), dtype=np.float32)


def silu(x: Array) -> Array:
    return x * sigmoid(x)
