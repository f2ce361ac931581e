"""The demo's target in f16, made from the shipped q8_0 file when it is first used.

A q8_0 target this small fits in a processor's cache, where several tokens at once cost as much
as one after the other, and no draft can pay. In f16 it does not fit, and a step costs what it
does where models are served: reading the weights. It is not shipped because of its size.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from cook import files
from cook.formats.gguf import GgufFile, TensorInfo, read_gguf
from cook.formats.gguf_writer import NewTensor, copy_of, encode, write_gguf_file
from cook.formats.quant_types import by_name
from cook.paths import cook_home, demo_dir

SHIPPED = "target-q8_0.gguf"
UNPACKED = "target-f16.gguf"
_FILE_TYPE = 1  # LLAMA_FTYPE_MOSTLY_F16


def is_unpacked(path: Path) -> bool:
    """Whether ``path`` names the f16 target, which stands in no checkout."""
    return path == demo_dir() / UNPACKED


def unpacked() -> Path:
    """The f16 target below COOK_HOME; written now unless it is there."""
    shipped = demo_dir() / SHIPPED
    digest = files.digest(shipped).removeprefix("sha256:")
    path = cook_home() / "demo" / digest[:12] / UNPACKED
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        unpack(read_gguf(shipped), path)
    return path


def unpack(model: GgufFile, path: Path) -> None:
    """Write ``model`` to ``path`` with its q8_0 tensors in f16, and all else as it was."""
    metadata = {key: model.raw_value(key) for key in model.metadata}
    metadata["general.file_type"] = encode(_FILE_TYPE)
    tensors = [
        _in_f16(model, t) if t.type_name == "q8_0" else copy_of(model, t.name)
        for t in model.tensors
    ]
    write_gguf_file(path, metadata, tensors, alignment=model.alignment)


def _in_f16(model: GgufFile, tensor: TensorInfo) -> NewTensor:
    def data() -> Iterable[bytes]:
        import numpy as np
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize

        rows = -1, (tensor.size_bytes or 0) * tensor.shape[0] // tensor.elements
        packed = np.frombuffer(model.read_tensor_bytes(tensor.name), np.uint8).reshape(rows)
        yield dequantize(packed, GGMLQuantizationType.Q8_0).astype("<f2").tobytes()

    f16 = by_name("f16")
    return NewTensor(tensor.name, tensor.shape, f16.id, f16.tensor_bytes(tensor.shape), data)
