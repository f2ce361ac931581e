"""Importance matrices: both formats, round trips, coverage, and the real converter as judge."""

from __future__ import annotations

import math
import os
import struct
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cook.errors import InputError
from cook.formats.gguf import TensorInfo, read_gguf
from cook.formats.gguf_writer import NewTensor, encode, tensor_of, write_gguf_file
from cook.formats.imatrix_file import (
    Imatrix,
    ImatrixEntry,
    coverage,
    entry_for,
    read_imatrix,
    with_experts,
    write_dat,
    write_gguf,
)
from cook.formats.quant_types import IK_LLAMA_CPP, LLAMA_CPP

DENSE, MOE = "blk.0.attn_q.weight", "blk.1.ffn_up_exps.weight"
TENSORS = (TensorInfo(DENSE, (8, 4), 1), TensorInfo(MOE, (8, 4, 6), 1))


def entry(counts: list[float], ne0: int = 8, seed: int = 1) -> ImatrixEntry:
    random = np.random.default_rng(seed)
    seen = np.array(counts, dtype=np.float32)
    sums = random.random((len(counts), ne0), dtype=np.float32) * seen[:, None] * 3
    return ImatrixEntry(sums, seen)


@pytest.fixture
def collected() -> Imatrix:
    """As mainline collects it: 3 chunks of 512, expert 2 of 6 saw nothing."""
    entries = {DENSE: entry([1536]), MOE: entry([900, 17, 0, 1, 333, 700], seed=2)}
    return Imatrix(entries, ("a.txt", "b.txt"), 3, 512, "gguf")


def test_gguf_round_trip_is_exact(collected: Imatrix, tmp_path: Path) -> None:
    write_gguf(collected, tmp_path / "a.gguf")
    found = read_imatrix(tmp_path / "a.gguf")
    assert (found.datasets, found.chunk_count, found.chunk_size) == (("a.txt", "b.txt"), 3, 512)
    assert found.format == "gguf"
    for name, original in collected.entries.items():
        np.testing.assert_array_equal(found.entries[name].sums, original.sums, strict=True)
        np.testing.assert_array_equal(found.entries[name].counts, original.counts, strict=True)
    write_gguf(found, tmp_path / "b.gguf")
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()
    gguf = read_gguf(tmp_path / "a.gguf")
    assert gguf.string("general.type") == "imatrix"
    assert {t.name: t.shape for t in gguf.tensors} == {
        f"{DENSE}.in_sum2": (8,),
        f"{DENSE}.counts": (1,),
        f"{MOE}.in_sum2": (8, 6),
        f"{MOE}.counts": (1, 6),
    }


def test_dat_layout_and_missing_experts(collected: Imatrix, tmp_path: Path) -> None:
    path = tmp_path / "a.dat"
    write_dat(collected, path)
    raw = path.read_bytes()
    assert struct.unpack_from("<ii", raw) == (2, len(DENSE))
    assert raw.endswith(struct.pack("<ii", 3, 5) + b"b.txt")
    found = read_imatrix(path)
    assert (found.format, found.chunk_count, found.chunk_size) == ("dat", 3, None)
    flat = found.entries[MOE]
    assert flat.sums.shape == (1, 48)
    assert flat.counts[0] == 2, "ceil(900 tokens / 512)"
    assert (flat.sums[0, 16:24] == 2).all()
    split = with_experts(found, TENSORS).entries[MOE]
    assert split.counts.tolist() == [2, 2, 0, 2, 2, 2]
    np.testing.assert_allclose(split.mean(), collected.entries[MOE].mean(), rtol=1e-6)
    assert (split.mean()[2] == 1).all()
    write_dat(found, tmp_path / "b.dat")
    write_dat(with_experts(found, TENSORS), tmp_path / "c.dat")
    assert (tmp_path / "b.dat").read_bytes() == raw
    assert (tmp_path / "c.dat").read_bytes() == raw


