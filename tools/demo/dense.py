"""A second family: the demo pair without experts, for tests and benches that need another model.

    python -m tools.demo.dense DIR --seed 1

Each mixture of experts becomes one dense network. Its units are those of all experts and of the
shared one that contribute most; what they give is fitted, layer by layer, to what the mixture adds
to the residual stream on the demo's calibration text (ridge regression, in which later layers mend
what earlier ones miss). Then the residual stream is turned by a random rotation of the seed, which
changes no output and every weight: quantization meets another model for each seed
(arXiv 2404.00456). A minute on two cores, NumPy alone; nothing of it is committed.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tools.demo.config import DRAFT, TARGET, ModelConfig
from tools.demo.export import Vocabulary, write_gguf
from tools.demo.reference import Array, Reference, Tokens, silu

DEMO = Path(__file__).parents[2] / "cook" / "demo"
WINDOW = 256
WINDOWS = 64
LETTERS = 8
"""A token at most, over a whole text."""
PULL = 1e-3
"""Of the ridge, towards the mixture's own matrix: a share of the units' mean square."""
VERSION = 2
"""Raised when a seed gives another pair."""
DENSE_TARGET = dataclasses.replace(TARGET, name="cook-dense-target", n_dense=TARGET.n_layer)
DENSE_DRAFT = dataclasses.replace(
    DRAFT, name="cook-dense-draft", n_dense=DRAFT.n_layer, n_ff_dense=1024
)

RECIPE = """\
version: 1
name: dense
engine: bundled
model: {{source: {draft}}}
imatrix: {{corpus: demo://data/calibration.txt, context: 512, chunks: 40, args: {{threads: 1}}}}
quants:
  - {{name: Q8_0, type: Q8_0}}
  - {{name: Q4_K_M, type: Q4_K_M}}
  - {{name: Q2_K, type: Q2_K}}
  - name: HAND
    type: Q2_K
    rules: [{{attention: q6_K}}, {{output: q6_K}}, {{embeddings: q4_K}}, {{dense_ffn: q2_K}}]
score:
  target: {{source: {target}, args: {{threads: 1, flash_attention: false}}}}
  prompts: demo
  categories: [docstring, tests, prose, class, function-body, literal]
  limit: 48
  max_tokens: 96
  context: 2048
  sampling: {{temperature: 0}}
  draft: {{args: {{threads: 1}}}}
pick: {{maximize: end_to_end_speed}}
"""

Weights = dict[str, Array]


@dataclass(frozen=True)
class DensePair:
    """``target`` in q8_0 and ``draft`` in f16, of one vocabulary."""

    target: Path
    draft: Path


def dense_pair(folder: Path, seed: int = 1) -> DensePair:
    """The pair of ``seed``, made in ``folder`` unless it is there."""
    sources = (DEMO / "target-q8_0.gguf", DEMO / "draft-f16.gguf")
    digest = hashlib.sha256(f"{VERSION} {seed}".encode())
    for source in sources:
        digest.update(hashlib.sha256(source.read_bytes()).digest())
    place = folder / f"dense-{digest.hexdigest()[:12]}"
    pair = DensePair(place / "target-q8_0.gguf", place / "draft-f16.gguf")
    configs = (DENSE_TARGET, DENSE_DRAFT)
    for path, source, config in zip((pair.target, pair.draft), sources, configs, strict=True):
        if not path.is_file():
            place.mkdir(parents=True, exist_ok=True)
            _make(path, source, config, seed)
    return pair


def dense_recipe(pair: DensePair, path: Path) -> Path:
    """A recipe that makes, scores and searches drafts of ``pair``, written to ``path``."""
    path.write_text(RECIPE.format(draft=pair.draft, target=pair.target), encoding="utf-8")
    return path


def _make(path: Path, source: Path, config: ModelConfig, seed: int) -> None:
    model, vocabulary = Reference.read(source), vocabulary_of(source)
    rng = np.random.default_rng(seed)
    text = (DEMO / "data" / "calibration.txt").read_text(encoding="utf-8")
    tokens = tokens_of(text[: LETTERS * WINDOW * WINDOWS], vocabulary)[: WINDOW * WINDOWS]
    weights = turned(dense_weights(model, config, tokens.reshape(-1, WINDOW), rng), config, rng)
    kind = "q8_0" if "q8_0" in path.name else "f16"
    write_gguf(path, config, weights, vocabulary, kind)


def dense_weights(
    model: Reference, config: ModelConfig, windows: Tokens, rng: np.random.Generator
) -> Weights:
    """``model`` with the networks of ``config``, fitted on token ids [windows, length]."""
    found = {name: model.tensors[name] for name in config.tensor_shapes() if name in model.tensors}
    states = [model.tensors["token_embd.weight"][window] for window in windows]
    mixed = list(states)
    for layer in range(config.n_layer):
        # What the mixture gives, from its own stream, and what the dense layers so far see.
        mixed = [model.attended(x, layer) for x in mixed]
        states = [model.attended(x, layer) for x in states]
        mixed = [x + model.feed_forward(model.normed(x, layer), layer) for x in mixed]
        seen = np.concatenate([model.normed(x, layer) for x in states])
        wanted = np.concatenate(mixed) - np.concatenate(states)
        gate, up, down = _units(model, config, layer, seen, rng)
        hidden = _hidden(seen, gate, up)
        down = _fitted(hidden, wanted, down)
        names = (f"blk.{layer}.ffn_{part}.weight" for part in ("gate", "up", "down"))
        found.update(zip(names, (gate, up, down), strict=True))
        added = np.split(hidden @ down.T, len(states))
        states = [x + more for x, more in zip(states, added, strict=True)]
    return found


def turned(weights: Weights, config: ModelConfig, rng: np.random.Generator) -> Weights:
    """The same model with its residual stream rotated; norms become 1 and go into what follows."""
    rotation, triangle = np.linalg.qr(rng.standard_normal((config.n_embd, config.n_embd)))
    rotation *= np.sign(np.diag(triangle))
    reads = {"attn_qkv": "attn_norm", "ffn_gate": "ffn_norm", "ffn_up": "ffn_norm"}
    found = dict(weights)
    for layer in range(config.n_layer):
        block = f"blk.{layer}."
        for name, norm in reads.items():
            scaled = weights[f"{block}{name}.weight"] * weights[f"{block}{norm}.weight"]
            found[f"{block}{name}.weight"] = _single(scaled @ rotation)
        for name in ("attn_output", "ffn_down"):
            found[f"{block}{name}.weight"] = _single(rotation.T @ weights[f"{block}{name}.weight"])
        for norm in ("attn_norm", "ffn_norm"):
            found[f"{block}{norm}.weight"] = np.ones(config.n_embd, np.float32)
    found["token_embd.weight"] = _single(weights["token_embd.weight"] @ rotation)
    last = weights["output.weight"] * weights["output_norm.weight"]
    found["output.weight"] = _single(last @ rotation)
    found["output_norm.weight"] = np.ones(config.n_embd, np.float32)
    return found


def vocabulary_of(path: Path) -> Vocabulary:
    """Of a GGUF."""
    from gguf import GGUFReader

    fields: dict[str, Any] = GGUFReader(path).fields
    return Vocabulary(
        fields["tokenizer.ggml.tokens"].contents(), fields["tokenizer.ggml.merges"].contents()
    )


def tokens_of(text: str, vocabulary: Vocabulary) -> Tokens:
    """Token ids of ``text``, always the longest token that comes next: near enough for text to fit
    on, though not what the engines make of it."""
    letters = "".join(_letters()[byte] for byte in text.encode())
    ids = {token: n for n, token in enumerate(vocabulary.tokens)}
    longest = max(map(len, ids))
    found, at = [], 0
    while at < len(letters):
        length = next(n for n in range(longest, 0, -1) if letters[at : at + n] in ids)
        found.append(ids[letters[at : at + length]])
        at += length
    return np.array(found, np.int64)


def agreement(pair: DensePair, text: str, length: int = WINDOW, windows: int = 16) -> float:
    """Share of the tokens of ``text`` after which both find the same token the likeliest."""
    target, draft = Reference.read(pair.target), Reference.read(pair.draft)
    letters = LETTERS * length * windows
    tokens = tokens_of(text[:letters], vocabulary_of(pair.draft))[: length * windows]
    same = [
        target.logits(window).argmax(-1) == draft.logits(window).argmax(-1)
        for window in tokens.reshape(-1, length)
    ]
    return float(np.mean(same))


def _units(
    model: Reference, config: ModelConfig, layer: int, seen: Array, rng: np.random.Generator
) -> tuple[Array, Array, Array]:
    """(gate, up, down) of ``n_ff_dense`` units: the mixture's own that contribute most, and where
    it has too few, units of random weights that give nothing yet."""
    block = f"blk.{layer}.ffn_"
    if f"{block}gate_exps.weight" in model.tensors:
        parts = []
        share = model.metadata["expert_weights_scale"] / config.n_expert
        for name in ("gate", "up", "down"):
            routed = model.tensors[f"{block}{name}_exps.weight"]
            shared = model.tensors[f"{block}{name}_shexp.weight"]
            if name == "down":
                parts.append(np.concatenate([*(share * routed), shared], axis=1))
            else:
                parts.append(np.concatenate([*routed, shared]))
        gate, up, down = parts
    else:
        gate, up, down = (model.tensors[f"{block}{n}.weight"] for n in ("gate", "up", "down"))
    missing = config.n_ff_dense - len(gate)
    if missing > 0:
        scale = np.sqrt(np.square(gate).mean())
        more = scale * rng.standard_normal((2, missing, config.n_embd), dtype=np.float32)
        gate, up = np.concatenate([gate, more[0]]), np.concatenate([up, more[1]])
        return gate, up, np.pad(down, ((0, 0), (0, missing)))
    worth = np.square(_hidden(seen, gate, up)).mean(axis=0) * np.square(down).sum(axis=0)
    kept = np.sort(np.argsort(-worth, kind="stable")[: config.n_ff_dense])
    return gate[kept], up[kept], down[:, kept]


def _hidden(seen: Array, gate: Array, up: Array) -> Array:
    return np.asarray(silu(seen @ gate.T) * (seen @ up.T))


def _fitted(hidden: Array, wanted: Array, down: Array) -> Array:
    """The matrix that makes ``wanted`` of ``hidden``, pulled towards ``down``."""
    square = (hidden.T @ hidden).astype(np.float64)
    square += PULL * np.trace(square) / len(square) * np.eye(len(square))
    rest = hidden.T @ (wanted - hidden @ down.T)
    return _single(down + np.linalg.solve(square, rest.astype(np.float64)).T)


def _single(matrix: Any) -> Array:
    return np.asarray(matrix, np.float32)


@cache
def _letters() -> list[str]:
    """How GPT-2's vocabularies write each byte: printable ones as they are, others from 256 on."""
    plain = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte if byte in plain else next(others)) for byte in range(256)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    pair = dense_pair(arguments.folder, arguments.seed)
    held_out = (DEMO / "data" / "evaluation.txt").read_text(encoding="utf-8")
    files = {"target": str(pair.target), "draft": str(pair.draft)}
    print(json.dumps({**files, "same_likeliest_token": round(agreement(pair, held_out), 4)}))


if __name__ == "__main__":
    main()
