"""Tensor lists without a model: name, shape and type as tab-separated text, for planning."""

from __future__ import annotations

from pathlib import Path

from cook.errors import InputError
from cook.formats.cursor import shown
from cook.formats.gguf_file import MAX_DIMS, TensorInfo
from cook.formats.quant_types import by_name


def read_tensor_list(path: Path | str) -> tuple[TensorInfo, ...]:
    """Tensors listed as ``name <tab> 4096 x 1024 x 256 <tab> type`` lines (``#`` comments).

    For planning without the model; offsets are 0. InputError names the line.
    """
    path = Path(path)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    tensors: dict[str, TensorInfo] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            name, shape, type_name = line.split("\t")
            dims = tuple(int(part) for part in shape.split(" x "))
        except ValueError:
            raise InputError(
                f"{path}:{number}: expected name, shape and type, tab-separated"
            ) from None
        if not 1 <= len(dims) <= MAX_DIMS or min(dims) < 1:
            raise InputError(f"{path}:{number}: impossible shape {shown(shape)}")
        if name in tensors:
            raise InputError(f"{path}:{number}: {shown(name)} occurs twice")
        tensors[name] = TensorInfo(name, dims, by_name(type_name.strip()).id)
    return tuple(tensors.values())