@settings(max_examples=40, deadline=None, database=None)
@given(st.lists(st.sampled_from([0, 1, 2, 512, 513, 9000]), min_size=1, max_size=9), st.data())
def test_imatrix_round_trips(
    tmp_path_factory: pytest.TempPathFactory, counts: list[int], data: st.DataObject
) -> None:
    path = tmp_path_factory.getbasetemp() / "round.imatrix"
    values = st.floats(0, 1e6, width=32)
    drawn = data.draw(st.lists(values, min_size=3 * len(counts), max_size=3 * len(counts)))
    seen = np.array(counts, np.float32)
    sums = np.where(seen[:, None] > 0, np.array(drawn, np.float32).reshape(-1, 3), 0)
    entry = ImatrixEntry(sums.astype(np.float32), seen)
    imatrix = Imatrix({"x": entry}, (), 1, 512, "gguf")
    write_gguf(imatrix, path)
    np.testing.assert_array_equal(read_imatrix(path).entries["x"].sums, entry.sums)
    if not seen.any():
        return
    write_dat(imatrix, path)
    first = path.read_bytes()
    write_dat(read_imatrix(path), path)
    assert path.read_bytes() == first
    shape = (3, 8) if len(counts) == 1 else (3, 8, len(counts))
    split = with_experts(read_imatrix(path), [TensorInfo("x", shape, 1)]).entries["x"]
    np.testing.assert_allclose(split.mean(), entry.mean(), rtol=1e-6, atol=1e-30)


def test_entries_without_any_data_are_left_out_of_a_dat(tmp_path: Path) -> None:
    entries = {"a.weight": entry([0, 0]), "b.weight": entry([4])}
    write_dat(Imatrix(entries, (), 1, 4, "gguf"), tmp_path / "a.dat")
    assert list(read_imatrix(tmp_path / "a.dat").entries) == ["b.weight"]


def test_dat_to_gguf_keeps_the_means(collected: Imatrix, tmp_path: Path) -> None:
    write_dat(collected, tmp_path / "a.dat")
    split = with_experts(read_imatrix(tmp_path / "a.dat"), TENSORS)
    write_gguf(split, tmp_path / "b.gguf")
    found = read_imatrix(tmp_path / "b.gguf")
    assert found.chunk_size == 512
    assert found.entries[MOE].counts.tolist() == [1024, 1024, 0, 1024, 1024, 1024]
    for name in (DENSE, MOE):
        means = found.entries[name].mean(), collected.entries[name].mean()
        np.testing.assert_allclose(*means, rtol=1e-6)


def test_a_dat_without_trailer(tmp_path: Path) -> None:
    path = tmp_path / "old.dat"
    path.write_bytes(dat_of(dat_entry()))
    found = read_imatrix(path)
    assert (found.datasets, found.chunk_count) == ((), 0)


