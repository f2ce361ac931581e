"""The PyTorch model is the reference's model, and growing it changes nothing at first."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from tools.demo.config import ModelConfig
from tools.demo.export import END_OF_TEXT, Vocabulary, write_gguf
from tools.demo.reference import Reference

torch = pytest.importorskip("torch", reason="the dependency group `train` is not installed")

TINY = ModelConfig(
    name="tiny",
    n_embd=256,
    n_layer=2,
    n_head=4,
    n_head_kv=2,
    n_ff_dense=256,
    n_ff_expert=256,
    n_ff_shared=256,
    n_expert=4,
    n_expert_used=2,
    n_vocab=300,
)


def random_model(config: ModelConfig) -> object:
    from tools.demo.model import BailingMoe2

    model = BailingMoe2(config, torch.Generator().manual_seed(1))
    for name, weight in model.weights.items():
        if "output" in name or "bias" in name:
            torch.nn.init.normal_(weight, std=0.05)
    return model


def test_torch_equals_numpy(tmp_path: Path) -> None:
    from tools.demo.model import BailingMoe2

    model = random_model(TINY)
    assert isinstance(model, BailingMoe2)
    names = [f"t{i}" for i in range(TINY.n_vocab - 1)]
    path = tmp_path / "tiny.gguf"
    write_gguf(path, TINY, model.arrays(), Vocabulary([*names, END_OF_TEXT], ["t 0"]), "f16")
    tokens = np.arange(40, dtype=np.int64) * 7 % TINY.n_vocab
    with torch.no_grad():
        found = model(torch.from_numpy(tokens)[None])[0].numpy()
    assert np.abs(found - Reference.read(path).logits(tokens)).max() < 0.02


def test_grown_layers_are_silent_at_first() -> None:
    from tools.demo.model import BailingMoe2
    from tools.demo.training import load_grown

    shallow = random_model(TINY)
    assert isinstance(shallow, BailingMoe2)
    deep_config = dataclasses.replace(TINY, n_layer=4)
    deep = BailingMoe2(deep_config, torch.Generator().manual_seed(2))
    load_grown(deep, {name: w.detach() for name, w in shallow.weights.items()})
    tokens = torch.arange(30)[None]
    with torch.no_grad():
        assert torch.allclose(deep(tokens), shallow(tokens), atol=1e-5)
