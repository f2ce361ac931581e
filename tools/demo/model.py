"""The demo models in PyTorch, for training. Parameters carry their GGUF names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tools.demo.config import ModelConfig

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Blocks(nn.Module):  # type: ignore[misc]  # torch is an extra: untyped here
    """What a model and a head are made of, for whole windows and without a cache."""

    def __init__(self, config: ModelConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.config = config
        self.weights = nn.ParameterDict()
        for name, shape in config.tensor_shapes().items():
            weight = _initial(name, shape, config, generator)
            trained = not name.endswith("exp_probs_b.bias")
            self.weights[_key(name)] = nn.Parameter(weight, requires_grad=trained)
        self.loads: dict[int, Tensor] = {}

    def weight(self, name: str, layer: int | None = None) -> Tensor:
        full = name if layer is None else f"blk.{layer}.{name}"
        return self.weights[_key(full if full.endswith(".bias") else f"{full}.weight")]

    def _norm(self, x: Tensor, name: str, layer: int | None = None) -> Tensor:
        weight = self.weight(name, layer)
        return F.rms_norm(x, (weight.shape[0],), weight, self.config.norm_eps)

    def _swiglu(self, x: Tensor, suffix: str, layer: int) -> Tensor:
        gate = F.linear(x, self.weight(f"ffn_gate{suffix}", layer))
        up = F.linear(x, self.weight(f"ffn_up{suffix}", layer))
        return F.linear(F.silu(gate) * up, self.weight(f"ffn_down{suffix}", layer))

    def _attention(self, x: Tensor, cos: Tensor, sin: Tensor, layer: int) -> Tensor:
        q, k, v = self._projected(x, cos, sin, layer)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return F.linear(out.transpose(1, 2).flatten(2), self.weight("attn_output", layer))

    def _projected(
        self, x: Tensor, cos: Tensor, sin: Tensor, layer: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [batch, head, length, head_dim] of x, rotated."""
        c = self.config
        batch, length, _ = x.shape
        qkv = F.linear(x, self.weight("attn_qkv", layer))
        q, k, v = qkv.split([c.q_rows, c.kv_rows, c.kv_rows], dim=-1)
        q = self._norm(q.view(batch, length, c.n_head, c.head_dim), "attn_q_norm", layer)
        k = self._norm(k.view(batch, length, c.n_head_kv, c.head_dim), "attn_k_norm", layer)
        v = v.view(batch, length, c.n_head_kv, c.head_dim).transpose(1, 2)
        q = rotate(q, cos, sin).transpose(1, 2)
        k = rotate(k, cos, sin).transpose(1, 2)
        groups = c.n_head // c.n_head_kv
        return q, k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)

    def _experts(self, x: Tensor, layer: int) -> Tensor:
        """Routed plus shared experts; each expert sees its own tokens in one product."""
        c = self.config
        flat = x.reshape(-1, c.n_embd)
        scores = torch.sigmoid(F.linear(flat, self.weight("ffn_gate_inp", layer)))
        bias = self.weight("exp_probs_b.bias", layer)
        chosen = torch.topk(scores + bias, c.n_expert_used, dim=-1).indices
        shares = scores.gather(1, chosen)
        shares = shares / shares.sum(-1, keepdim=True).clamp_min(6.103515625e-5)
        shares = shares * c.weights_scale
        order = chosen.reshape(-1).argsort()
        counts = torch.bincount(chosen.reshape(-1), minlength=c.n_expert)
        self.loads[layer] = counts.float() / counts.sum()
        rows = order // c.n_expert_used
        gate, up, down = (self.weight(f"ffn_{n}_exps", layer) for n in ("gate", "up", "down"))
        parts = []
        for e, part in enumerate(flat[rows].split(counts.tolist())):
            hidden = F.silu(F.linear(part, gate[e])) * F.linear(part, up[e])
            parts.append(F.linear(hidden, down[e]))
        routed = torch.cat(parts) * shares.reshape(-1)[order].unsqueeze(-1)
        out = torch.zeros_like(flat).index_add(0, rows, routed)
        return out.view_as(x) + self._swiglu(x, "_shexp", layer)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def balance(self, rate: float) -> None:
        """Nudges the selection biases towards equal load (no auxiliary loss)."""
        for layer, load in self.loads.items():
            bias = self.weight("exp_probs_b.bias", layer)
            bias += rate * torch.sign(1.0 / self.config.n_expert - load)
            bias -= bias.mean()

    def arrays(self) -> dict[str, NDArray[np.float32]]:
        """The weights by GGUF name, for `write_gguf`."""
        return {
            name: self.weights[_key(name)].detach().numpy() for name in self.config.tensor_shapes()
        }


