"""The GGUF that llama-quantize would write, made of tensors that were quantized one by one.

Both engines copy the source's metadata and state the base type, the version of the quantized
types' layout, and what they know of the imatrix. Where a key is there already, mainline
(``llama_model_quantize_impl``, ``gguf_set_val_*``) moves it to the end and ik
(``llama_model_quantize_internal``) changes it where it stands. Mainline sorts the tensors, by
layer and name; ik keeps their order. Beyond that cook says of the imatrix the names alone, since
their paths are the machine's, and adds keys of its own at the end.

Or a file whose output tensor alone has another type. ``output.weight`` is read whole for every
token that is drafted, and in a small model of a large vocabulary it is much of what is read. A
model with tied embeddings has no ``output.weight``: it gets one, made of the embeddings. In nearly
all architectures the engines use such a tensor where it exists, and then read the embeddings by
rows only. llama-quantize cannot do that: its ``--output-tensor-type`` changes the embeddings of a
tied model. The tensor is written last, so that what lies behind it in the source keeps its places
in blocks, and a file system can share them (:func:`cook.formats.gguf_writer.sharing_padding`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from cook.errors import InputError
from cook.formats.gguf import GgufFile, TensorInfo, ValueType
from cook.formats.gguf_writer import encode
from cook.formats.imatrix_file import Imatrix
from cook.formats.quant_types import Flavour, by_id, by_name, needs_imatrix, stored_type

QUANTIZATION_VERSION = "general.quantization_version"
_MOST_BYTES = 127
"""Limit on a text that an engine adds to the metadata."""
OUTPUT, EMBEDDINGS = "output.weight", "token_embd.weight"
PRECISE = ("f32", "f16", "bf16", "q8_0")
"""Types that are worth quantizing again: what is made of any other has the errors of both."""
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
    if flavour is not Flavour.LLAMA_CPP:
        return tuple(tensors)
    layers = {t.name: int(m[1]) if (m := _LAYER.match(t.name)) else -1 for t in tensors}
    return tuple(sorted(tensors, key=lambda t: (layers[t.name], t.name.encode())))


def _as_stored(path: str) -> str:
    """The last name of ``path``, cut as the engines cut a text."""
    name = re.split(r"[/\\]", path)[-1]
    return name.encode()[:_MOST_BYTES].decode(errors="ignore")


def output_tensor(file: GgufFile) -> TensorInfo:
    """``output.weight``, or the embeddings where they are tied; InputError without either."""
    return file.find(OUTPUT) or file.tensor(EMBEDDINGS)


def has_output_type(file: GgufFile, type_name: str) -> bool:
    """Whether ``file`` has an ``output.weight`` of that type already."""
    output = file.find(OUTPUT)
    return output is not None and output.type_name == type_name


def require_output_type(file: GgufFile, type_name: str, flavour: str) -> None:
    """InputError where ``flavour`` cannot quantize the output of ``file`` to that type, or would
    write another type without a word."""
    if has_output_type(file, type_name):
        return
    output, wanted = output_tensor(file), by_name(type_name)
    known = by_id(output.type_id)
    if known is None or known.name not in PRECISE:
        raise InputError(
            f"{file.path}: {output.name} is {output.type_name}: as {type_name} it would have the "
            "errors of both",
            hint=f"a file whose {output.name} is one of {', '.join(PRECISE)}, or quants of the "
            "model and a sweep: {over: {output: [...]}}",
        )
    if not wanted.quantizable or needs_imatrix(OUTPUT, wanted, "", flavour):
        raise InputError(
            f"{type_name} needs importance data, which a ready draft has none of"
            if wanted.quantizable
            else f"{type_name} is no type of stored weights",
            hint="q8_0, q6_K or q4_K",
        )
    fits = output.shape[0] % wanted.block == 0
    if not fits or stored_type(OUTPUT, output.shape, wanted, flavour) != wanted.name:
        shape = " x ".join(map(str, output.shape))
        together = f", {wanted.interleave} rows together" if wanted.base else ""
        raise InputError(
            f"{file.path}: {output.name} of {shape} cannot be {type_name}, which has blocks of "
            f"{wanted.block}{together}",
            hint="choose a type that fits these rows, such as q8_0",
        )


def with_output_type(file: GgufFile, type_name: str) -> GgufFile:
    """The header of ``file`` with its output in that type, for plans: no data is there yet."""
    output = TensorInfo(OUTPUT, output_tensor(file).shape, by_name(type_name).id)
    kept = tuple(tensor for tensor in file.tensors if tensor.name != OUTPUT)
    return replace(file, tensors=(*kept, output))
