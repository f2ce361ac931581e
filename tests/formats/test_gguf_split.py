"""A model cut into files: where, what each says of itself, and that nothing else is changed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cook.errors import InputError
from cook.formats.gguf import ValueType, read_gguf, read_shard
from cook.formats.gguf_split import SplitLimit, write_split_gguf
from cook.formats.gguf_writer import NewTensor, copy_of, encode, tensor_of, write_gguf_file
from cook.formats.naming import shards_of
from cook.formats.quant_types import Flavour

METADATA = {"general.architecture": encode("llama"), "list": encode(["a", "b"])}
SIZES = (96, 5, 64, 32, 400, 1)


def tensors(sizes: tuple[int, ...] = SIZES) -> list[NewTensor]:
    """Of bytes (``i8``), so that sizes are as stated and padding is not."""
    return [tensor_of(f"t{n}", (size,), 24, bytes([n + 1]) * size) for n, size in enumerate(sizes)]


def named(limit: SplitLimit) -> list[str]:
    return [" ".join(t.name for t in shard) for shard in limit.shards(tensors())]


@pytest.mark.parametrize(
    ("limit", "shards"),
    [
        (SplitLimit(max_tensors=4), ["t0 t1 t2 t3", "t4 t5"]),
        (SplitLimit(max_tensors=1), ["t0", "t1", "t2", "t3", "t4", "t5"]),
        (SplitLimit(max_tensors=6), ["t0 t1 t2 t3 t4 t5"]),
        (SplitLimit(128), ["t0 t1", "t2 t3", "t4", "t5"]),  # padding counts: 96 + 32, 64 + 32
        (SplitLimit(127), ["t0", "t1 t2", "t3", "t4", "t5"]),
        (SplitLimit(1), ["t0", "t1", "t2", "t3", "t4", "t5"]),
    ],
)
def test_where_it_is_cut(limit: SplitLimit, shards: list[str]) -> None:
    assert named(limit) == shards


@given(
    st.lists(st.integers(1, 300), min_size=1, max_size=30),
    st.builds(SplitLimit, st.integers(1, 600))
    | st.builds(SplitLimit, st.none(), st.integers(1, 9)),
)
def test_all_in_order_and_no_shard_empty_or_too_large(sizes: list[int], limit: SplitLimit) -> None:
    every = tensors(tuple(sizes))
    shards = limit.shards(every)
    assert [t for shard in shards for t in shard] == every
    for shard in shards:
        padded = sum(t.size_bytes + -t.size_bytes % 32 for t in shard)
        assert shard
        assert limit.max_tensors is None or len(shard) <= limit.max_tensors
        assert limit.max_bytes is None or padded <= limit.max_bytes or len(shard) == 1


@pytest.mark.parametrize("flavour", list(Flavour))
def test_shards_say_what_they_are_and_hold_what_the_whole_does(
    tmp_path: Path, flavour: Flavour
) -> None:
    limit = SplitLimit(max_tensors=4)
    metadata = {**METADATA, "general.alignment": encode(64)}
    whole = tmp_path / "model.gguf"
    write_gguf_file(whole, metadata, tensors(), alignment=64)
    (tmp_path / "split").mkdir()
    paths = write_split_gguf(
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


def test_upstreams_reader_agrees(tmp_path: Path) -> None:
    upstream = pytest.importorskip("gguf")
    paths = write_split_gguf(
        tmp_path / "m.gguf", METADATA, tensors(), SplitLimit(max_tensors=3), Flavour.LLAMA_CPP
    )
    found: dict[str, bytes] = {}
    for number, path in enumerate(paths):
        reader = upstream.GGUFReader(path)
        assert reader.get_field("split.no").contents() == number
        assert reader.get_field("split.count").contents() == 2
        assert reader.get_field("split.tensors.count").contents() == len(SIZES)
        found |= {t.name: t.data.tobytes() for t in reader.tensors}
    assert found == {t.name: b"".join(t.data()) for t in tensors() if callable(t.data)}


def test_what_fits_is_one_file(tmp_path: Path) -> None:
    path, whole = tmp_path / "m.gguf", tmp_path / "w.gguf"
    assert write_split_gguf(path, METADATA, tensors(), SplitLimit(10**9), Flavour.LLAMA_CPP) == (
        path,
    )
    write_gguf_file(whole, METADATA, tensors())
    assert path.read_bytes() == whole.read_bytes()


def test_more_shards_than_a_split_can_count(tmp_path: Path) -> None:
    many = tensors((1,) * 200) * 328
    with pytest.raises(InputError, match="65600 shards, and a split has at most 65535"):
        write_split_gguf(tmp_path / "m.gguf", {}, many, SplitLimit(1), Flavour.LLAMA_CPP)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("limit", "typed"),
    [
        (SplitLimit(45 * 10**9), {"max_size": "45G"}),
        (SplitLimit(500 * 10**6), {"max_size": "500M"}),
        (SplitLimit(max_tensors=128), {"max_tensors": 128}),
    ],
)
def test_as_a_recipe_says_it(limit: SplitLimit, typed: dict[str, Any]) -> None:
    assert limit.as_typed == typed


@pytest.mark.engine
@pytest.mark.parametrize("flags", [("--split-max-tensors", "5"), ("--split-max-size", "1M")])
def test_the_files_are_those_of_llama_gguf_split(
    bundled: Any, tiny_model: Path, tmp_path: Path, flags: tuple[str, str]
) -> None:
    """Byte for byte."""
    tool = shutil.which("llama-gguf-split", path=bundled.facts.bin_dir) or shutil.which(
        "llama-gguf-split"
    )
    if tool is None:
        pytest.skip("SKIPPED LOUDLY: no llama-gguf-split beside the engine's tools or on PATH")
    argv = [tool, "--split", *flags, str(tiny_model), str(tmp_path / "theirs")]
    subprocess.run(argv, check=True, capture_output=True, env={**bundled.environment()})
    theirs = sorted(tmp_path.glob("theirs-*.gguf"))
    assert len(theirs) > 2
    file = read_gguf(tiny_model)
    number = int(flags[1].removesuffix("M"))
    limit = SplitLimit(number * 10**6) if "size" in flags[0] else SplitLimit(None, number)
    paths = write_split_gguf(
        tmp_path / "ours.gguf",
        file.raw_metadata(),
        [copy_of(file, t.name) for t in file.tensors],
        limit,
        bundled.flavour,
    )
    assert [p.read_bytes() for p in paths] == [p.read_bytes() for p in theirs]
