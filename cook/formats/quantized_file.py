"""The GGUF that llama-quantize would write, made of tensors that were quantized one by one.

Both engines copy the source's metadata and state the base type, the version of the quantized
types' layout, and what they know of the imatrix. Where a key is there already, mainline
(``llama_model_quantize_impl``, ``gguf_set_val_*``) moves it to the end and ik
(``llama_model_quantize_internal``) changes it where it stands. Mainline sorts the tensors, by
layer and name; ik keeps their order. Beyond that cook says of the imatrix the names alone, since
their paths are the machine's, and adds keys of its own at the end.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from cook.formats.gguf import GgufFile, TensorInfo, ValueType
from cook.formats.gguf_writer import encode
from cook.formats.imatrix_file import Imatrix
from cook.formats.quant_types import Flavour

QUANTIZATION_VERSION = "general.quantization_version"
_MOST_BYTES = 127
"""Limit on a text that an engine adds to the metadata."""
_LAYER = re.compile(r"blk\.\s*([+-]?\d+)")


def quantized_metadata(
    source: GgufFile,
    flavour: Flavour,
    *,
    file_type: int,
    quantization_version: int,
    imatrix: Imatrix | None = None,
    imatrix_file: str = "",
) -> dict[str, bytes]:
    """The metadata of one whole file (no shard) quantized from ``source``, encoded, in order."""
    metadata = source.raw_metadata()

    def put(key: str, value: int | str, kind: ValueType) -> None:
        if flavour is Flavour.LLAMA_CPP:
            metadata.pop(key, None)
        metadata[key] = encode(value, kind)

    put(QUANTIZATION_VERSION, quantization_version, ValueType.UINT32)
    if flavour is Flavour.LLAMA_CPP:
        put("general.file_type", file_type, ValueType.UINT32)
    if imatrix is not None:
        number = ValueType.UINT32 if flavour is Flavour.LLAMA_CPP else ValueType.INT32
        put("quantize.imatrix.file", _as_stored(imatrix_file), ValueType.STRING)
        if imatrix.datasets and imatrix.datasets[0]:
            dataset = _as_stored(imatrix.datasets[0])
            put("quantize.imatrix.dataset", dataset, ValueType.STRING)
        put("quantize.imatrix.entries_count", len(imatrix.entries), number)
        if imatrix.chunk_count > 0:
            put("quantize.imatrix.chunks_count", imatrix.chunk_count, number)
    if flavour is Flavour.IK_LLAMA_CPP:
        put("general.file_type", file_type, ValueType.UINT32)
    return metadata


def without_paths(quantized: GgufFile) -> dict[str, bytes]:
    """The metadata of a file that an engine quantized, without the machine's directories."""
    metadata = quantized.raw_metadata()
    for key in ("quantize.imatrix.file", "quantize.imatrix.dataset"):
        if (path := quantized.string(key)) is not None:
            metadata[key] = encode(_as_stored(path))
    return metadata


def engine_order(tensors: Sequence[TensorInfo], flavour: Flavour) -> tuple[TensorInfo, ...]:
    """``tensors`` as ``flavour`` writes them into one file."""
    if flavour is Flavour.LLAMA_CPP:
        return tuple(sorted(tensors, key=lambda t: (_layer(t.name), t.name.encode())))
    return tuple(tensors)


def _layer(name: str) -> int:
    found = _LAYER.match(name)
    return int(found.group(1)) if found else -1


def _as_stored(path: str) -> str:
    """The last name of ``path``, cut as the engines cut a text."""
    name = re.split(r"[/\\]", path)[-1]
    return name.encode()[:_MOST_BYTES].decode(errors="ignore")
