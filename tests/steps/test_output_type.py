"""A ready draft with another output head: llama-quantize's tensors, the head quantized once."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cook.engines.base import ModelArgs
from cook.errors import InputError
from cook.formats.gguf import GgufFile, read_gguf
from cook.formats.gguf_writer import copy_of, write_gguf_file
from cook.formats.quant_types import Flavour
from cook.formats.reduction import Reduction
from cook.graph.step import source
from cook.paths import demo_dir
from cook.steps.copies import ReduceStep
from cook.steps.draft_quality import MemoryStep
from cook.steps.output_type import OutputTypeStep
from cook.steps.quantize import TENSOR_KIND
from cook.steps.work import MODEL_FILE
from tests.workbench import run
from tools.random_model import Shape, write_random_model

DRAFT = demo_dir() / "draft-f16.gguf"
SHAPE = Shape(vocabulary=640, width=256, layers=1, hidden=512)


def data_of(file: GgufFile) -> dict[str, tuple[str, bytes]]:
    return {t.name: (t.type_name, file.read_tensor_bytes(t.name)) for t in file.tensors}


def require_head(home: Path, engine: Any, model: Path, type_name: str) -> None:
    """The made file has the tensors of its own command's, byte for byte, and loads."""
    step = OutputTypeStep(engine, f"draft output={type_name}", source([model]), type_name)
    memory = MemoryStep(engine, step.name, step, ModelArgs(threads=1), 256)
    outcomes = run(home, step, memory)
    result, made = outcomes.result(step), outcomes.artifact(step).file(MODEL_FILE)
    assert result is not None, outcomes.failures[step.key].error
    file = read_gguf(made)
    assert result.types == {t.name: t.type_name for t in file.tensors}
    assert result.types["output.weight"] == type_name
    assert result.tensor_bytes == file.tensor_bytes
    theirs = home / f"theirs-{type_name}.gguf"
    command = [*result.command[:-3], str(theirs), *result.command[-2:]]
    environment = dict(engine.environment())
    subprocess.run(command, check=True, capture_output=True, env=environment, cwd=home)
    assert data_of(file) == data_of(read_gguf(theirs))
    assert outcomes.result(memory) is not None, outcomes.failures[memory.key].error
    assert len(list((home / "store" / TENSOR_KIND).iterdir())) == len(list(home.glob("theirs-*")))
    assert run(home, step).ran == [], "it is stored"


def test_the_head_is_the_engine_s_and_the_rest_is_copied(tmp_path: Path, engine: Any) -> None:
    own = ("q8_0", "q6_K", "iq4_nl")
    ik_s = ("q8_0", "iq4_ks", "q4_k_r4")
    for type_name in own if engine.flavour is Flavour.LLAMA_CPP else ik_s:
        require_head(tmp_path, engine, DRAFT, type_name)


@pytest.mark.engine
def test_a_head_of_q8_0_may_be_quantized_again(tmp_path: Path, bundled: Any) -> None:
    model = write_random_model(tmp_path / "model.gguf", replace(SHAPE, type="Q8_0"))
    require_head(tmp_path, bundled, model, "q4_K")


def heads(folder: Path) -> tuple[Path, Path]:
    """A model whose embeddings are its head, and one with them copied as a head."""
    file = read_gguf(write_random_model(folder / "whole.gguf", SHAPE))
    tensors = [copy_of(file, t.name) for t in file.tensors if t.name != "output.weight"]
    head = replace(copy_of(file, "token_embd.weight"), name="output.weight")
    paths = folder / "tied.gguf", folder / "untied.gguf"
    for path, more in zip(paths, ([], [head]), strict=True):
        write_gguf_file(path, file.raw_metadata(), [*tensors, *more])
    return paths


def test_tied_embeddings_get_a_head_of_their_own(tmp_path: Path, engine: Any) -> None:
    """A tied model gets a head of its embeddings' weights, with which the engine loads it."""
    model, untied = heads(tmp_path)
    step = OutputTypeStep(engine, "tied output=q8_0", source([model]), "q8_0")
    memory = MemoryStep(engine, step.name, step, ModelArgs(threads=1), 256)
    embedded = OutputTypeStep(engine, "whole", source([untied]), "q8_0")
    outcomes = run(tmp_path, step, memory, embedded)
    assert outcomes.failures == {}
    before, after = read_gguf(model), read_gguf(outcomes.artifact(step).file(MODEL_FILE))
    found = data_of(after)
    head = found.pop("output.weight")
    assert found == data_of(before)
    theirs = read_gguf(outcomes.artifact(embedded).file(MODEL_FILE))
    assert head == ("q8_0", theirs.read_tensor_bytes("output.weight"))
    assert outcomes.result(step).command == (), "llama-quantize adds no tensor"


@pytest.mark.engine
def test_a_reduction_of_it_has_its_head(tmp_path: Path, bundled: Any) -> None:
    whole = OutputTypeStep(bundled, "draft output=q8_0", source([DRAFT]), "q8_0")
    part = ReduceStep("draft output=q8_0 experts=1", whole, Reduction(1))
    outcomes = run(tmp_path, part)
    file = read_gguf(outcomes.artifact(part).file(MODEL_FILE))
    assert file.metadata["bailingmoe2.expert_used_count"] == 1
    assert file.tensor("output.weight").type_name == "q8_0"


@pytest.mark.engine
def test_what_cannot_be_made_leaves_nothing(tmp_path: Path, bundled: Any) -> None:
    step = OutputTypeStep(bundled, "draft output=iq2_xs", source([DRAFT]), "iq2_xs")
    failure = run(tmp_path, step).failures[step.key]
    assert isinstance(failure.error, InputError)
    assert not list((tmp_path / "store").rglob(MODEL_FILE))
