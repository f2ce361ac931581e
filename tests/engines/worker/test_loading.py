"""A placement in the worker's words; what it cannot do is refused with the way that can."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cook.engines.base import ModelArgs
from cook.engines.worker.loading import model_load
from cook.errors import PrerequisiteError

MODEL = Path("/m/a.gguf")
ENGINE: Any = SimpleNamespace(environment=lambda: {"LLAMA_ARG_REPACK": "0"})


def test_threads_are_the_recipe_s_where_it_names_any() -> None:
    assert model_load(ENGINE, MODEL, ModelArgs(), 512, 7).threads == 7
    assert model_load(ENGINE, MODEL, ModelArgs(threads=2), 512, 7).threads == 2


def test_repacking_is_the_engine_s() -> None:
    other: Any = SimpleNamespace(environment=dict)
    assert not model_load(ENGINE, MODEL, ModelArgs(), 512, 1).repack
    assert model_load(other, MODEL, ModelArgs(), 512, 1).repack


def test_experts_of_the_first_layers_stay_on_the_cpu() -> None:
    (pattern,) = model_load(ENGINE, MODEL, ModelArgs(n_cpu_moe=11), 512, 1).cpu_tensors
    for name in ("blk.0.ffn_up_exps.weight", "blk.10.ffn_gate_up_exps.weight"):
        assert re.search(pattern, name)
    for name in ("blk.11.ffn_up_exps.weight", "blk.0.ffn_up_shexp.weight", "blk.100.ffn_up_exps"):
        assert not re.search(pattern, name)
    args = ModelArgs(override_tensor=("ffn_up=CPU",), cpu_moe=True)
    assert model_load(ENGINE, MODEL, args, 512, 1).cpu_tensors == ("ffn_up", "exps")


@pytest.mark.parametrize(
    "args",
    [
        ModelArgs(devices=("CUDA1",)),
        ModelArgs(rpc=("127.0.0.1:50052",)),
        ModelArgs(override_tensor=("exps=CUDA1",)),
    ],
    ids=["device", "rpc", "override"],
)
def test_other_placements_are_scored_live(args: ModelArgs) -> None:
    with pytest.raises(PrerequisiteError) as caught:
        model_load(ENGINE, MODEL, args, 512, 1)
    assert "method: live" in str(caught.value.hint)
