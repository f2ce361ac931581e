"""The least-squares start of a head drafts: before any training, and without PyTorch."""

from __future__ import annotations

import numpy as np

from cook.demo.unpack import SHIPPED
from cook.paths import demo_dir
from tools.demo.config import HEAD
from tools.demo.dense import tokens_of, vocabulary_of
from tools.demo.head import least_squares_start, projected
from tools.demo.reference import Reference

WINDOW, FITTED, BLOCK = 128, 10, f"blk.{HEAD.n_layer}"


def test_the_start_often_chooses_the_targets_token() -> None:
    path = demo_dir() / SHIPPED
    target = Reference.read(path)
    text = (demo_dir() / "data" / "calibration.txt").read_text(encoding="utf-8")[:8_000]
    count = (FITTED + 2) * WINDOW
    windows = tokens_of(text, vocabulary_of(path))[:count].reshape(-1, WINDOW)
    states = np.stack([target.states(window) for window in windows])
    start = least_squares_start(target, windows[:FITTED], states[:FITTED])
    assert {name: weight.shape for name, weight in start.items()} == HEAD.tensor_shapes()
    head = Reference(target.metadata, target.tensors | start)
    output = target.tensors["output.weight"] * start[f"{BLOCK}.nextn.shared_head_norm.weight"]
    agreed = []
    for tokens, rows in zip(windows[FITTED:], states[FITTED:], strict=True):
        given = projected(target, tokens, rows)
        x = head.block(given @ start[f"{BLOCK}.nextn.eh_proj.weight"].T, HEAD.n_layer)
        found, wanted = (x @ output.T).argmax(-1), target.logits(tokens)[1:].argmax(-1)
        agreed.append((found == wanted).mean())
    assert np.mean(agreed) > 0.2
