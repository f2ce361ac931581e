"""Which types a draft's tensors have, layer by layer and group by group."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from cook.record.measured import TypeSpan

if TYPE_CHECKING:
    from cook.formats.gguf import TensorInfo


_LAYER = re.compile(r"(?:enc\.|dec\.)?blk\.(\d{1,6})\.")


def type_map(model: Path | str | None) -> tuple[TypeSpan, ...]:
    """The matrices of a GGUF (shard 1 if split) as spans; empty where there is no file.

    Vectors (norms, biases) are left out: no engine quantizes them.
    """
    from cook.errors import InputError
    from cook.formats.gguf import read_gguf
    from cook.recipe.groups import group_of, mtp_layers_of

    if model is None:
        return ()
    try:
        file = read_gguf(model)
        architecture = file.architecture
        mtp = mtp_layers_of(
            (t.name for t in file.tensors),
            file.integer(f"{architecture}.block_count"),
            file.integer(f"{architecture}.nextn_predict_layers"),
        )
    except InputError:
        return ()  # the steps that needed the file have said what is wrong with it
    cells: dict[tuple[str, int | None], list[TensorInfo]] = {}
    for tensor in file.tensors:
        if len(tensor.shape) < 2 or not tensor.name.endswith(".weight"):
            continue
        match = _LAYER.match(tensor.name)
        group = str(group_of(tensor.name, architecture, mtp))
        cells.setdefault((group, int(match[1]) if match else None), []).append(tensor)
    return tuple(_merged(cells))


def _merged(cells: dict[tuple[str, int | None], list[TensorInfo]]) -> Iterator[TypeSpan]:
    """Cells as spans, in the order of groups; neighbours that are alike become one."""
    last: TypeSpan | None = None
    for (group, layer), tensors in sorted(cells.items(), key=lambda item: _order(item[0])):
        span = _span(group, layer, tensors)
        if last is not None and _continues(last, span):
            last = TypeSpan(
                group, last.first_layer, layer, last.types, last.elements, last.size_bytes
            )
            continue
        if last is not None:
            yield last
        last = span
    if last is not None:
        yield last


def _order(cell: tuple[str, int | None]) -> tuple[int, int]:
    from cook.recipe.groups import Group

    group, layer = cell
    return [str(g) for g in Group].index(group), -1 if layer is None else layer


def _span(group: str, layer: int | None, tensors: list[TensorInfo]) -> TypeSpan:
    types: dict[str, int] = {}
    for tensor in tensors:
        types[tensor.type_name] = types.get(tensor.type_name, 0) + 1
    sizes = [t.size_bytes for t in tensors]
    known = [s for s in sizes if s is not None]
    return TypeSpan(
        group=group,
        first_layer=layer,
        last_layer=layer,
        types=dict(sorted(types.items())),
        elements=sum(t.elements for t in tensors),
        size_bytes=sum(known) if len(known) == len(sizes) else None,
    )


def _continues(last: TypeSpan, span: TypeSpan) -> bool:
    if last.last_layer is None or span.first_layer != last.last_layer + 1:
        return False
    return (last.group, last.types, last.elements, last.size_bytes) == (
        span.group,
        span.types,
        span.elements,
        span.size_bytes,
    )
