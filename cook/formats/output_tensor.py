"""The output tensor of a model in another type: all else of the file stays as it is.

``output.weight`` is read whole for every token that is drafted, and in a small model of a large
vocabulary it is much of what is read. A model with tied embeddings has no ``output.weight``: it
gets one, made of the embeddings. In nearly all architectures the engines use such a tensor where it
exists, and then read the embeddings by rows only. llama-quantize cannot do that: its
``--output-tensor-type`` changes the embeddings of a tied model.

The tensor is written last, so that what lies behind it in the source keeps its places in blocks,
and a file system can share them (:func:`cook.formats.gguf_writer.sharing_padding`).
"""

from __future__ import annotations

from dataclasses import replace

from cook.errors import InputError
from cook.formats.gguf import GgufFile, TensorInfo
from cook.formats.quant_types import by_id, by_name, needs_imatrix, stored_type

OUTPUT, EMBEDDINGS = "output.weight", "token_embd.weight"
PRECISE = ("f32", "f16", "bf16", "q8_0")
"""Types that are worth quantizing again: what is made of any other has the errors of both."""


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
