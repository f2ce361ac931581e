"""The GGUF writer: encoding, alignment, atomicity; upstream's reader agrees."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from cook.errors import InputError, InternalError
from cook.files import atomic_write
from cook.formats.gguf import MetadataArray, ValueType, read_gguf
from cook.formats.gguf_writer import NewTensor, copy_of, encode, tensor_of, write_gguf_file


def test_encoding_of_values() -> None:
    assert encode(True) == struct.pack("<I?", 7, True)
    assert encode(7) == struct.pack("<II", 4, 7)
    assert encode(-7) == struct.pack("<Ii", 5, -7)
    assert encode(7, ValueType.UINT64) == struct.pack("<IQ", 10, 7)
    assert encode("é") == struct.pack("<IQ", 8, 2) + "é".encode()
    assert encode([1, -2]) == struct.pack("<IIQii", 9, 5, 2, 1, -2)
    assert encode([], ValueType.STRING) == struct.pack("<IIQ", 9, 8, 0)
    array = MetadataArray(ValueType.UINT8, 2, b"ab")
    assert encode(array) == struct.pack("<IIQ", 9, 0, 2) + b"ab"


@pytest.mark.parametrize("alignment", [32, 64, 4096])
def test_alignment(tmp_path: Path, alignment: int) -> None:
    path = tmp_path / "a.gguf"
    tensors = [tensor_of(n, (5,), 24, b"12345") for n in ("a", "b")]
    metadata = {"general.alignment": encode(alignment)}
    write_gguf_file(path, metadata, tensors, alignment=alignment)
    gguf = read_gguf(path)
    assert gguf.alignment == alignment
    assert gguf.data_offset % alignment == 0
    assert [t.offset for t in gguf.tensors] == [0, alignment]
    assert gguf.file_bytes == gguf.data_offset + 2 * alignment
    assert gguf.read_tensor_bytes("b") == b"12345"


def test_upstreams_reader_agrees(tmp_path: Path) -> None:
    upstream = pytest.importorskip("gguf")
    path = tmp_path / "a.gguf"
    metadata = {"general.architecture": encode("llama"), "list": encode([1.5, 2.5])}
    write_gguf_file(path, metadata, [tensor_of("w", (4, 2), 0, struct.pack("<8f", *range(8)))])
    reader = upstream.GGUFReader(path)
    assert reader.get_field("general.architecture").contents() == "llama"
    assert reader.get_field("list").contents() == [1.5, 2.5]
    assert reader.tensors[0].data.ravel().tolist() == list(range(8))


def test_copying_a_tensor_of_a_type_upstream_does_not_know(tmp_path: Path) -> None:
    source = tmp_path / "a.gguf"
    data = bytes(range(180))
    write_gguf_file(source, {}, [tensor_of("w", (256, 3), 158, data)])
    write_gguf_file(tmp_path / "b.gguf", {}, [copy_of(read_gguf(source), "w")])
    assert read_gguf(tmp_path / "b.gguf").read_tensor_bytes("w") == data
    write_gguf_file(source, {}, [tensor_of("w", (256, 3), 9999, data)])
    with pytest.raises(InputError, match="type 9999 is of unknown size"):
        copy_of(read_gguf(source), "w")


def test_a_tensor_of_the_wrong_length_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    with pytest.raises(InternalError, match="3 bytes of 4"):
        write_gguf_file(path, {}, [NewTensor("w", (1,), 0, 4, lambda: (b"abc",))])
    assert list(tmp_path.iterdir()) == []


def test_a_failure_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(b"old")

    def failing() -> Iterator[bytes]:
        yield b"12"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_gguf_file(path, {}, [NewTensor("w", (1,), 0, 4, failing)])
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_permissions_follow_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with atomic_write(tmp_path / "a") as file:
            file.write(b"x")
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640
