"""The demo's target with its trained head, without the layers in front: whole, and in its parts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from cook.demo.unpack import SHIPPED, SHIPPED_HEAD, unpack
from cook.formats.gguf import GgufFile, read_gguf
from cook.formats.gguf_writer import NewTensor, copy_of, tensor_of, write_gguf_file
from cook.formats.heads import head_of
from cook.formats.quant_types import by_name
from cook.paths import demo_dir

_OF_THE_TARGET = ("token_embd.weight", "output_norm.weight", "output.weight")


def write_demo_heads(folder: Path) -> Path:
    """`whole.gguf`, `trunk.gguf`, and the head alone: `head-q8_0.gguf` as it is inside, and
    `head-f16.gguf`."""
    model, head = (read_gguf(demo_dir() / name) for name in (SHIPPED, SHIPPED_HEAD))
    unpack(model, folder / "trunk.gguf", layers_in_front=0)
    unpack(model, folder / "whole.gguf", head, layers_in_front=0)
    whole = read_gguf(folder / "whole.gguf")
    found = head_of(whole)
    assert found is not None
    names = [tensor.name for tensor in found.tensors_of(whole)]
    top = [copy_of(whole, name) for name in _OF_THE_TARGET]
    metadata = {key: whole.raw_value(key) for key in whole.metadata}
    for name, tensors in (
        ("head-q8_0.gguf", [copy_of(whole, name) for name in names]),
        ("head-f16.gguf", [_in_f16(whole, name) for name in names]),
    ):
        write_gguf_file(folder / name, metadata, [*top, *tensors], alignment=whole.alignment)
    return folder


def _in_f16(file: GgufFile, name: str) -> NewTensor:
    tensor = file.tensor(name)
    if tensor.type_name == "f32":
        return copy_of(file, name)
    packed = np.frombuffer(file.read_tensor_bytes(name), np.uint8).reshape(
        -1, (tensor.size_bytes or 0) * tensor.shape[0] // tensor.elements
    )
    weights = dequantize(packed, GGMLQuantizationType(tensor.type_id)).astype("<f2")
    return tensor_of(name, tensor.shape, by_name("f16").id, weights.tobytes())


Arrays = Mapping[str, npt.NDArray[np.float32]]
"""Of a head, by the tensor's name within its block."""


def head_arrays(folder: Path) -> Arrays:
    """Of `head-f16.gguf` in ``folder``, rows first."""
    file = read_gguf(folder / "head-f16.gguf")
    return {
        tensor.name.split(".", 2)[2]: np.frombuffer(
            file.read_tensor_bytes(tensor.name), "<f4" if tensor.type_name == "f32" else "<f2"
        )
        .astype(np.float32)
        .reshape(tensor.shape[::-1])
        for tensor in file.tensors
        if tensor.name.startswith("blk.")
    }


def write_changed(folder: Path, name: str, changed: Arrays) -> None:
    """`head-f16.gguf` once more as ``name``, but for the arrays ``changed``."""
    file = read_gguf(folder / "head-f16.gguf")
    tensors = []
    for tensor in file.tensors:
        array = changed.get(tensor.name.split(".", 2)[-1])
        if array is None:
            tensors.append(copy_of(file, tensor.name))
            continue
        data = array.astype("<f4" if tensor.type_name == "f32" else "<f2").tobytes()
        tensors.append(tensor_of(tensor.name, tensor.shape, tensor.type_id, data))
    metadata = {key: file.raw_value(key) for key in file.metadata}
    write_gguf_file(folder / f"{name}.gguf", metadata, tensors, alignment=file.alignment)
