"""The type tables against the engines' own libraries, and sizes against published logs."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import pytest

from cook.errors import InputError
from cook.formats.gguf import read_tensor_list
from cook.formats.quant_types import (
    FTYPES,
    IK_LLAMA_CPP,
    LLAMA_CPP,
    TYPES,
    by_id,
    by_name,
    fallback,
    ftype_by_name,
    needs_imatrix,
    stored_type,
)

DATA = Path(__file__).parents[1] / "data"
ML, IK = LLAMA_CPP, IK_LLAMA_CPP


@pytest.mark.parametrize(("engine", "types", "ftypes"), [(ML, 35, 39), (IK, 92, 87)])
def test_tables_are_complete_and_ids_unique(engine: str, types: int, ftypes: int) -> None:
    ids = [t.id for t in TYPES.values() if engine in t.engines]
    assert len(set(ids)) == len(ids) == types
    assert sum(engine in f.engines for f in FTYPES.values()) == ftypes


def test_every_reference_resolves_on_its_engines() -> None:
    for ftype in FTYPES.values():
        assert ftype.engines <= TYPES[ftype.default].engines
        assert TYPES[ftype.default].quantizable or ftype.name.startswith("Q4_0_")
    for row in TYPES.values():
        assert row.imatrix <= row.engines
        if row.base is not None:
            assert row.interleave > 1
            assert row.engines <= TYPES[row.base].engines


@pytest.mark.parametrize(
    ("name", "bpw", "meta"),
    [
        ("q1_0", 1.125, 0),
        ("nvfp4", 4.5, 0),
        ("tq1_0", 1.6875, 0),
        ("iq1_kt", 1.75, 4),
        ("iq2_kl", 2.6875, 2),
        ("iq4_kss", 4.0, 4),
        ("iq6_k", 6.625, 0),
        ("q8_KV", 8.0, 8),
        ("q8_KV_r8", 8.0, 4),
        ("q8_k_r8", 8.0625, 0),
        ("bf16", 16.0, 0),
    ],
)
def test_bits_per_weight(name: str, bpw: float, meta: int) -> None:
    assert (TYPES[name].bpw, TYPES[name].row_meta_bytes) == (bpw, meta)


def test_row_and_tensor_bytes() -> None:
    assert TYPES["iq1_kt"].row_bytes(4096) == 4 + 16 * 56
    assert TYPES["q8_0"].tensor_bytes((64, 3, 2)) == 6 * 68
    assert TYPES["f32"].tensor_bytes(()) == 4
    assert TYPES["i2_s"].tensor_bytes((128, 2)) == 64 + 32
    with pytest.raises(InputError, match="blocks of 256"):
        TYPES["q4_K"].row_bytes(320)


def test_names_in_any_case_and_suggestions() -> None:
    assert by_name("Q8_kv").name == "q8_KV"
    assert ftype_by_name("iq1_kt").default == "iq1_kt"
    with pytest.raises(InputError, match="unknown quant type 'iq1kt'") as caught:
        by_name("iq1kt")
    assert "iq1_kt" in (caught.value.hint or "")
    with pytest.raises(InputError, match="unknown base type") as caught:
        ftype_by_name("q4km")
    assert "Q4_K_M" in (caught.value.hint or "")
    with pytest.raises(InputError):
        by_name("x" * 100_000)


def test_ids() -> None:
    found = by_id(158)
    assert found.name == "iq1_kt"
    assert by_id(5) is None
    for flavour, name in ((None, "q1_0"), (ML, "q1_0"), (IK, "q1_0_g128")):
        spelled = by_id(41, flavour)
        assert spelled.name == name


@pytest.mark.parametrize(
    ("name", "ne0", "flavour", "expected"),
    [
        ("q4_K", 512, ML, None),
        ("iq1_s", 320, ML, "iq4_nl"),
        ("q2_K", 320, ML, "q4_0"),
        ("tq1_0", 320, ML, "q4_0"),
        ("q4_K", 320, ML, "q5_0"),
        ("q5_K", 320, ML, "q5_1"),
        ("q6_K", 320, ML, "q8_0"),
        ("q6_K", 300, ML, "f16"),
        ("q8_0", 300, ML, "f16"),
        ("q2_0", 32, ML, "q4_0"),
        ("iq1_kt", 320, IK, "iq4_nl"),
        ("iq5_ks", 320, IK, "q5_0"),
        ("q5_K", 320, IK, "q6_0"),
        ("iq6_k", 320, IK, "q8_0"),
        ("q8_k_r8", 320, IK, "q8_0"),
        ("q8_0", 320, IK, None),
    ],
)
def test_silent_fallback(name: str, ne0: int, flavour: str, expected: str | None) -> None:
    assert fallback(name, ne0, flavour) == expected


@pytest.mark.parametrize(
    ("name", "ne0", "flavour"),
    [
        ("nvfp4", 96, ML),
        ("q8_0", 300, IK),
        ("q8_k_r16", 320, IK),
        ("iq1_kt", 300, IK),
    ],
)
def test_no_fallback_is_an_error(name: str, ne0: int, flavour: str) -> None:
    with pytest.raises(InputError, match=f"rows of {ne0} do not"):
        fallback(name, ne0, flavour)


def test_stored_type_of_interleaved() -> None:
    assert stored_type("blk.0.ffn_up.weight", (256, 8), "q4_k_r4", IK) == "q4_k_r4"
    assert stored_type("blk.0.ffn_up.weight", (256, 6), "q4_k_r4", IK) == "q4_K"
    assert stored_type("blk.0.ffn_up.weight", (256, 4), "iq4_xs_r8", IK) == "iq4_xs"
    assert stored_type("token_embd.weight", (256, 8), "q8_k_r8", IK) == "q8_0"
    assert stored_type("blk.0.ffn_up.weight", (320, 8), "q4_k_r4", IK) == "q5_0"
    with pytest.raises(InputError, match="replace iq1_s_r4 by iq1_s"):
        stored_type("token_embd.weight", (320, 8), "iq1_s_r4", IK)


@pytest.mark.parametrize(
    ("tensor", "name", "ftype", "flavour", "expected"),
    [
        ("blk.0.ffn_up.weight", "iq3_xxs", "IQ3_XXS", ML, True),
        ("blk.0.ffn_up.weight", "iq3_xxs", "IQ3_XXS", IK, False),
        ("blk.0.ffn_up.weight", "iq1_kt", "IQ1_KT", IK, True),
        ("blk.0.ffn_up.weight", "iq2_kl", "IQ2_KL", IK, False),
        ("blk.0.ffn_up.weight", "q2_K", "q2_k_s", ML, True),
        ("blk.0.ffn_up.weight", "q2_K", "Q2_K", ML, False),
        ("blk.0.ffn_up.weight", "iq2_s_r4", "Q8_0", IK, True),
        ("token_embd.weight", "iq2_s", "IQ2_S", ML, False),
        ("output.weight", "iq1_kt", "IQ1_KT", IK, False),
        ("token_embd.weight", "iq2_xs", "IQ2_XS", ML, True),
    ],
)
def test_imatrix_need(tensor: str, name: str, ftype: str, flavour: str, expected: bool) -> None:
    assert needs_imatrix(tensor, name, ftype, flavour) is expected


def test_parameters_in_repeating_layers() -> None:
    tensors = read_tensor_list(DATA / "ling-flash-2.0.tensors.tsv")
    repeating = sum(t.elements for t in tensors if t.name.startswith("blk."))
    assert f"{repeating / 1e9:.3f}" == "101.602"


def check_against(library: ctypes.CDLL, engine: str, exceptions: set[str]) -> None:
    library.ggml_type_name.restype = ctypes.c_char_p
    library.ggml_blck_size.restype = ctypes.c_int64
    library.ggml_type_size.restype = ctypes.c_size_t
    library.ggml_row_size.restype = ctypes.c_size_t
    library.ggml_row_size.argtypes = [ctypes.c_int, ctypes.c_int64]
    library.ggml_quantize_requires_imatrix.restype = ctypes.c_bool
    names = {
        name.decode(): number
        for number in range(43 if engine == ML else 400)
        if (name := library.ggml_type_name(number))
        and name != b"DEPRECATED"
        and library.ggml_type_size(number)
    }
    ours = {t.name: t for t in TYPES.values() if engine in t.engines}
    assert names == {t.name: t.id for t in ours.values()}
    for name, row in ours.items():
        if name in exceptions:
            continue
        assert library.ggml_blck_size(row.id) == row.block, name
        assert library.ggml_type_size(row.id) == row.block_bytes, name
        assert library.ggml_row_size(row.id, 1024) == row.row_bytes(1024), name
        aborts = library.ggml_quantize_requires_imatrix(row.id)
        assert needs_imatrix("token_embd.weight", row, "F16", engine) is aborts, name


@pytest.mark.engine
def test_types_equal_the_bundled_library() -> None:
    ggml = pytest.importorskip("llama_cpp._ggml", reason="llama-cpp-python is not installed")
    check_against(ggml.libggml, ML, set())


@pytest.mark.ik
def test_types_equal_an_ik_build() -> None:
    build = os.environ.get("COOK_ENGINE_IK")
    if not build:
        pytest.skip("COOK_ENGINE_IK is not set")
    found = sorted(Path(build).rglob("libggml.so")) or sorted(
        Path(build).parent.rglob("libggml.so")
    )
    assert found, f"no libggml.so under {build}"
    # q8_K has other blocks there (never in files); i2_s pretends a block of 1.
    check_against(ctypes.CDLL(str(found[0])), IK, {"q8_K", "i2_s"})
