"""The demo's target at the cost of a real one, made from the shipped q8_0 file when first used.

The shipped file fits in a processor's cache, where several tokens at once cost as much as one after
the other: no model that anybody serves is like that. So layers are put in front of its own that add
nothing. What they read is its first layer in f32, and their output projections are zero: the text
is the same to the token, and a step costs what it does where models are served, reading weights.

It is written as ``glm4moe``, which computes what ``bailingmoe2`` does under other names
(``src/models/glm4-moe.cpp`` and ``bailingmoe2.cpp``), with the shipped head as its last block.
ik_llama.cpp wants query, key and value apart and with biases; zeros are added.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import prod
from pathlib import Path

from cook import files
from cook.formats.gguf import GgufFile, read_gguf
from cook.formats.gguf_writer import (
    NewTensor,
    copy_of,
    encode,
    tensor_at,
    write_gguf_file,
)
from cook.formats.quant_types import by_name
from cook.paths import cook_home, demo_dir

SHIPPED, SHIPPED_HEAD = "target-q8_0.gguf", "head-q8_0.gguf"
UNPACKED = "target.gguf"
LAYERS_IN_FRONT = 14
_FORM = f"glm4moe-{LAYERS_IN_FRONT}-1"
"""Raise the last number when the same shipped files unpack to other bytes."""
_ALL_F32 = 0  # LLAMA_FTYPE_ALL_F32
_DESCRIPTION = (
    f"Demo model of cook with {LAYERS_IN_FRONT} layers in front that add nothing: a step reads "
    "as many weights as where models are served, and the text stays the same"
)


def is_unpacked(path: Path) -> bool:
    """Whether ``path`` names the unpacked target, which stands in no checkout."""
    return path == demo_dir() / UNPACKED


def unpacked_target() -> Path:
    """The unpacked target below COOK_HOME; written now unless it is there."""
    shipped = [demo_dir() / name for name in (SHIPPED, SHIPPED_HEAD)]
    digests = [files.digest(path).removeprefix("sha256:")[:12] for path in shipped]
    path = cook_home() / "demo" / "-".join([*digests, _FORM]) / UNPACKED
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        model, head = map(read_gguf, shipped)
        unpack(model, path, head)
    return path


def unpack(
    model: GgufFile,
    path: Path,
    head: GgufFile | None = None,
    *,
    layers_in_front: int = LAYERS_IN_FRONT,
) -> None:
    """Write ``model``, a bailingmoe2 whose first layer is dense, to ``path`` with the layers in
    front and ``head`` behind; the bytes of their own weights stay."""
    own = [
        part
        for file in (model, head)
        if file is not None
        for tensor in file.tensors
        for part in _as_glm4moe(file, tensor.name, layers_in_front)
    ]
    tensors = [t for i in range(layers_in_front) for t in _layer_in_front(model, i)]
    metadata = _metadata(model, head, layers_in_front)
    write_gguf_file(path, metadata, [*own, *tensors], alignment=model.alignment)


def _metadata(model: GgufFile, head: GgufFile | None, layers_in_front: int) -> dict[str, bytes]:
    old, new = "bailingmoe2.", "glm4moe."
    values = {
        key.replace(old, new): model.raw_value(key)
        for key in model.metadata
        if "expert_group" not in key and not key.endswith("expert_shared_feed_forward_length")
    }
    # Here the width of the shared experts is their number times that of the routed ones.
    together = _count(model, "expert_shared_feed_forward_length")
    shared = together // _count(model, "expert_feed_forward_length")
    if head is not None:
        values[f"{new}nextn_predict_layers"] = encode(_count(head, "nextn_predict_layers"))
    blocks = _count(model if head is None else head, "block_count")
    return values | {
        "general.architecture": encode("glm4moe"),
        "general.description": encode(_DESCRIPTION),
        "general.file_type": encode(_ALL_F32),
        f"{new}block_count": encode(blocks + layers_in_front),
        f"{new}leading_dense_block_count": encode(
            _count(model, "leading_dense_block_count") + layers_in_front
        ),
        f"{new}expert_shared_count": encode(shared),
    }


def _count(model: GgufFile, key: str) -> int:
    value = model.integer(f"bailingmoe2.{key}")
    assert value is not None, f"the shipped file has {key}"
    return value


def _renamed(name: str, by: int) -> str:
    """The name in glm4moe of a tensor ``by`` layers further back."""
    if not name.startswith("blk."):
        return name
    _, layer, rest = name.split(".", 2)
    return f"blk.{int(layer) + by}.{rest.replace('ffn_norm', 'post_attention_norm')}"


def _as_glm4moe(model: GgufFile, name: str, by: int) -> Iterator[NewTensor]:
    """A tensor of the model's own, byte for byte; query, key and value apart."""
    new = _renamed(name, by)
    if ".attn_qkv." not in name:
        yield replace(copy_of(model, name), name=new)
        return
    tensor, place = model.tensor(name), model.place(name)
    width, rows = tensor.shape
    row_bytes = place.size_bytes // rows
    offset = place.offset
    for letter, count in _projections(model):
        part = replace(place, offset=offset, size_bytes=count * row_bytes)
        shape = (width, count)
        yield tensor_at(new.replace("qkv", letter), shape, tensor.type_id, part)
        yield _zeros(new.replace("qkv.weight", f"{letter}.bias"), (count,))
        offset += part.size_bytes


