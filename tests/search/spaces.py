"""A made-up model and what its mixes do, by a law that tests know."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from cook.formats.gguf import TensorInfo
from cook.formats.quant_types import by_name
from cook.search.evaluate import Replies
from cook.search.sensitivity import A_BIT
from cook.search.space import Mix, Space, Tie

TYPES = ("q2_K", "q4_K", "q8_0")
PROMPTS = tuple(f"p{i}" for i in range(24))


def tensor(name: str, *shape: int) -> TensorInfo:
    f16 = by_name("f16")
    return TensorInfo(name, shape, f16.id, 0)


def space(layers: int = 2) -> Space:
    """Attention and experts of ``layers`` layers, and an output."""
    ties = [
        Tie(group, role, layer, (tensor(f"blk.{layer}.{role}.weight", *shape),))
        for layer in range(layers)
        for group, role, shape in (
            ("attention", "attn_qkv", (256, 512)),
            ("attention", "attn_output", (256, 256)),
            ("routed_experts", "ffn_down_exps", (256, 256, 8)),
        )
    ]
    ties.append(Tie("output", "output", None, (tensor("output.weight", 256, 1024),)))
    return Space(tuple(ties), (TYPES,) * len(ties), 4096)


@dataclass(eq=False)
class Law:
    """An evaluator: the damage of each tie adds up, and takes acceptance with it.

    ``weight`` [tie] of an error; ``asked``: every mix in order. Replies are the same whenever they
    are asked for.
    """

    space: Space
    weight: Sequence[float]
    asked: list[Mix] = field(default_factory=list)
    noise: float = 0.0

    def damage(self, mix: Mix) -> float:
        bits = [by_name(t).bpw for t in mix]
        return math.fsum(w * math.exp(-A_BIT * b) for w, b in zip(self.weight, bits, strict=True))

    def __call__(self, mix: Mix, prompts: tuple[str, ...]) -> Replies:
        self.asked.append(mix)
        damage = self.damage(mix)
        rng = np.random.default_rng([zlib.crc32(" ".join(mix).encode()), 7])
        noise = dict(zip(PROMPTS, self.noise * rng.normal(size=len(PROMPTS)), strict=True))
        tokens = np.full(len(prompts), 1000.0)
        rate = np.array([min(0.95, 0.8 * np.exp(-damage) + noise[p]) for p in prompts])
        return Replies(
            prompts,
            ("prose",) * len(prompts),
            tokens,
            tokens * 1.2,
            np.round(tokens * rate),
            tokens * (1 + damage),
            tokens * damage,
        )


def elements(one: Space) -> int:
    return sum(math.prod(t.shape) for tie in one.ties for t in tie.tensors)
