"""What each engine would write before the tensors, key by key."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cook.formats.gguf import GgufFile, TensorInfo, ValueType, read_gguf
from cook.formats.gguf_writer import encode, tensor_of, write_gguf_file
from cook.formats.imatrix_file import Imatrix, ImatrixEntry
from cook.formats.quant_types import Flavour
from cook.formats.quantized_file import engine_order, quantized_metadata, without_paths

ENTRY = ImatrixEntry(np.ones((1, 32), np.float32), np.ones(1, np.float32))
WHOLE = Imatrix({str(n): ENTRY for n in range(7)}, (r"C:\texts\corpus.txt",), 3, 512, "gguf")
BARE = Imatrix({"0": ENTRY}, (), 0, None, "dat")


@pytest.fixture
def source(tmp_path: Path) -> GgufFile:
    """The first key is one that both engines state anew; the file is a shard."""
    metadata = {
        "general.file_type": encode(1),
        "general.architecture": encode("llama"),
        "split.no": encode(0, ValueType.UINT16),
        "split.count": encode(0, ValueType.UINT16),
    }
    write_gguf_file(tmp_path / "m.gguf", metadata, [tensor_of("x", (32,), 0, bytes(128))])
    return read_gguf(tmp_path / "m.gguf")


def put(
    source: GgufFile,
    flavour: Flavour,
    imatrix: Imatrix | None,
    file: str = "/home/somebody/imatrix.gguf",
) -> dict[str, bytes]:
    return quantized_metadata(
        source,
        flavour,
        file_type=15,
        quantization_version=2,
        imatrix=imatrix,
        imatrix_file=file,
    )


def test_mainline_moves_what_it_states_to_the_end(source: GgufFile) -> None:
    found = put(source, Flavour.LLAMA_CPP, WHOLE)
    assert list(found) == [
        "general.architecture",
        "general.quantization_version",
        "general.file_type",
        "quantize.imatrix.file",
        "quantize.imatrix.dataset",
        "quantize.imatrix.entries_count",
        "quantize.imatrix.chunks_count",
    ]
    assert found["general.file_type"] == encode(15)
    assert found["quantize.imatrix.file"] == encode("imatrix.gguf")
    assert found["quantize.imatrix.dataset"] == encode("corpus.txt")
    assert found["quantize.imatrix.entries_count"] == encode(7, ValueType.UINT32)


def test_ik_changes_it_where_it_stands(source: GgufFile) -> None:
    found = put(source, Flavour.IK_LLAMA_CPP, WHOLE)
    assert list(found) == [
        "general.file_type",
        "general.architecture",
        "general.quantization_version",
        "quantize.imatrix.file",
        "quantize.imatrix.dataset",
        "quantize.imatrix.entries_count",
        "quantize.imatrix.chunks_count",
    ]
    assert found["general.file_type"] == encode(15)
    assert found["quantize.imatrix.chunks_count"] == encode(3, ValueType.INT32)


@pytest.mark.parametrize("flavour", list(Flavour))
def test_what_is_not_known_of_an_imatrix_is_not_said(source: GgufFile, flavour: Flavour) -> None:
    assert not [key for key in put(source, flavour, None) if key.startswith("quantize.")]
    bare = put(source, flavour, BARE)
    told = [key for key in bare if key.startswith("quantize.")]
    assert told == ["quantize.imatrix.file", "quantize.imatrix.entries_count"]


def test_a_long_name_is_cut_as_the_engines_cut_it(source: GgufFile) -> None:
    found = put(source, Flavour.LLAMA_CPP, BARE, "é" * 100)
    assert found["quantize.imatrix.file"] == encode("é" * 63)


def test_paths_are_taken_out_of_a_file_that_an_engine_wrote(tmp_path: Path) -> None:
    metadata = {
        "quantize.imatrix.file": encode("/home/somebody/.cook/imatrix.gguf"),
        "quantize.imatrix.chunks_count": encode(3),
        "general.name": encode("a/b"),
    }
    write_gguf_file(tmp_path / "m.gguf", metadata, [tensor_of("x", (32,), 0, bytes(128))])
    assert without_paths(read_gguf(tmp_path / "m.gguf")) == {
        **metadata,
        "quantize.imatrix.file": encode("imatrix.gguf"),
    }


def test_the_order_of_tensors() -> None:
    names = ("blk.10.b", "output.weight", "blk.2.b", "blk.2.a", "Output", "blk.x.a")
    tensors = [TensorInfo(name, (1,), 0) for name in names]
    assert [t.name for t in engine_order(tensors, Flavour.IK_LLAMA_CPP)] == list(names)
    assert [t.name for t in engine_order(tensors, Flavour.LLAMA_CPP)] == [
        *("Output", "blk.x.a", "output.weight"),
        *("blk.2.a", "blk.2.b", "blk.10.b"),
    ]
