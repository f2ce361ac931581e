"""The training loops: the pair together on the corpus, then the draft alone."""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tools.demo.config import DRAFT, TARGET, ModelConfig
from tools.demo.model import BailingMoe2
from tools.demo.optimizer import Optimizer, schedule

_TOKENS = 4096
_STREAMS = 16


@dataclass(frozen=True)
class Options:
    """What the command line sets."""

    work: Path
    steps: int
    layers: int | None
    resume: Path | None
    skip: int
    decay: float
    rate: float
    long: int
    length: int
    name: str
    text: Path | None
    updates: int

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> Options:
        return cls(**{f.name: getattr(arguments, f.name) for f in dataclasses.fields(cls)})


def train_pair(options: Options, seed: int) -> None:
    """Cross-entropy for the target; for the draft the divergence from the target."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(seed)
    shallow = dataclasses.replace(TARGET, n_layer=options.layers or TARGET.n_layer)
    target, draft = BailingMoe2(shallow, generator), BailingMoe2(DRAFT, generator)
    if options.resume:
        state = torch.load(options.resume)
        load_grown(target, state["target"])
        draft.load_state_dict(_prefixed(state["draft"]))
    optimizers = (
        Optimizer(target, 0.02 * options.rate, 0.004 * options.rate),
        Optimizer(draft, 0.015 * options.rate, 0.003 * options.rate),
    )
    tokens = torch.from_numpy(
        np.fromfile(options.text or options.work / "train.bin", np.uint16).astype(np.int64)
    )
    log = (options.work / f"{options.name}.log.jsonl").open("a")
    started = time.monotonic()
    for step in range(options.steps):
        length = (
            2048 if options.long and step % options.long == options.long - 1 else options.length
        )
        inputs, labels = window(tokens, options.skip + step, length)
        scale = schedule(step, options.steps, 6, options.decay)
        logits, losses = [], []
        for given, wanted in zip(
            inputs.chunk(options.updates), labels.chunk(options.updates), strict=True
        ):
            guessed = target(given)
            loss = F.cross_entropy(guessed.flatten(0, 1), wanted.flatten())
            logits.append(guessed.detach())
            loss.backward()
            losses.append(loss.item())
            optimizers[0].step(scale)
            target.balance(0.01 * scale)
        teacher = torch.cat(logits)
        gap, agree = follow(draft, optimizers[1], inputs, teacher, scale)
        row = {
            "step": step,
            "loss": round(sum(losses) / len(losses), 4),
            "kl": round(gap, 4),
            "agree": round(agree, 4),
            "length": length,
            "scale": round(scale, 3),
            "seconds": round(time.monotonic() - started, 1),
            "load": [round(max(v.tolist()), 2) for v in target.loads.values()],
        }
        print(json.dumps(row), file=log, flush=True)
        if step % 40 == 39 or step == options.steps - 1:
            save(options.work / f"{options.name}.pt", target, draft)


def distill(options: Options, seed: int) -> None:
    """The draft alone, on text that the target wrote; the target's logits are kept."""
    torch.set_num_threads(1)
    if options.resume is None:
        raise SystemExit("distill needs --resume")
    generator = torch.Generator().manual_seed(seed)
    target, draft = BailingMoe2(TARGET, generator), BailingMoe2(DRAFT, generator)
    state = torch.load(options.resume)
    target.load_state_dict(_prefixed(state["target"]))
    draft.load_state_dict(_prefixed(state["draft"]))
    optimizer = Optimizer(draft, 0.015 * options.rate, 0.003 * options.rate)
    log = (options.work / f"{options.name}.log.jsonl").open("a")
    batches: list[tuple[str, Tensor]] = []
    kept: dict[str, Tensor] = {}
    started = time.monotonic()
    for step in range(options.steps):
        if step % 20 == 0:  # the target may still be writing
            batches = own_batches(options.work)
        name, inputs = batches[step % len(batches)]
        if name not in kept:
            with torch.no_grad():
                kept[name] = target(inputs).half()
        scale = schedule(step, options.steps, 5, options.decay)
        teacher = kept[name].float()
        gap, agree = follow(draft, optimizer, inputs, teacher, scale, hard=0.5)
        row = {
            "step": step,
            "kl": round(gap, 4),
            "agree": round(agree, 4),
            "text": name,
            "scale": round(scale, 3),
            "seconds": round(time.monotonic() - started, 1),
        }
        print(json.dumps(row), file=log, flush=True)
        if step % 50 == 49 or step == options.steps - 1:
            save(options.work / f"{options.name}.pt", target, draft)