def test_lengths_must_fit_the_tensors(collected: Imatrix, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has 8 values, its tensor needs 16 x 1"):
        with_experts(collected, [TensorInfo(DENSE, (16, 4), 1)])
    with pytest.raises(InputError, match="counts 6 experts, not 3"):
        with_experts(collected, [TensorInfo(MOE, (16, 4, 3), 1)])


@pytest.mark.parametrize(
    ("experts", "missing", "ik", "mainline"),
    [
        (1, 0, True, True),
        (1, 1, False, False),
        (29, 1, False, True),
        (30, 1, True, True),
        (256, 12, True, True),
        (256, 13, False, True),
        (256, 256, False, False),
    ],
)
def test_the_engines_skip_rules(experts: int, missing: int, ik: bool, mainline: bool) -> None:
    counts = [0.0] * missing + [5.0] * (experts - missing)
    imatrix = Imatrix({"x": entry(counts)}, (), 1, 512, "gguf")
    (found,) = coverage(imatrix)
    assert (found.experts, found.missing) == (experts, missing)
    assert (found.stored_by_ik, found.stored_by_llama_cpp) == (ik, mainline)
    assert found.usable(IK_LLAMA_CPP) == (experts - missing if ik else 0)
    assert found.usable(LLAMA_CPP) == (experts - missing if mainline else 0)


def test_aliases_of_ik() -> None:
    names = ("blk.0.ffn_up_exps.weight", "blk.0.ffn_up.weight", "blk.0.attn_kv_b.weight")
    imatrix = Imatrix({name: entry([2]) for name in names}, (), 1, 512, "dat")
    for borrower, lender in (
        ("blk.0.ffn_gate_exps.weight", names[0]),
        ("blk.0.ffn_gate_up_exps.weight", names[0]),
        ("blk.0.ffn_gate.weight", names[1]),
        ("blk.0.attn_v_b.weight", names[2]),
    ):
        assert entry_for(imatrix, borrower, IK_LLAMA_CPP) is imatrix.entries[lender]
        assert entry_for(imatrix, borrower, LLAMA_CPP) is None
    assert entry_for(imatrix, "blk.1.ffn_gate_exps.weight", IK_LLAMA_CPP) is None


def dat_text(value: str, length: int | None = None) -> bytes:
    return struct.pack("<i", len(value) if length is None else length) + value.encode()


def dat_entry(
    name: bytes = dat_text("w"), calls: int = 2, values: int = 2, *floats: float
) -> bytes:
    numbers = floats or (1.0, 2.0)
    return name + struct.pack(f"<ii{len(numbers)}f", calls, values, *numbers)


def dat_of(*entries: bytes, count: int | None = None, tail: bytes = b"") -> bytes:
    number = len(entries) if count is None else count
    return struct.pack("<i", number) + b"".join(entries) + tail


NAN, INF = math.nan, math.inf
BROKEN_DAT: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "entry count at byte 0: needs 4 bytes"),
    "text": (b"hello imatrix " * 9, "entry count at byte 0: 1819043176 is impossible"),
    "negative entries": (dat_of(count=-1), "-1 is impossible"),
    "entries lie": (dat_of(dat_entry(), count=2), "2 is impossible"),
    "name negative": (dat_of(dat_entry(dat_text("w", -5))), "length -5 is not in 1 to 1024"),
    "name lies": (dat_of(dat_entry(dat_text("w", 1 << 30))), "length 1073741824 is not in 1"),
    "name twice": (dat_of(dat_entry(), dat_entry()), "'w' occurs twice"),
    "no calls": (dat_of(dat_entry(calls=0)), "w at byte 9: 0 calls and 2 values"),
    "no values": (dat_of(dat_entry(values=0)), "0 values"),
    "values lie": (dat_of(dat_entry(values=2**31 - 1)), "needs 8589934588 bytes"),
    "nan": (dat_of(dat_entry(dat_text("w"), 2, 2, 1.0, NAN)), "w: sum 1 is not finite"),
    "trailer cut": (dat_of(dat_entry(), tail=b"\1\0"), "chunk count at byte 25: needs 4"),
    "dataset lies": (
        dat_of(dat_entry(), tail=struct.pack("<ii", 1, 1 << 30)),
        "dataset at byte 29: length 1073741824",
    ),
    "more than all": (
        dat_of(dat_entry(), tail=struct.pack("<ii", 1, 0) + b"??"),
        "end at byte 33: 2 bytes more than expected",
    ),
}


@pytest.mark.parametrize("case", BROKEN_DAT)
def test_broken_dat(tmp_path: Path, case: str) -> None:
    content, message = BROKEN_DAT[case]
    path = tmp_path / "broken.dat"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        read_imatrix(path)
    assert str(caught.value).startswith(f"{path}: ")


KEYS = {
    "imatrix.datasets": encode(["a"]),
    "imatrix.chunk_count": encode(1),
    "imatrix.chunk_size": encode(512),
}


def floats(name: str, *values: float, type_id: int = 0) -> NewTensor:
    raw = struct.pack(f"<{len(values)}{'f' if type_id == 0 else 'e'}", *values)
    return tensor_of(name, (len(values),), type_id, raw)


