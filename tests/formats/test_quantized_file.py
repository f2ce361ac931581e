"""What each engine would write before the tensors, key by key, and what a file with another type of
output is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cook.errors import InputError
from cook.formats.gguf import GgufFile, TensorInfo, ValueType, read_gguf
from cook.formats.gguf_writer import encode, tensor_of, write_gguf_file
from cook.formats.imatrix_file import Imatrix, ImatrixEntry
from cook.formats.quant_types import Flavour, by_name
from cook.formats.quantized_file import (
    engine_order,
    has_output_type,
    output_tensor,
    quantized_metadata,
    require_output_type,
    with_output_type,
    without_paths,
)
from cook.paths import demo_dir
from cook.recipe.active import active_bytes
from cook.recipe.groups import Group

MAINLINE, IK = Flavour.LLAMA_CPP, Flavour.IK_LLAMA_CPP
ENTRY = ImatrixEntry(np.ones((1, 32), np.float32), np.ones(1, np.float32))
WHOLE = Imatrix({str(n): ENTRY for n in range(7)}, (r"C:\texts\corpus.txt",), 3, 512, "gguf")
BARE = Imatrix({"0": ENTRY}, (), 0, None, "dat")
OF_IMATRIX = [
    f"quantize.imatrix.{key}" for key in ("file", "dataset", "entries_count", "chunks_count")
]


def written(path: Path, metadata: dict[str, bytes]) -> GgufFile:
    write_gguf_file(path, metadata, [tensor_of("x", (32,), 0, bytes(128))])
    return read_gguf(path)


@pytest.fixture
def source(tmp_path: Path) -> GgufFile:
    """The first key is one that both engines state again; the file is a shard."""
    metadata = {
        "general.file_type": encode(1),
        "general.architecture": encode("llama"),
        "split.no": encode(0, ValueType.UINT16),
        "split.count": encode(0, ValueType.UINT16),
    }
    return written(tmp_path / "m.gguf", metadata)


def put(
    source: GgufFile, flavour: Flavour, imatrix: Imatrix | None, file: str = "/home/me/imatrix.gguf"
) -> dict[str, bytes]:
    return quantized_metadata(
        source,
        flavour,
        file_type=15,
        quantization_version=2,
        imatrix=imatrix,
        imatrix_file=file,
    )


@pytest.mark.parametrize(
    ("flavour", "number", "keys"),
    [
        (MAINLINE, ValueType.UINT32, ["architecture", "quantization_version", "file_type"]),
        (IK, ValueType.INT32, ["file_type", "architecture", "quantization_version"]),
    ],
)
def test_mainline_moves_to_the_end_what_ik_changes_where_it_stands(
    source: GgufFile, flavour: Flavour, number: ValueType, keys: list[str]
) -> None:
    found = put(source, flavour, WHOLE)
    assert list(found) == [f"general.{key}" for key in keys] + OF_IMATRIX
    assert found["general.file_type"] == encode(15)
    values: list[int | str] = ["imatrix.gguf", "corpus.txt", 7, 3]
    kinds = [ValueType.STRING, ValueType.STRING, number, number]
    assert [found[key] for key in OF_IMATRIX] == [*map(encode, values, kinds)]


@pytest.mark.parametrize("flavour", list(Flavour))
def test_what_is_not_known_of_an_imatrix_is_not_said(source: GgufFile, flavour: Flavour) -> None:
    for imatrix, said in ((None, []), (BARE, [OF_IMATRIX[0], OF_IMATRIX[2]])):
        found = put(source, flavour, imatrix)
        assert [key for key in found if key.startswith("quantize.")] == said


def test_a_long_name_is_cut_as_the_engines_cut_it(source: GgufFile) -> None:
    found = put(source, MAINLINE, BARE, "é" * 100)
    assert found["quantize.imatrix.file"] == encode("é" * 63)


def test_paths_are_taken_out_of_a_file_that_an_engine_wrote(tmp_path: Path) -> None:
    metadata = {
        "quantize.imatrix.file": encode("/home/somebody/.cook/imatrix.gguf"),
        "quantize.imatrix.chunks_count": encode(3),
        "general.name": encode("a/b"),
    }
    assert without_paths(written(tmp_path / "m.gguf", metadata)) == {
        **metadata,
        "quantize.imatrix.file": encode("imatrix.gguf"),
    }


def test_the_order_of_tensors() -> None:
    names = ("blk.10.b", "output.weight", "blk.2.b", "blk.2.a", "Output", "blk.x.a")
    tensors = [TensorInfo(name, (1,), 0) for name in names]
    assert [t.name for t in engine_order(tensors, IK)] == list(names)
    assert [t.name for t in engine_order(tensors, MAINLINE)] == [
        *("Output", "blk.x.a", "output.weight"),
        *("blk.2.a", "blk.2.b", "blk.10.b"),
    ]


@pytest.fixture
def draft() -> GgufFile:
    return read_gguf(demo_dir() / "draft-f16.gguf")


def tied(file: GgufFile) -> GgufFile:
    return replace(file, tensors=tuple(t for t in file.tensors if t.name != "output.weight"))


def typed(file: GgufFile, type_name: str, columns: int = 256, rows: int = 2048) -> GgufFile:
    output = TensorInfo("output.weight", (columns, rows), by_name(type_name).id)
    return replace(file, tensors=(output,))


def test_an_output_in_another_type_is_the_last_tensor(draft: GgufFile) -> None:
    made = with_output_type(draft, "q6_K")
    assert made.tensors[-1] == TensorInfo("output.weight", (256, 2048), by_name("q6_K").id)
    assert {t.name for t in made.tensors} == {t.name for t in draft.tensors}
    assert has_output_type(made, "q6_K")
    assert has_output_type(draft, "f16")
    saved = 256 * 2048 * (16 - by_name("q6_K").bpw) / 8
    assert (draft.tensor_bytes or 0) - (made.tensor_bytes or 0) == saved


def test_tied_embeddings_stay_and_are_then_read_by_rows(draft: GgufFile) -> None:
    file = tied(draft)
    assert output_tensor(file).name == "token_embd.weight"
    assert not has_output_type(file, "f16"), "it has none of its own"
    before, after = active_bytes(file), active_bytes(with_output_type(file, "q4_K"))
    assert after.read_bytes < before.read_bytes
    assert after.size_bytes > before.size_bytes
    assert Group.EMBEDDINGS in {g.group for g in after.groups}


@pytest.mark.parametrize("flavour", list(Flavour))
def test_what_is_precise_may_be_any_type_without_importance(
    draft: GgufFile, flavour: Flavour
) -> None:
    for kind in ("f32", "f16", "bf16", "q8_0"):
        for wanted in ("q8_0", "q6_K", "q4_0", "iq4_nl", "q2_K", "bf16"):
            require_output_type(typed(draft, kind), wanted, flavour)
    require_output_type(typed(draft, "q4_K"), "q4_K", flavour)  # it is so already
    require_output_type(tied(draft), "q6_K", flavour)


@pytest.mark.parametrize(
    ("kind", "shape", "wanted", "flavour", "reason"),
    [
        ("q6_K", (256, 2048), "q4_K", MAINLINE, "output.weight is q6_K: as q4_K it would have"),
        ("f16", (256, 2048), "iq2_xs", MAINLINE, "iq2_xs needs importance data"),
        ("f16", (192, 2048), "q6_K", MAINLINE, "192 x 2048 cannot be q6_K, which has blocks of 25"),
        ("f16", (256, 2046), "q4_k_r4", IK, "cannot be q4_k_r4, which has blocks of 256, 4 rows"),
    ],
)
def test_what_an_output_cannot_be_is_reported(
    draft: GgufFile, kind: str, shape: tuple[int, int], wanted: str, flavour: Flavour, reason: str
) -> None:
    with pytest.raises(InputError) as failure:
        require_output_type(typed(draft, kind, *shape), wanted, flavour)
    assert reason in failure.value.message
    assert failure.value.hint


def test_a_file_without_an_output_is_no_model(draft: GgufFile, tmp_path: Path) -> None:
    file = replace(draft, path=tmp_path / "norms.gguf", tensors=())
    with pytest.raises(InputError, match=r"norms\.gguf: has no tensor .token_embd\.weight"):
        require_output_type(file, "q8_0", MAINLINE)
