"""A header is read once, and anew where any file of the model is another than before."""

from __future__ import annotations

from pathlib import Path

import pytest

from cook.errors import InputError
from cook.formats.gguf_writer import encode, tensor_of, write_gguf_file
from cook.formats.headers import header
from cook.formats.naming import shard_path


def write(path: Path, name: str, **split: int) -> Path:
    metadata = {"general.architecture": encode("llama")}
    metadata |= {f"split.{key}": encode(value) for key, value in split.items()}
    write_gguf_file(path, metadata, [tensor_of(f"{name}.weight", (4,), 0, bytes(16))])
    return path


def test_once_while_it_stays(tmp_path: Path) -> None:
    path = write(tmp_path / "a.gguf", "one")
    first = header(path)
    assert header(path) is first
    write(path, "other")
    assert [t.name for t in header(path).tensors] == ["other.weight"]


def test_any_shard_counts(tmp_path: Path) -> None:
    paths = [shard_path(tmp_path / "m", n + 1, 2) for n in range(2)]
    for number, path in enumerate(paths):
        write(path, f"t{number}", count=2, no=number)
    assert header(paths[0]) is header(paths[0])
    write(paths[1], "new", count=2, no=1)
    assert [t.name for t in header(paths[0]).tensors] == ["t0.weight", "new.weight"]
    paths[1].unlink()
    with pytest.raises(InputError, match="missing"):
        header(paths[0])


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.gguf: No such file"):
        header(tmp_path / "none.gguf")
