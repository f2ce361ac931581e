"""Mutated files never raise anything but InputError, and never cost memory they do not have."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cook.errors import InputError
from cook.formats.gguf import MetadataArray, TensorInfo, ValueType, read_gguf
from cook.formats.gguf_writer import encode, encode_header, tensor_of, write_gguf_file
from cook.formats.imatrix_file import (
    Imatrix,
    ImatrixEntry,
    coverage,
    read_imatrix,
    with_experts,
    write_dat,
    write_gguf,
)
from cook.formats.kld_base import read_base_header
from cook.formats.vocabulary import compare, read_vocabulary

LIMIT_BYTES = 100 << 20
WORDS = st.one_of(
    st.integers(0, 2**64 - 1),
    st.sampled_from([0, 1, 7, 8, 9, 255, 2**31 - 1, 2**31, 2**32 - 1, 2**48, 2**63 - 1, 2**64 - 1]),
)
# (where as a share of the file, how wide, what)
MUTATIONS = st.lists(
    st.tuples(st.floats(0, 1, exclude_max=True), st.sampled_from([1, 4, 8]), WORDS),
    min_size=1,
    max_size=4,
)
CUTS = st.one_of(st.none(), st.floats(0, 1, exclude_max=True))


def gguf_header() -> bytes:
    metadata = {
        "general.architecture": encode("llama"),
        "general.alignment": encode(32),
        "split.count": encode(1, ValueType.UINT16),
        "tokenizer.ggml.model": encode("gpt2"),
        "tokenizer.ggml.pre": encode("default"),
        "tokenizer.ggml.tokens": encode(["a", "bc", "def", ""]),
        "tokenizer.ggml.scores": encode([0.5, 1.5]),
        "tokenizer.ggml.bos_token_id": encode(1),
        "flag": encode(True),
        "wide": encode(1, ValueType.UINT64),
    }
    tensors = [
        tensor_of("token_embd.weight", (4, 2), 0, bytes(32)),
        tensor_of("blk.0.x.weight", (256,), 158, bytes(60)),
        tensor_of("blk.1.y.weight", (2, 2, 2), 777, bytes(9)),
    ]
    return encode_header(metadata, tensors) + bytes(192)


def small_imatrix() -> Imatrix:
    ones = np.ones((3, 4), np.float32)
    return Imatrix(
        {
            "a.weight": ImatrixEntry(ones[:1], np.ones(1, np.float32)),
            "b_exps.weight": ImatrixEntry(ones, np.array([1, 0, 2], np.float32)),
        },
        ("text",),
        1,
        512,
        "gguf",
    )


def use_gguf(path: Path) -> None:
    """Everything a caller may ask of a file that was accepted."""
    gguf = read_gguf(path)
    for value in gguf.metadata.values():
        if isinstance(value, MetadataArray):
            assert len(value.values()) == len(value)
    assert str(gguf.tensor_bytes)
    for tensor in gguf.tensors:
        if tensor.size_bytes is not None:
            assert len(gguf.read_tensor_bytes(tensor.name)) == tensor.size_bytes
    vocabulary = read_vocabulary(gguf)
    assert compare(vocabulary, vocabulary) == ()


def use_imatrix(path: Path) -> None:
    imatrix = read_imatrix(path)
    assert len(coverage(imatrix)) == len(imatrix.entries)
    for entry in imatrix.entries.values():
        assert entry.mean().shape == entry.sums.shape


def mutate(content: bytes, changes: list[tuple[float, int, int]], cut: float | None) -> bytes:
    data = bytearray(content)
    for share, width, word in changes:
        at = int(share * len(data))
        data[at : at + width] = struct.pack("<Q", word)[: min(width, len(data) - at)]
    return bytes(data if cut is None else data[: int(cut * len(data))])


def attempt(path: Path, content: bytes, use: Callable[[Path], object]) -> None:
    path.write_bytes(content)
    message = str(path)
    tracemalloc.start()
    try:
        use(path)
    except InputError as error:
        message = str(error)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < LIMIT_BYTES
    assert message.startswith(str(path))
    assert message.isprintable()


def sample(kind: str, folder: Path) -> tuple[bytes, Callable[[Path], object]]:
    path = folder / "sample"
    if kind == "gguf":
        return gguf_header(), use_gguf
    if kind == "imatrix.gguf":
        write_gguf(small_imatrix(), path)
    elif kind == "imatrix.dat":
        write_dat(small_imatrix(), path)
    else:
        return b"_logits_" + struct.pack("<3i", 512, 1000, 2) + bytes(64), read_base_header
    return path.read_bytes(), use_imatrix


KINDS = ("gguf", "imatrix.gguf", "imatrix.dat", "kld")


def fuzz(kind: str, folder: Path, examples: int) -> None:
    content, use = sample(kind, folder)
    use_path = folder / "mutated"
    attempt(use_path, content, use)

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(MUTATIONS, CUTS)
    def run(changes: list[tuple[float, int, int]], cut: float | None) -> None:
        attempt(use_path, mutate(content, changes, cut), use)

    run()


@pytest.mark.parametrize("kind", KINDS)
def test_mutated_files(kind: str, tmp_path: Path) -> None:
    fuzz(kind, tmp_path, 100)


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_mutated_files_at_length(kind: str, tmp_path: Path) -> None:
    fuzz(kind, tmp_path, 20_000)


@pytest.mark.parametrize("reader", [read_gguf, read_imatrix, read_base_header])
def test_noise(reader: Callable[[Path], object], tmp_path: Path) -> None:
    @settings(max_examples=50, deadline=None, database=None)
    @given(
        st.binary(max_size=200), st.sampled_from([b"", b"GGUF\3\0\0\0", b"\1\0\0\0", b"_logits_"])
    )
    def run(noise: bytes, prefix: bytes) -> None:
        attempt(tmp_path / "noise", prefix + noise, reader)

    run()


NAMES = st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=12)
SCALARS = st.one_of(
    st.booleans(),
    st.integers(0, 2**32 - 1),
    st.floats(width=32, allow_nan=False),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
)


@settings(max_examples=40, deadline=None, database=None)
@given(
    st.dictionaries(NAMES, SCALARS, max_size=6),
    st.dictionaries(NAMES, st.tuples(st.integers(0, 500), st.binary(max_size=70)), max_size=6),
)
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory,
    metadata: dict[str, bool | int | float | str],
    tensors: dict[str, tuple[int, bytes]],
) -> None:
    path = tmp_path_factory.getbasetemp() / "round.gguf"
    new = [tensor_of(n, (len(data),), 24, data) for n, (_, data) in tensors.items()]
    write_gguf_file(path, {k: encode(v) for k, v in metadata.items()}, new)
    gguf = read_gguf(path)
    assert dict(gguf.metadata) == metadata
    assert {t.name: gguf.read_tensor_bytes(t.name) for t in gguf.tensors} == {
        n: data for n, (_, data) in tensors.items()
    }


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
