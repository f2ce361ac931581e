"""A head for the demo's target: a block that drafts from the target's hidden states.

text    documents of `tools.demo.train corpus` -> focus.bin, in the shipped vocabulary
rows    some of it, and what the target wrote of it (`tools.demo.generate`) -> the target's states
start   the target's last layer as the head, its input guessed linearly: least squares
train   the head on the target's distributions, up to three tokens ahead, its own state fed back
export  head-q8_0.gguf, of a form with the shipped target; `cook.demo.unpack` puts it in

The target's embedding and output stay as they are.

    python -m tools.demo.head rows --work DIR
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cook.demo.unpack import SHIPPED, unpack
from cook.engines.base import ModelArgs
from cook.engines.discover import discover
from cook.engines.worker.kept_workers import KeptWorkers
from cook.engines.worker.loading import model_load
from cook.formats.gguf import read_gguf
from cook.paths import demo_dir
from tools.demo import export, tokenizer
from tools.demo.config import HEAD
from tools.demo.dense import vocabulary_of
from tools.demo.reference import Reference

Floats = NDArray[np.float32]
LENGTH, TEXT_WINDOWS, DEPTH = 512, 128, 3
LAST, BLOCK = f"blk.{HEAD.n_layer - 1}.", f"blk.{HEAD.n_layer}."
_SHARE_OF_DEPTH = (1.0, 0.7, 0.5)
_AGREE = ("agree", "agree_2", "agree_3")
_RIDGE = 1e-3


def windows(work: Path) -> NDArray[np.int64]:
    """Tokens [window, LENGTH]: some of the text, then all that the target wrote."""
    text = np.fromfile(work / "focus.bin", np.uint16)[: TEXT_WINDOWS * LENGTH]
    own = [np.fromfile(path, np.uint16) for path in sorted(work.glob(f"own-{LENGTH}-*.bin"))]
    return np.concatenate([text, *own]).reshape(-1, LENGTH).astype(np.int64)


def capture_rows(work: Path) -> None:
    """``rows.npy`` [window, LENGTH, width] in f16, by the bundled engine."""
    engine, text, trunk = discover("bundled"), windows(work), work / "trunk.gguf"
    unpack(read_gguf(demo_dir() / SHIPPED), trunk, layers_in_front=0)
    shape = (*text.shape, HEAD.n_embd)
    rows = np.lib.format.open_memmap(work / "rows.npy", "w+", np.float16, shape)
    load = model_load(engine, trunk, ModelArgs(threads=1), LENGTH)
    with (
        KeptWorkers(work / "logs") as workers,
        workers.loaded(engine, load) as (worker, _),
    ):
        for index, window in enumerate(text.tolist()):
            rows[index] = worker.rows(window, [0])
    rows.flush()


def least_squares_start(
    target: Reference, text: NDArray[np.int64], rows: Floats
) -> dict[str, Floats]:
    """Weights of a head by GGUF name: the target's last layer behind the projection of (embedding,
    state before it) that comes nearest to what that layer reads.

    ``rows`` [window, length, width]: the target's states. Rows of the fit weigh as the inverse of
    their size, since the layer reads them normed.
    """
    width = rows.shape[-1]
    gram, right = np.zeros((2 * width, 2 * width)), np.zeros((2 * width, width))
    for tokens, states in zip(text, rows, strict=True):
        wanted = target.stream(tokens, HEAD.n_layer - 1)[1:]
        given = projected(target, tokens, states)
        weight = 1 / np.square(wanted).mean(-1, keepdims=True)
        gram += given.T @ (weight * given)
        right += given.T @ (weight * wanted)
    gram += _RIDGE * np.trace(gram) / len(gram) * np.eye(len(gram))
    body = {n.replace(LAST, BLOCK): w for n, w in target.tensors.items() if n.startswith(LAST)}
    return body | {
        f"{BLOCK}nextn.eh_proj.weight": np.linalg.solve(gram, right).T.astype(np.float32),
        f"{BLOCK}nextn.enorm.weight": np.ones(width, np.float32),
        f"{BLOCK}nextn.hnorm.weight": np.ones(width, np.float32),
        f"{BLOCK}nextn.shared_head_norm.weight": target.tensors["output_norm.weight"],
    }


def projected(target: Reference, tokens: NDArray[np.int64], states: Floats) -> Floats:
    """What a head's projection reads [length - 1, 2 x width] at the second token and behind, where
    its norms have no weights."""
    embedded = target.tensors["token_embd.weight"][tokens]
    return np.concatenate([_unit(embedded[1:]), _unit(states[:-1])], -1)


def _unit(x: Floats) -> Floats:
    return np.asarray(x / np.sqrt(np.square(x).mean(-1, keepdims=True) + HEAD.norm_eps))


def train(work: Path, steps: int, rate: float, held_out: int) -> None:
    """``start.npz`` -> ``head.npz``; a line a step in ``head.log.jsonl``. The last ``held_out``
    windows are of no step: how often the head agrees with the target there, before and after."""
    import torch
    import torch.nn.functional as F

    from tools.demo.model import NextN
    from tools.demo.optimizer import Optimizer, schedule
    from tools.demo.training import divergence

    torch.set_num_threads(1)
    target = Reference.read(demo_dir() / SHIPPED).tensors
    embedding, output = (
        torch.from_numpy(target[f"{name}.weight"].copy()) for name in ("token_embd", "output")
    )
    head = NextN(HEAD, torch.Generator())
    with np.load(work / "start.npz") as start, torch.no_grad():
        for name in HEAD.tensor_shapes():
            head.weights[name.replace(".", "__")].copy_(torch.from_numpy(start[name]))
    optimizer = Optimizer(head, 0.02 * rate, 0.002 * rate)
    text, rows = windows(work), np.load(work / "rows.npy", mmap_mode="r")

    def losses(chosen: NDArray[np.int64]) -> tuple[torch.Tensor, list[float]]:
        """Of some windows: the loss, and by depth how often the two choose the same token."""
        tokens = torch.from_numpy(text[chosen])
        states = torch.from_numpy(rows[chosen].astype(np.float32))
        wanted = F.linear(states, output)
        before = F.pad(states[:, :-1], (0, 0, 1, 0))
        loss, agreed = torch.zeros(()), []
        found = head(F.embedding(tokens, embedding), before, DEPTH)
        for k, (own, share) in enumerate(zip(found, _SHARE_OF_DEPTH, strict=True)):
            given, teacher = F.linear(own, output), wanted[:, k:]
            best = teacher.argmax(-1)
            hard = F.cross_entropy(given.flatten(0, 1), best.flatten())
            loss = loss + share * (divergence(teacher, given) + 0.5 * hard)
            agreed.append((given.argmax(-1) == best).float().mean().item())
        return loss, agreed

    def unseen() -> list[float]:
        with torch.no_grad():
            parts = np.arange(len(text) - held_out, len(text)).reshape(-1, 4)
            agreed = np.mean([losses(part)[1] for part in parts], axis=0)
        return [round(float(share), 4) for share in agreed]

    order = np.random.default_rng(1).permutation(len(text) - held_out)
    started = time.monotonic()
    with (work / "head.log.jsonl").open("a") as log:
        for step in range(steps):
            row: dict[str, object] = {"step": step}
            if step == 0:
                row["unseen"] = unseen()
            chosen = order[np.arange(4 * step, 4 * step + 4) % len(order)]
            loss, agreed = losses(np.sort(chosen))
            scale = schedule(step, steps, 10, 0.8)
            loss.backward()
            optimizer.step(scale)
            head.balance(0.001 * scale)
            row["loss"] = round(loss.item(), 4)
            row |= zip(_AGREE, (round(share, 4) for share in agreed), strict=True)
            row["seconds"] = round(time.monotonic() - started, 1)
            if step % 50 == 49 or step == steps - 1:
                np.savez(work / "head.npz", allow_pickle=False, **head.arrays())
            if step == steps - 1:
                row["unseen"] = unseen()
            print(json.dumps(row), file=log, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("stage", choices=("text", "rows", "start", "train", "export"))
    parser.add_argument("--work", type=Path, required=True, help="folder for what is made")
    parser.add_argument("--steps", type=int, default=160, help="of 4 windows each")
    parser.add_argument("--rate", type=float, default=0.4, help="factor on learning rates")
    parser.add_argument("--fit", type=int, default=32, help="windows of the least squares")
    parser.add_argument("--held-out", type=int, default=16, help="windows of no training step")
    parser.add_argument("--kind", choices=("f16", "q8_0"), default="q8_0")
    arguments = parser.parse_args()
    work: Path = arguments.work
    if arguments.stage == "text":
        documents = json.loads((work / "documents.json").read_text(encoding="utf-8"))["focus"]
        own = tokenizer.of_vocabulary(vocabulary_of(demo_dir() / SHIPPED))
        tokenizer.encoded(own, documents).tofile(work / "focus.bin")
    elif arguments.stage == "rows":
        capture_rows(work)
    elif arguments.stage == "start":
        text, rows = windows(work), np.load(work / "rows.npy", mmap_mode="r")
        chosen = np.linspace(0, len(text) - arguments.held_out - 1, arguments.fit, dtype=np.int64)
        target = Reference.read(demo_dir() / SHIPPED)
        start = least_squares_start(target, text[chosen], rows[chosen].astype(np.float32))
        np.savez(work / "start.npz", allow_pickle=False, **start)
    elif arguments.stage == "train":
        train(work, arguments.steps, arguments.rate, arguments.held_out)
    else:
        with np.load(work / "head.npz") as weights:
            path = work / f"head-{arguments.kind}.gguf"
            vocabulary = vocabulary_of(demo_dir() / SHIPPED)
            export.write_gguf(path, HEAD, dict(weights), vocabulary, arguments.kind)


if __name__ == "__main__":
    main()
