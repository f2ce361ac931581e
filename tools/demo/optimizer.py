"""Muon for the hidden matrices, Adam for the rest: few steps have to suffice."""

from __future__ import annotations

import torch
from torch import Tensor

from tools.demo.model import Blocks

# First steps of the "Polar Express" iteration (arXiv 2505.16932), for a first
# singular value of at most 1; three are enough for an update direction.
_POLAR = (
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
)


def orthogonalise(matrix: Tensor) -> Tensor:
    """The nearest semi-orthogonal matrix, roughly; batched over leading dimensions."""
    tall = matrix.shape[-2] > matrix.shape[-1]
    x = matrix.mT if tall else matrix
    x = x / (x.norm(dim=(-2, -1), keepdim=True) * 1.01 + 1e-7)
    for a, b, c in _POLAR:
        gram = x @ x.mT
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    return x.mT if tall else x


class Optimizer:
    """One object for a whole model; `step(scale)` with the schedule's factor."""

    def __init__(self, model: Blocks, muon_rate: float, adam_rate: float) -> None:
        self.muon_rate, self.adam_rate = muon_rate, adam_rate
        self.hidden: list[tuple[str, Tensor]] = []
        self.other: list[tuple[str, Tensor]] = []
        for name, weight in model.weights.items():
            if not weight.requires_grad:
                continue
            matrix = weight.ndim > 1 and name.startswith("blk") and "gate_inp" not in name
            (self.hidden if matrix else self.other).append((name, weight))
        self.momentum = {name: torch.zeros_like(w) for name, w in self.hidden}
        self.first = {name: torch.zeros_like(w) for name, w in self.other}
        self.second = {name: torch.zeros_like(w) for name, w in self.other}
        self.steps = 0

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self, scale: float) -> None:
        self.steps += 1
        for name, weight in self.hidden:
            if weight.grad is None:
                continue
            momentum = self.momentum[name].lerp_(weight.grad, 0.05)
            update = orthogonalise(weight.grad.lerp(momentum, 0.95))
            rate = self.muon_rate * scale * max(1.0, weight.shape[-2] / weight.shape[-1]) ** 0.5
            weight.mul_(1 - 0.02 * rate).add_(update, alpha=-rate)
            weight.grad = None
        for name, weight in self.other:
            if weight.grad is None:
                continue
            first = self.first[name].lerp_(weight.grad, 0.1)
            second = self.second[name].lerp_(weight.grad.square(), 0.05)
            update = (first / (1 - 0.9**self.steps)) / (
                (second / (1 - 0.95**self.steps)).sqrt() + 1e-10
            )
            rate = self.adam_rate * scale * (3.0 if "token_embd" in name else 1.0)
            weight.add_(update, alpha=-rate)
            weight.grad = None


def schedule(step: int, steps: int, warm_up: int, decay: float) -> float:
    """Linear warm-up, a plateau, and a linear descent over the last `decay` share."""
    rise = min(1.0, (step + 1) / max(1, warm_up))
    if decay <= 0:
        return rise
    fall = (steps - step) / (steps * decay)
    return max(0.03, min(rise, 1.0, fall))
