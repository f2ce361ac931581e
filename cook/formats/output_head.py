"""The output head of a model in another type: all else of the file as it is.

The head (``output.weight``) is read whole for every token that is drafted, and in a small model of
a large vocabulary it is much of what is read. A model whose embeddings are its head (tied: it has
no ``output.weight``) gets a head of its own, made of them: engines look for one first, in nearly
all architectures, and then read the embeddings by rows only. llama-quantize cannot do that: its
``--output-tensor-type`` changes the embeddings of a tied model.

The head is written last, so that what lies behind it in the source keeps its places in blocks, and
a file system can share them (:func:`cook.formats.gguf_writer.sharing_padding`).
"""

from __future__ import annotations

from dataclasses import replace

from cook.errors import InputError
from cook.formats.gguf import GgufFile, TensorInfo
from cook.formats.quant_types import by_id, by_name, needs_imatrix, stored_type

OUTPUT, EMBEDDINGS = "output.weight", "token_embd.weight"
PRECISE = ("f32", "f16", "bf16", "q8_0")
"""Types of a head that is worth quantizing again: what is made of any other has two errors."""


def head_of(file: GgufFile) -> TensorInfo:
    """The tensor that is the head of ``file``, its embeddings where these are tied to it.

    InputError for a file without either.
    """
    return file.find(OUTPUT) or file.tensor(EMBEDDINGS)


def is_head(file: GgufFile, type_name: str) -> bool:
    """Whether ``file`` has a head of its own in that type already."""
    head = file.find(OUTPUT)
    return head is not None and head.type_name == type_name


def require_head(file: GgufFile, type_name: str, flavour: str) -> None:
    """InputError where ``flavour`` cannot make the head of ``file`` in that type, or it would not
    be what the type says."""
    if is_head(file, type_name):
        return
    head, wanted = head_of(file), by_name(type_name)
    known = by_id(head.type_id)
    if known is None or known.name not in PRECISE:
        raise InputError(
            f"{file.path}: {head.name} is {head.type_name}: as {type_name} it would have the "
            "errors of both",
            hint=f"a file whose {head.name} is one of {', '.join(PRECISE)}, or quants of the model "
            "and a sweep: {over: {output: [...]}}",
        )
    if not wanted.quantizable or needs_imatrix(OUTPUT, wanted, "", flavour):
        raise InputError(
            f"{type_name} needs importance data, which a ready draft has none of"
            if wanted.quantizable
            else f"{type_name} is no type of stored weights",
            hint="q8_0, q6_K or q4_K",
        )
    fits = head.shape[0] % wanted.block == 0
    if not fits or stored_type(OUTPUT, head.shape, wanted, flavour) != wanted.name:
        shape = " x ".join(map(str, head.shape))
        together = f", {wanted.interleave} rows together" if wanted.base else ""
        raise InputError(
            f"{file.path}: {head.name} of {shape} cannot be {type_name}, which has blocks of "
            f"{wanted.block}{together}",
            hint="choose a type that fits these rows, such as q8_0",
        )


def with_head(file: GgufFile, type_name: str) -> GgufFile:
    """The header of ``file`` with its head in that type, for plans: the head is nowhere yet."""
    head = TensorInfo(OUTPUT, head_of(file).shape, by_name(type_name).id)
    kept = tuple(tensor for tensor in file.tensors if tensor.name != OUTPUT)
    return replace(file, tensors=(*kept, head))