SUMS, COUNTS = floats("w.in_sum2", 1.0, 2.0), floats("w.counts", 1.0)
BROKEN_GGUF: dict[str, tuple[Mapping[str, bytes], list[NewTensor], str]] = {
    "a model": ({"general.architecture": encode("llama")}, [], "chunk_size is missing"),
    "no chunk size": ({**KEYS, "imatrix.chunk_size": encode(0)}, [SUMS, COUNTS], "is missing"),
    "datasets text": ({**KEYS, "imatrix.datasets": encode("a")}, [SUMS, COUNTS], "is missing"),
    "no entries": (KEYS, [], "has no imatrix entries"),
    "other tensors": (KEYS, [floats("w.weight", 1.0)], "has no imatrix entries"),
    "no counts": (KEYS, [SUMS], "has no tensor 'w.counts'"),
    "no sums": (KEYS, [COUNTS], "has no tensor 'w.in_sum2'"),
    "f16": (KEYS, [floats("w.in_sum2", 1.0, 2.0, type_id=1), COUNTS], "must be f32"),
    "indivisible": (KEYS, [floats("w.in_sum2", 1, 2, 3), floats("w.counts", 1, 2)], "3 sums for 2"),
    "no count": (KEYS, [SUMS, tensor_of("w.counts", (0,), 0, b"")], "2 sums for 0 counts"),
    "empty": (KEYS, [tensor_of("w.in_sum2", (0,), 0, b""), COUNTS], "0 sums for 1 counts"),
    "negative": (KEYS, [SUMS, floats("w.counts", -1.0)], "a count is negative"),
    "inf count": (KEYS, [SUMS, floats("w.counts", INF)], "count 0 is not finite"),
    "nan sum": (KEYS, [floats("w.in_sum2", NAN, 1.0), COUNTS], "w: sum 0 is not finite"),
}


@pytest.mark.parametrize("case", BROKEN_GGUF)
def test_broken_gguf(tmp_path: Path, case: str) -> None:
    metadata, tensors, message = BROKEN_GGUF[case]
    path = tmp_path / "broken.gguf"
    write_gguf_file(path, metadata, tensors)
    with pytest.raises(InputError, match=message) as caught:
        read_imatrix(path)
    assert str(path) in str(caught.value)


def test_a_huge_file_is_no_imatrix(tmp_path: Path) -> None:
    path = tmp_path / "huge.dat"
    path.touch()
    try:
        os.truncate(path, 1 << 40)
    except OSError as error:
        pytest.skip(f"no sparse files of a terabyte here: {error}")
    with pytest.raises(InputError, match="is too large for an imatrix"):
        read_imatrix(path)


def convert(engine: Any, source: Path, output: Path, form: str) -> Imatrix:
    tool = engine.tool("imatrix")
    subprocess.run(
        [tool, "-m", "x", "--in-file", source, "-o", output, "--output-format", form],
        cwd=source.parent,
        check=True,
        capture_output=True,
        env={"HOME": str(source.parent)},
        timeout=60,
    )
    return read_imatrix(output)


def close(ours: Imatrix, theirs: Imatrix) -> None:
    assert ours.entries.keys() == theirs.entries.keys()
    for name, mine in ours.entries.items():
        yours = theirs.entries[name]
        np.testing.assert_allclose(mine.sums.ravel(), yours.sums.ravel(), rtol=1e-6)
        np.testing.assert_array_equal(mine.counts, yours.counts)


@pytest.mark.engine
def test_a_gguf_becomes_what_llama_imatrix_makes_of_it(
    collected: Imatrix, bundled: Any, tmp_path: Path
) -> None:
    write_gguf(collected, tmp_path / "in.gguf")
    theirs = convert(bundled, tmp_path / "in.gguf", tmp_path / "theirs.dat", "dat")
    write_dat(collected, tmp_path / "ours.dat")
    close(read_imatrix(tmp_path / "ours.dat"), theirs)
    unchanged = convert(bundled, tmp_path / "in.gguf", tmp_path / "out.gguf", "gguf")
    close(collected, unchanged)
    assert unchanged.datasets == collected.datasets


@pytest.mark.engine
def test_dat_to_gguf_equals_llama_imatrix(collected: Imatrix, bundled: Any, tmp_path: Path) -> None:
    write_dat(collected, tmp_path / "in.dat")
    theirs = convert(bundled, tmp_path / "in.dat", tmp_path / "theirs.gguf", "gguf")
    write_gguf(read_imatrix(tmp_path / "in.dat"), tmp_path / "ours.gguf")
    close(read_imatrix(tmp_path / "ours.gguf"), theirs)
    # Its counts are one for all experts; the split finds the missing one all the same.
    split = with_experts(theirs, TENSORS).entries[MOE]
    assert split.counts.tolist() == [1024, 1024, 0, 1024, 1024, 1024]
