"""A published model in Thireus' layout: a repository of one-tensor shards and their map."""

from __future__ import annotations

import hashlib
from pathlib import Path

from cook.formats.gguf import ValueType, read_gguf
from cook.formats.gguf_writer import copy_of, encode, write_gguf_file
from cook.formats.naming import ShardNames

NAMES = ShardNames("Thireus", "tiny")


def repository(
    folder: Path, model: Path, type: str, imatrix: str | None = None
) -> dict[str, bytes]:
    """The files of one type's repository, made of the whole quantized ``model``."""
    file = read_gguf(model)
    count = len(file.tensors) + 1
    found, lines = {}, []
    for number in range(1, count + 1):
        metadata = {
            "split.no": encode(number - 1, ValueType.UINT16),
            "split.count": encode(count, ValueType.UINT16),
            "split.tensors.count": encode(len(file.tensors), ValueType.INT32),
        }
        path = folder / NAMES.shard(type, number, count)
        if number == 1:
            metadata |= {key: file.raw_value(key) for key in file.metadata}
            write_gguf_file(path, metadata, [])
        else:
            tensor = file.tensors[number - 2]
            write_gguf_file(path, metadata, [copy_of(file, tensor.name)])
            shape = f"({tensor.shape[0]},)" if len(tensor.shape) == 1 else str(tensor.shape)
            lines.append(
                f"{path.name}:{hashlib.sha256(path.read_bytes()).hexdigest()}:{tensor.name}:"
                f"shape={shape}:dtype={tensor.type_name}:elements={tensor.elements}:"
                f"bytes={tensor.size_bytes}" + (f":imatrix={imatrix}" if imatrix else "")
            )
        found[path.name] = path.read_bytes()
    found["tensors.map"] = "".join(f"{line}\n" for line in lines).encode()
    return found


def line_of(files: dict[str, bytes], tensor: str) -> str:
    """The map's line for ``tensor``."""
    lines = files["tensors.map"].decode().splitlines()
    return next(line for line in lines if f":{tensor}:" in line)


def shard_of(files: dict[str, bytes], tensor: str) -> str:
    """The name of the shard that holds ``tensor``."""
    return line_of(files, tensor).partition(":")[0]
