"""A pair of the proportions that people use, of random weights, written by this script.

The target has 24 layers of 1,024 and a vocabulary of 122,880 tokens in Q8_0 (about 560 MB); the
drafts are its own first layers, which say part of what it says. A prompt is so many letters, each
of which is a token. Prompts of 256, 4,096 and 16,384 tokens.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.random_model import Shape, write_random_model
from cook.build.layout import Layout
from cook.build.prepare import prepare
from cook.recipe.load import load_recipe

TARGET = Shape(
    vocabulary=122_880,
    width=1024,
    layers=24,
    hidden=2816,
    heads=16,
    kv_heads=4,
    context=32_768,
    type="Q8_0",
    settling=0.8,
)
SMALL = replace(TARGET, vocabulary=8_192, width=256, hidden=704, heads=4, kv_heads=2)
"""The same in small, to try this script itself."""
DENSE = replace(
    SMALL, vocabulary=32_768, width=512, hidden=1408, heads=8, kv_heads=4, layers=12, type="F16"
)
"""A dense llama of 69 M parameters, 140 MB. One of 28 MB fits into a processor's last cache, which
a virtual machine shares with others: its tokens took 0.7 ms and half a minute later 1.15, in server
and worker alike, with nothing else running."""
SPARSE = replace(TARGET, hidden=256, experts=16)
"""A mixture of 16 experts of which 2 see a token: a verification reads the more of them, the wider
it is. As many bytes as the target's."""
DRAFT_LAYERS = (2, 4, 8)
DRAFTS = tuple(f"first-{layers}" for layers in DRAFT_LAYERS)
PROMPTS = {256: 24, 4096: 8, 16_384: 4}
"""Prompts by their length: a long one says as much of its prefill as several short ones."""

RECIPE = """\
version: 1
name: proportions
drafts: DRAFTS
score:
  target: {source: "TARGET", args: ARGS}
  prompts: "PROMPTS"
  max_tokens: TOKENS
  context: CONTEXT
  batch_width: WIDTH
  draft: {n_max: LENGTHS, args: ARGS}
pick: {maximize: decode_speed}
"""


@contextmanager
def pair_folder(shape: Shape = TARGET) -> Iterator[Path]:
    """A folder for the pair of ``shape``, gone after the block; the large pair's is the one that
    ``COOK_BENCH_PAIR`` names, and stays, where that is set."""
    with TemporaryDirectory(prefix="cook-pair-") as temporary:
        kept = os.environ.get("COOK_BENCH_PAIR") if shape is TARGET else None
        folder = Path(kept or temporary)
        folder.mkdir(parents=True, exist_ok=True)
        yield folder


def write_pair(folder: Path, shape: Shape = TARGET) -> None:
    """``target.gguf`` and a ``first-N.gguf`` of each number of layers, where they are missing."""
    wanted = {"target": shape.layers, **dict(zip(DRAFTS, DRAFT_LAYERS, strict=True))}
    for name, layers in wanted.items():
        path = folder / f"{name}.gguf"
        if not path.exists():
            write_random_model(path.with_suffix(".part"), shape, layers).rename(path)


def write_prompts(path: Path, tokens: int, count: int) -> Path:
    """``count`` prompts of about ``tokens`` letters, which differ in length by a tenth."""
    letters = random.Random(tokens)
    rows = []
    for index in range(count):
        half = ("pick", "report")[index % 2]
        length = round(tokens * (0.9 + 0.1 * (index + 1) / count)) - 2
        text = "".join(letters.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(length))
        rows.append({"id": f"r{index:02}", "category": "random", "prompt": text, "half": half})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def write_recipe(
    folder: Path,
    tokens: int,
    *,
    n_max: tuple[int, ...],
    shape: Shape = TARGET,
    prompts: int | None = None,
    max_tokens: int = 96,
    threads: int = 1,
    flash_attention: bool | None = None,
    batch_width: int = 1,
) -> Path:
    """A recipe over the pair in ``folder``, all written there, on prompts of ``tokens`` tokens."""
    args: dict[str, int] = {"threads": threads}
    if flash_attention is not None:
        args["flash_attention"] = flash_attention
    write_pair(folder, shape)
    count = prompts or PROMPTS[tokens]
    path = write_prompts(folder / f"prompts-{tokens}.jsonl", tokens, count)
    drafts = [{"name": name, "source": str(folder / f"{name}.gguf")} for name in DRAFTS]
    values = {
        "DRAFTS": json.dumps(drafts),
        "TARGET": str(folder / "target.gguf"),
        "PROMPTS": str(path),
        "TOKENS": max_tokens,
        "CONTEXT": -(-(tokens + max_tokens + 64) // 256) * 256,
        "WIDTH": batch_width,
        "LENGTHS": list(n_max),
        "ARGS": json.dumps(args),
    }
    text = RECIPE
    for name, value in values.items():
        text = text.replace(name, str(value), 1 if name in ("DRAFTS", "PROMPTS") else -1)
    recipe = folder / f"proportions-{tokens}.yaml"
    recipe.write_text(text, encoding="utf-8")
    return recipe


def proportions_layout(recipe: Path, engine: str) -> Layout:
    """What the ``recipe`` of :func:`write_recipe` asks of ``engine``."""
    return prepare(load_recipe(recipe), engines=[engine]).layouts[0]