class BailingMoe2(Blocks):
    """Logits of a bailingmoe2 model."""

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits [batch, length, vocabulary] of int64 tokens [batch, length]."""
        c = self.config
        x = F.embedding(tokens, self.weight("token_embd"))
        cos, sin = rope_table(tokens.shape[1], c)
        for i in range(c.n_layer):
            x = x + self._attention(self._norm(x, "attn_norm", i), cos, sin, i)
            h = self._norm(x, "ffn_norm", i)
            x = x + (self._swiglu(h, "", i) if i < c.n_dense else self._experts(h, i))
        return F.linear(self._norm(x, "output_norm"), self.weight("output"))


class NextN(Blocks):
    """A head: one block over a token and the target's state before it, then over its own."""

    def forward(self, embedded: Tensor, states: Tensor, depth: int) -> list[Tensor]:
        """The states [batch, length - k, width] of its k-th token beyond the first, k < depth.

        ``embedded`` [batch, length, width]: of each token. ``states``: the target's after the token
        before. A draft that begins at position i reads the target's states up to i, then its own
        with the text's tokens: all drafts side by side, as a server makes them where they are right
        (``llama_model_glm4_moe::graph_mtp``).
        """
        layer, length = self.config.n_layer, embedded.shape[1]
        cos, sin = rope_table(length, self.config)
        keys: list[Tensor] = []
        values: list[Tensor] = []
        found = []
        for k in range(depth):
            own = self._norm(states[:, : length - k], "nextn.hnorm", layer)
            both = torch.cat([self._norm(embedded[:, k:], "nextn.enorm", layer), own], -1)
            x = F.linear(both, self.weight("nextn.eh_proj", layer))
            normed = self._norm(x, "attn_norm", layer)
            query, key, value = self._projected(normed, cos[k:], sin[k:], layer)
            keys, values = [*keys, key], [*values, value]
            x = x + F.linear(_branched(query, keys, values), self.weight("attn_output", layer))
            x = x + self._experts(self._norm(x, "ffn_norm", layer), layer)
            states = self._norm(x, "nextn.shared_head_norm", layer)
            found.append(states)
        return found


def _branched(query: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
    """Attention of each draft's last token over the text up to its begin, and over the draft."""
    length = query.shape[2]
    keys, values = ([part[:, :, :length] for part in parts] for parts in (keys, values))
    later = torch.ones(length, length, dtype=torch.bool).triu(1)
    scores = (query @ keys[0].mT).masked_fill(later, -torch.inf)
    own = [(query * key).sum(-1, keepdim=True) for key in keys[1:]]
    shares = (torch.cat([scores, *own], -1) * query.shape[-1] ** -0.5).softmax(-1)
    out = shares[..., :length] @ values[0]
    for k, value in enumerate(values[1:], length):
        out = out + shares[..., k : k + 1] * value
    return out.transpose(1, 2).flatten(2)


def rope_table(length: int, config: ModelConfig) -> tuple[Tensor, Tensor]:
    """Cosines and sines [length, 1, rope_dim / 2] of the NEOX rotation."""
    half = config.rope_dim // 2
    frequencies = config.rope_theta ** (-torch.arange(half, dtype=torch.float32) / half)
    angles = torch.arange(length, dtype=torch.float32)[:, None] * frequencies
    return angles.cos()[:, None], angles.sin()[:, None]


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates the first `rope_dim` of each head of x [batch, length, heads, head_dim]."""
    half = cos.shape[-1]
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], dim=-1)


def _key(name: str) -> str:
    return name.replace(".", "__")


def _initial(
    name: str, shape: tuple[int, ...], config: ModelConfig, generator: torch.Generator
) -> Tensor:
    if len(shape) == 1:
        return torch.zeros(shape) if name.endswith(".bias") else torch.ones(shape)
    if name == "token_embd.weight":
        return torch.randn(shape, generator=generator) * 0.5
    if name == "output.weight":
        return torch.zeros(shape)
    scale = shape[-1] ** -0.5
    if name.endswith(("attn_output.weight", "ffn_down.weight", "_exps.weight", "_shexp.weight")):
        closes = "output" in name or "down" in name
        scale *= 0.3 / config.n_layer**0.5 if closes else 1.0
    return torch.randn(shape, generator=generator) * scale
