"""Tensor lists, recipes and a reading of scripts that the recipe tests share."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from cook.formats.gguf import TensorInfo, read_tensor_list
from cook.formats.quant_types import by_name
from cook.recipe.load import LoadedRecipe, parse_recipe
from cook.recipe.rules import ModelTensors, Quant, Resolution

DATA = Path(__file__).parents[1] / "data"
Tensors = tuple[TensorInfo, ...]
HEAD = "version: 1\nname: x\nmodel: {source: demo://draft-f16.gguf}\n"
"""The parts that every recipe needs, as lines 1 to 3."""


def resolve(tensors: Tensors, quant: Quant, flavour: str, architecture: str = "") -> Resolution:
    return ModelTensors(tensors, architecture).resolve(quant, flavour)


@pytest.fixture(scope="session")
def ling() -> Tensors:
    """Every tensor of Ling-flash-2.0, 26 layers of it with 256 experts."""
    return read_tensor_list(DATA / "ling-flash-2.0.tensors.tsv")


@pytest.fixture(scope="session")
def tensors() -> Callable[..., Tensors]:
    """``tensors({"name": (ne0, ne1, ...)})`` makes a BF16 tensor list."""

    def make(shapes: dict[str, tuple[int, ...]], type_name: str = "bf16") -> Tensors:
        return tuple(TensorInfo(n, s, by_name(type_name).id) for n, s in shapes.items())

    return make


@pytest.fixture(scope="session")
def small(tensors: Callable[..., Tensors]) -> Tensors:
    """Two layers, one dense and one with experts; rows of 512, one of 320."""
    return tensors(
        {
            "token_embd.weight": (512, 1024),
            "output_norm.weight": (512,),
            "output.weight": (512, 1024),
            "blk.0.attn_q.weight": (512, 512),
            "blk.0.attn_k.weight": (512, 128),
            "blk.0.attn_output.weight": (512, 512),
            "blk.0.ffn_up.weight": (512, 320),
            "blk.0.ffn_down.weight": (320, 512),
            "blk.1.attn_q.weight": (512, 512),
            "blk.1.attn_k.weight": (512, 128),
            "blk.1.attn_output.weight": (512, 512),
            "blk.1.ffn_gate_inp.weight": (512, 8),
            "blk.1.ffn_up_exps.weight": (512, 256, 8),
            "blk.1.ffn_down_exps.weight": (256, 512, 8),
        }
    )


@pytest.fixture(scope="session")
def recipe() -> Callable[[str], LoadedRecipe]:
    """``recipe("quants: ...")`` is the recipe of that below :data:`HEAD`."""
    return lambda body: parse_recipe(HEAD + body, Path("r.yaml"))


@pytest.fixture(scope="session")
def script_types() -> Callable[[Path, Tensors], dict[str, str]]:
    """The types that a make-quant script gives, read as ik reads its --custom-q.

    A reading of its own, so that cook's is not compared with itself.
    """

    def read(script: Path, tensors: Tensors) -> dict[str, str]:
        custom = script.read_text().split('custom="', 1)[1].split('"', 1)[0]
        lines = (line for line in custom.splitlines() if line and not line.startswith("#"))
        rules = [line.split("=", 1) for line in lines]
        types = {}
        for tensor in tensors:
            if len(tensor.shape) < 2 or "ffn_gate_inp" in tensor.name:
                types[tensor.name] = tensor.type_name
            else:
                types[tensor.name] = next(t for p, t in rules if re.search(p, tensor.name))
        return types

    return read
