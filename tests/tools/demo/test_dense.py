"""The second family: experts become one network that gives about the same, and a rotation of the
residual stream changes no output."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from cook.recipe.load import load_recipe
from tools.demo.config import ModelConfig
from tools.demo.dense import (
    DEMO,
    DENSE_DRAFT,
    DENSE_TARGET,
    DensePair,
    Weights,
    dense_recipe,
    dense_weights,
    tokens_of,
    turned,
    vocabulary_of,
)
from tools.demo.export import END_OF_TEXT, Vocabulary, write_gguf
from tools.demo.reference import Reference

MIXTURE = ModelConfig(
    name="tiny",
    n_embd=64,
    n_layer=2,
    n_head=2,
    n_head_kv=1,
    n_ff_dense=64,
    n_ff_expert=32,
    n_ff_shared=32,
    n_expert=4,
    n_expert_used=3,
    n_vocab=96,
    head_dim=32,
    rope_dim=16,
)
DENSE = dataclasses.replace(MIXTURE, n_dense=2, n_ff_dense=160)


def written(path: Path, config: ModelConfig, weights: Weights) -> Reference:
    words = [*(f"t{n}" for n in range(config.n_vocab - 1)), END_OF_TEXT]
    write_gguf(path, config, weights, Vocabulary(words, ["t 0"]), "f16")
    return Reference.read(path)


@pytest.fixture
def mixture(tmp_path: Path) -> Reference:
    rng = np.random.default_rng(3)
    weights = {
        name: rng.standard_normal(shape, dtype=np.float32) * np.float32(shape[-1] ** -0.5)
        if len(shape) > 1
        else rng.uniform(0.5, 1.5, shape).astype(np.float32)
        for name, shape in MIXTURE.tensor_shapes().items()
    }
    return written(tmp_path / "mixture.gguf", MIXTURE, weights)


def windows(count: int, seed: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    return np.random.default_rng(seed).integers(0, MIXTURE.n_vocab, (count, 32))


def test_the_dense_network_is_fitted_to_the_mixture(mixture: Reference, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    weights = dense_weights(mixture, DENSE, windows(24, 5), rng)
    assert {n: w.shape for n, w in weights.items()} == DENSE.tensor_shapes()
    dense = written(tmp_path / "dense.gguf", DENSE, weights)
    text = windows(4, 6).ravel()
    right, found = mixture.logits(text), dense.logits(text)
    unfitted = np.square(right - right.mean(axis=0)).mean()
    assert np.square(right - found).mean() < 0.25 * unfitted
    assert (right.argmax(-1) == found.argmax(-1)).mean() > 20 / MIXTURE.n_vocab


def test_a_rotation_changes_every_matrix_and_no_output(mixture: Reference, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    weights = dense_weights(mixture, DENSE, windows(8, 5), rng)
    plain = written(tmp_path / "plain.gguf", DENSE, weights)
    rotated = turned(weights, DENSE, rng)
    other = written(tmp_path / "turned.gguf", DENSE, rotated)
    text = windows(2, 6).ravel()
    assert np.abs(plain.logits(text) - other.logits(text)).max() < 0.02
    for name, weight in weights.items():
        if weight.ndim > 1:
            assert not np.allclose(rotated[name], weight, atol=0.01), name
    again = turned(weights, DENSE, np.random.default_rng(9))
    assert not np.allclose(again["output.weight"], rotated["output.weight"])


def test_text_becomes_tokens_of_the_demo_s_vocabulary() -> None:
    vocabulary = vocabulary_of(DEMO / "draft-f16.gguf")
    tokens = tokens_of("def f(x):\n    return 'ä'\n", vocabulary)
    assert len(tokens) < 20
    assert len(vocabulary.tokens) == 2048 > tokens.max()


def test_every_type_fits_the_rows_of_the_pair() -> None:
    for config in (DENSE_TARGET, DENSE_DRAFT):
        for name, shape in config.tensor_shapes().items():
            assert "exps" not in name
            if len(shape) > 1:
                assert shape[-1] % 256 == 0, name


def test_its_recipe_is_one(tmp_path: Path) -> None:
    pair = DensePair(tmp_path / "target-q8_0.gguf", tmp_path / "draft-f16.gguf")
    recipe = load_recipe(dense_recipe(pair, tmp_path / "dense.yaml")).recipe
    assert recipe.name == "dense"
    assert str(recipe.model.source) == str(pair.draft)