def _projections(model: GgufFile) -> tuple[tuple[str, int], ...]:
    """Letters and rows of what ``attn_qkv`` holds, in its order."""
    keys = ("head_count", "head_count_kv", "key_length")
    heads, kv_heads, width = (_count(model, f"attention.{key}") for key in keys)
    return ("q", heads * width), ("k", kv_heads * width), ("v", kv_heads * width)


def _layer_in_front(model: GgufFile, index: int) -> Iterator[NewTensor]:
    """The first layer of the model in f32, its two output projections zero."""
    for tensor in model.tensors:
        if not tensor.name.startswith("blk.0."):
            continue
        new = _renamed(tensor.name, index)
        if ".attn_output." in new or ".ffn_down." in new:
            yield _zeros(new, tensor.shape)
        elif ".attn_qkv." in new:
            width, first = tensor.shape[0], 0
            for letter, count in _projections(model):
                rows = slice(first, first + count)
                yield _in_f32(model, tensor.name, new.replace("qkv", letter), (width, count), rows)
                yield _zeros(new.replace("qkv.weight", f"{letter}.bias"), (count,))
                first += count
        else:
            yield _in_f32(model, tensor.name, new, tensor.shape, slice(None))


def dequantized(model: GgufFile, name: str, kind: str, rows: slice = slice(None)) -> bytes:
    """Rows of a tensor, in the type that numpy calls ``kind``."""
    import numpy as np
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    tensor = model.tensor(name)
    raw = np.frombuffer(model.read_tensor_bytes(name), np.uint8)
    packed = raw.reshape(prod(tensor.shape[1:]), -1)[rows]
    weights = dequantize(packed, GGMLQuantizationType(tensor.type_id)).astype(kind)
    return bytes(weights.tobytes())


def _in_f32(model: GgufFile, name: str, new: str, shape: tuple[int, ...], rows: slice) -> NewTensor:
    def data() -> Iterable[bytes]:
        yield dequantized(model, name, "<f4", rows)

    f32 = by_name("f32")
    return NewTensor(new, shape, f32.id, f32.tensor_bytes(shape), data)


def _zeros(name: str, shape: tuple[int, ...]) -> NewTensor:
    f32 = by_name("f32")
    size = f32.tensor_bytes(shape)
    return NewTensor(name, shape, f32.id, size, lambda: (bytes(size),))
