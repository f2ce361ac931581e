"""The GGUF writer: encoding, alignment, whole files or none, a model cut into several; upstream's
reader agrees."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cook.errors import InputError, InternalError
from cook.files import atomic_write
from cook.formats.gguf import MetadataArray, ValueType, read_gguf, read_shard
from cook.formats.gguf_writer import (
    NewTensor,
    SplitLimit,
    copy_of,
    encode,
    tensor_of,
    write_gguf_file,
    write_split,
)
from cook.formats.naming import shards_of
from cook.formats.quant_types import Flavour
from cook.paths import demo_dir

METADATA = {"general.architecture": encode("llama"), "list": encode(["a", "b"])}


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
    st.dictionaries(NAMES, st.binary(max_size=70), max_size=6),
)
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory,
    metadata: dict[str, bool | int | float | str],
    tensors: dict[str, bytes],
) -> None:
    path = tmp_path_factory.getbasetemp() / "round.gguf"
    new = [tensor_of(n, (len(data),), 24, data) for n, data in tensors.items()]
    write_gguf_file(path, {k: encode(v) for k, v in metadata.items()}, new)
    gguf = read_gguf(path)
    assert dict(gguf.metadata) == metadata
    assert {t.name: gguf.read_tensor_bytes(t.name) for t in gguf.tensors} == tensors


def test_the_demo_draft_rewritten_is_byte_identical(tmp_path: Path) -> None:
    path, copy = demo_dir() / "draft-f16.gguf", tmp_path / "copy.gguf"
    draft = read_gguf(path)
    write_gguf_file(copy, draft.raw_metadata(), [copy_of(draft, t.name) for t in draft.tensors])
    assert copy.read_bytes() == path.read_bytes()


def test_upstreams_reader_agrees(tmp_path: Path) -> None:
    upstream = pytest.importorskip("gguf")
    path = tmp_path / "a.gguf"
    metadata = {"general.architecture": encode("llama"), "list": encode([1.5, 2.5])}
    write_gguf_file(path, metadata, [tensor_of("w", (4, 2), 0, struct.pack("<8f", *range(8)))])
    reader = upstream.GGUFReader(path)
    assert reader.get_field("general.architecture").contents() == "llama"
    assert reader.get_field("list").contents() == [1.5, 2.5]
    assert reader.tensors[0].data.ravel().tolist() == list(range(8))


def test_a_failure_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(b"old")

    def failing() -> Iterator[bytes]:
        yield b"12"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_gguf_file(path, {}, [NewTensor("w", (1,), 0, 4, failing)])
    with pytest.raises(InternalError, match="3 bytes of 4"):
        write_gguf_file(path, {}, [NewTensor("w", (1,), 0, 4, lambda: (b"abc",))])
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


def tensors(sizes: tuple[int, ...] = (96, 5, 64, 32, 400, 1)) -> list[NewTensor]:
    """Of bytes (``i8``), so that sizes are as stated and padding is not."""
    return [tensor_of(f"t{n}", (size,), 24, bytes([n + 1]) * size) for n, size in enumerate(sizes)]


@given(
    st.lists(st.integers(1, 300), min_size=1, max_size=30),
    st.builds(SplitLimit, st.integers(1, 600))
    | st.builds(SplitLimit, st.none(), st.integers(1, 9)),
)
@example([96, 5, 64, 32, 400, 1], SplitLimit(128))  # padding counts: 96 + 32, 64 + 32
def test_a_shard_ends_where_the_next_tensor_does_not_fit(
    sizes: list[int], limit: SplitLimit
) -> None:
    every = tensors(tuple(sizes))
    shards = limit.shards(every)
    assert [t for shard in shards for t in shard] == every

    def fits(shard: tuple[NewTensor, ...]) -> bool:
        padded = sum(t.size_bytes + -t.size_bytes % 32 for t in shard)
        return len(shard) <= (limit.max_tensors or 30) and padded <= (limit.max_bytes or 10**6)

    for shard in shards:
        assert shard
        assert fits(shard) or len(shard) == 1
    for shard, after in pairwise(shards):
        assert not fits((*shard, after[0]))


@pytest.mark.parametrize("flavour", list(Flavour))
def test_shards_say_what_they_are_and_hold_what_the_whole_does(
    tmp_path: Path, flavour: Flavour
) -> None:
    limit = SplitLimit(max_tensors=4)
    metadata = {**METADATA, "general.alignment": encode(64)}
    whole = tmp_path / "model.gguf"
    write_gguf_file(whole, metadata, tensors(), alignment=64)
    (tmp_path / "split").mkdir()
    paths = write_split(
        tmp_path / "split" / "model.gguf", metadata, tensors(), limit, flavour, alignment=64
    )
    assert [p.name for p in paths] == ["model-00001-of-00002.gguf", "model-00002-of-00002.gguf"]
    assert sorted((tmp_path / "split").iterdir()) == list(paths) == list(shards_of(paths[1]))
    split, one = read_gguf(paths[1]), read_gguf(whole)
    for tensor in one.tensors:
        assert split.read_tensor_bytes(tensor.name) == one.read_tensor_bytes(tensor.name)
    keys = ["split.no", "split.count", "split.tensors.count"]
    if flavour is Flavour.LLAMA_CPP:
        keys = ["split.no", "split.tensors.count", "split.count"]
    for number, path in enumerate(paths):
        shard = read_shard(path)
        assert list(shard.metadata) == ([*metadata] if number == 0 else []) + keys
        assert shard.raw_value("split.no") == encode(number, ValueType.UINT16)
        assert shard.raw_value("split.count") == encode(2, ValueType.UINT16)
        assert shard.raw_value("split.tensors.count") == encode(6, ValueType.INT32)
    assert {k: read_shard(paths[0]).raw_value(k) for k in metadata} == metadata


def test_what_fits_is_one_file(tmp_path: Path) -> None:
    path, whole = tmp_path / "m.gguf", tmp_path / "w.gguf"
    limit = SplitLimit(10**9)
    assert write_split(path, METADATA, tensors(), limit, Flavour.LLAMA_CPP) == (path,)
    write_gguf_file(whole, METADATA, tensors())
    assert path.read_bytes() == whole.read_bytes()


def test_more_shards_than_a_split_can_count(tmp_path: Path) -> None:
    many = tensors((1,) * 200) * 328
    with pytest.raises(InputError, match="65600 shards, and a split has at most 65535"):
        write_split(tmp_path / "m.gguf", {}, many, SplitLimit(1), Flavour.LLAMA_CPP)
    assert list(tmp_path.iterdir()) == []


def test_a_limit_as_a_recipe_says_it() -> None:
    assert SplitLimit(45 * 10**9).as_typed == {"max_size": "45G"}
    assert SplitLimit(500 * 10**6).as_typed == {"max_size": "500M"}
    assert SplitLimit(max_tensors=128).as_typed == {"max_tensors": 128}


@pytest.mark.engine
@pytest.mark.parametrize("flags", [("--split-max-tensors", "5"), ("--split-max-size", "1M")])
def test_the_files_are_those_of_llama_gguf_split(
    bundled: Any, tiny_model: Path, tmp_path: Path, flags: tuple[str, str]
) -> None:
    """Byte for byte."""
    name = "llama-gguf-split"
    tool = shutil.which(name, path=bundled.facts.bin_dir) or shutil.which(name)
    if tool is None:
        pytest.skip("SKIPPED LOUDLY: no llama-gguf-split among the engine's tools or on PATH")
    argv = [tool, "--split", *flags, str(tiny_model), str(tmp_path / "theirs")]
    subprocess.run(argv, check=True, capture_output=True, env={**bundled.environment()})
    theirs = sorted(tmp_path.glob("theirs-*.gguf"))
    assert len(theirs) > 2
    file = read_gguf(tiny_model)
    number = int(flags[1].removesuffix("M"))
    limit = SplitLimit(number * 10**6) if "size" in flags[0] else SplitLimit(None, number)
    copies = [copy_of(file, t.name) for t in file.tensors]
    paths = write_split(tmp_path / "ours.gguf", file.raw_metadata(), copies, limit, bundled.flavour)
    assert [p.read_bytes() for p in paths] == [p.read_bytes() for p in theirs]