def follow(
    draft: BailingMoe2,
    optimizer: Optimizer,
    inputs: Tensor,
    teacher: Tensor,
    scale: float,
    hard: float = 0.0,
) -> tuple[float, float]:
    """Four small steps of the draft towards the teacher's logits.

    Returns the mean divergence (nats) and the share of equal first choices.
    `hard` weighs the cross-entropy against the teacher's first choice alone.
    """
    gaps, agreed = [], []
    for given, wanted in zip(inputs.chunk(4), teacher.chunk(4), strict=True):
        guessed = draft(given)
        gap = divergence(wanted, guessed)
        best = wanted.argmax(-1)
        loss = gap + hard * F.cross_entropy(guessed.flatten(0, 1), best.flatten())
        loss.backward()
        optimizer.step(scale)
        draft.balance(0.01 * scale)
        gaps.append(gap.item())
        agreed.append((guessed.argmax(-1) == best).float().mean().item())
    return sum(gaps) / len(gaps), sum(agreed) / len(agreed)


def divergence(teacher: Tensor, student: Tensor) -> Tensor:
    """Mean over tokens of the Kullback-Leibler divergence, in nats."""
    wanted = F.log_softmax(teacher, -1)
    given = F.log_softmax(student, -1)
    return (wanted.exp() * (wanted - given)).sum(-1).mean()


def window(tokens: Tensor, batch: int, length: int) -> tuple[Tensor, Tensor]:
    """Inputs and labels [_TOKENS / length, length] of the batch-th batch.

    The text is read as sixteen streams, so that a batch holds many documents;
    one epoch passes whatever the lengths of the windows.
    """
    rows = _TOKENS // length
    share = _STREAMS // rows
    stream = (len(tokens) - 1) // _STREAMS
    offset = batch * (_TOKENS // _STREAMS) // length * length % (stream - length)
    starts = [(row * share + batch % share) * stream + offset for row in range(rows)]
    part = torch.stack([tokens[s : s + length + 1] for s in starts])
    return part[:, :-1], part[:, 1:]


def own_batches(work: Path) -> list[tuple[str, Tensor]]:
    """Full batches [rows, length] of what `tools.demo.generate` wrote, with their names."""
    found = []
    for path in sorted(work.glob("own-*-*.bin")):
        length = int(path.stem.split("-")[1])
        tokens = torch.from_numpy(np.fromfile(path, np.uint16).astype(np.int64))
        rows = tokens[: len(tokens) // length * length].view(-1, length)
        count = len(rows) // (_TOKENS // length)
        parts = rows.split(_TOKENS // length)[:count]
        found += [(f"{path.name}:{number}", part) for number, part in enumerate(parts)]
    return sorted(found, key=lambda pair: hashlib.sha256(pair[0].encode()).digest())


def load_grown(model: BailingMoe2, state: dict[str, Tensor]) -> None:
    """Loads `state`; layers that it does not have are copies of its last one, silent at first.

    Silent: what they add to the residual stream is zero, so that the deeper
    model starts with exactly the shallow one's loss.
    """
    config: ModelConfig = model.config
    last = max(int(n.split("__")[1]) for n in state if n.startswith("blk__"))
    grown = {}
    for name, weight in model.weights.items():
        layer = int(name.split("__")[1]) if name.startswith("blk__") else -1
        if layer <= last:
            grown[name] = state[name]
            continue
        copy = state[name.replace(f"blk__{layer}__", f"blk__{last}__")]
        closes = "attn_output" in name or "ffn_down" in name
        grown[name] = torch.zeros_like(weight) if closes else copy.clone()
    if config.n_layer <= last:
        raise ValueError("the checkpoint is deeper than the model")
    model.load_state_dict(_prefixed(grown))


def save(path: Path, target: BailingMoe2, draft: BailingMoe2) -> None:
    state = {
        "target": {n: w.detach() for n, w in target.weights.items()},
        "draft": {n: w.detach() for n, w in draft.weights.items()},
    }
    partial = path.with_suffix(".partial")
    torch.save(state, partial)
    partial.replace(path)


def _prefixed(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"weights.{name}": weight for name, weight in state.items()}
