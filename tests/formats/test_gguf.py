"""The GGUF reader on real files, splits, unknown types, sparse terabytes, and hostile bytes."""

from __future__ import annotations

import os
import struct
import tracemalloc
from pathlib import Path

import pytest

from cook.errors import InputError
from cook.formats.gguf import (
    MAX_TENSORS,
    ValueType,
    header,
    is_gguf,
    read_gguf,
    read_tensor_list,
)
from cook.formats.gguf_writer import NewTensor, encode, encode_header, tensor_of, write_gguf_file

F32, Q4_K, IQ1_KT, UNKNOWN = 0, 12, 158, 777
META = {
    "general.architecture": encode("llama"),
    "llama.block_count": encode(2),
    "llama.rope.freq_base": encode(1e4),
    "tokenizer.ggml.tokens": encode(["a", "b", "ü"]),
    "tokenizer.ggml.scores": encode([0.0, -1.0, -2.0]),
    "general.quantized": encode(True),
}


TENSORS = (
    tensor_of("token_embd.weight", (2, 3), F32, struct.pack("<6f", *range(6))),
    tensor_of("blk.0.attn_q.weight", (256, 2), Q4_K, bytes(288)),
    tensor_of("blk.0.ffn_up.weight", (256, 3), IQ1_KT, bytes(180)),
)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    write_gguf_file(path, META, TENSORS)
    return path


def test_reads_what_the_writer_wrote(model: Path) -> None:
    gguf = read_gguf(model)
    assert gguf.version == 3
    assert gguf.architecture == "llama"
    assert gguf.integer("llama.block_count") == 2
    assert gguf.metadata["llama.rope.freq_base"] == 1e4
    assert gguf.metadata["general.quantized"] is True
    tokens = gguf.array("tokenizer.ggml.tokens")
    assert tokens.values() == ("a", "b", "ü")
    assert tokens.strings()[2] == "ü".encode()
    scores = gguf.array("tokenizer.ggml.scores")
    assert scores.values() == (0.0, -1.0, -2.0)
    with pytest.raises(ValueError, match="not an array of strings"):
        scores.strings()
    assert [t.type_name for t in gguf.tensors] == ["f32", "q4_K", "iq1_kt"]
    assert gguf.tensor_bytes == 24 + 288 + 180
    assert gguf.read_tensor_bytes("token_embd.weight") == struct.pack("<6f", *range(6))
    assert gguf.file_bytes == model.stat().st_size
    assert gguf.shards == (model,)
    assert is_gguf(model)


def test_typed_getters_refuse_other_types(model: Path) -> None:
    gguf = read_gguf(model)
    assert gguf.string("absent") is None
    with pytest.raises(InputError, match="is not a string"):
        gguf.string("llama.block_count")
    with pytest.raises(InputError, match="is not an integer"):
        gguf.integer("general.quantized")
    with pytest.raises(InputError, match="is not an array"):
        gguf.array("general.architecture")
    with pytest.raises(InputError, match="has no tensor 'nope"):
        gguf.tensor("nope" * 50)


def test_version_2_and_header_digest(model: Path) -> None:
    digest = read_gguf(model).header_digest
    with model.open("r+b") as file:
        file.seek(4)
        file.write(struct.pack("<I", 2))
    assert read_gguf(model).version == 2
    assert read_gguf(model).header_digest != digest


def test_unknown_types_are_kept_and_their_data_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "future.gguf"
    sizes = (("a", UNKNOWN, 50), ("b", F32, 32), ("c", UNKNOWN, 7))
    write_gguf_file(path, META, [tensor_of(n, (8,), i, bytes(size)) for n, i, size in sizes])
    gguf = read_gguf(path)
    assert gguf.tensors[0].type_name == "type 777"
    assert gguf.tensors[0].size_bytes is None
    assert gguf.tensor_bytes is None
    with pytest.raises(InputError, match="type 777 is of unknown size"):
        gguf.read_tensor_bytes("a")


def test_equals_python_gguf(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    upstream = pytest.importorskip("gguf")
    path = tmp_path / "upstream.gguf"
    writer = upstream.GGUFWriter(path, "llama")
    writer.add_block_count(3)
    writer.add_uint64("big", 1 << 63)
    writer.add_int8("small", -5)
    writer.add_float64("exact", 0.1)
    writer.add_token_list([b"x", b"\xff\xfe", b"z"])
    writer.add_tensor("w", numpy.arange(12, dtype=numpy.float32).reshape(3, 4))
    writer.add_tensor("h", numpy.ones((2, 2, 2), dtype=numpy.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    gguf = read_gguf(path)
    assert gguf.metadata["big"] == 1 << 63
    assert gguf.metadata["small"] == -5
    assert gguf.metadata["exact"] == 0.1
    tokens = gguf.array("tokenizer.ggml.tokens")
    assert tokens.strings() == (b"x", b"\xff\xfe", b"z")
    assert tokens.values()[1] == "\ufffd\ufffd"
    reader = upstream.GGUFReader(path)
    for ours, theirs in zip(gguf.tensors, reader.tensors, strict=True):
        assert (ours.name, ours.shape) == (theirs.name, tuple(int(n) for n in theirs.shape))
        assert ours.type_id == theirs.tensor_type
        assert gguf.data_offset + ours.offset == theirs.data_offset
        assert gguf.read_tensor_bytes(ours.name) == theirs.data.tobytes()


def test_a_sparse_terabyte_costs_only_its_header(tmp_path: Path) -> None:
    path = tmp_path / "huge.gguf"
    rows = 1 << 22
    huge = NewTensor("blk.0.ffn_up.weight", (1 << 16, rows), F32, rows << 18, lambda: ())
    tokens = encode([f"token{i}" for i in range(50_000)])
    path.write_bytes(encode_header({**META, "tokenizer.ggml.tokens": tokens}, [huge]))
    header = path.stat().st_size
    try:
        os.truncate(path, header + (rows << 18))
    except OSError as error:
        pytest.skip(f"no sparse files of a terabyte here: {error}")
    tracemalloc.start()
    gguf = read_gguf(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert gguf.tensor_bytes == 1 << 40
    assert gguf.data_offset == header
    assert peak < 16 << 20


def write_split(folder: Path, count: int, **changes: int) -> list[Path]:
    paths = []
    for index in range(count):
        meta = dict(META) if index == 0 else {}
        meta["split.no"] = encode(changes.get(f"no{index}", index), ValueType.UINT16)
        meta["split.count"] = encode(changes.get(f"count{index}", count), ValueType.UINT16)
        meta["split.tensors.count"] = encode(changes.get("total", count), ValueType.INT32)
        path = folder / f"m-{index + 1:05d}-of-{count:05d}.gguf"
        name = f"blk.{changes.get(f'name{index}', index)}.weight"
        write_gguf_file(path, meta, [tensor_of(name, (4,), F32, bytes([index]) * 16)])
        paths.append(path)
    return paths


@pytest.mark.parametrize("entry", [0, 2])
def test_a_split_is_read_from_any_shard(tmp_path: Path, entry: int) -> None:
    paths = write_split(tmp_path, 3)
    gguf = read_gguf(paths[entry])
    assert gguf.path == paths[0]
    assert gguf.shards == tuple(paths)
    assert gguf.architecture == "llama"
    assert [t.shard for t in gguf.tensors] == [0, 1, 2]
    assert gguf.read_tensor_bytes("blk.2.weight") == bytes([2]) * 16
    assert gguf.file_bytes == sum(p.stat().st_size for p in paths)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"no1": 2}, "00002-of-00003.gguf: split.no: is 2, expected 1"),
        ({"count2": 2}, "00003-of-00003.gguf: split.count: is 2, expected 3"),
        ({"total": 9}, "split.tensors.count: is 9, the shards have 3"),
        ({"name2": 0}, "tensor 'blk.0.weight' is in two shards"),
    ],
)
def test_inconsistent_splits(tmp_path: Path, changes: dict[str, int], message: str) -> None:
    paths = write_split(tmp_path, 3, **changes)
    with pytest.raises(InputError, match=message):
        read_gguf(paths[0])


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    paths = write_split(tmp_path, 3)
    paths[1].unlink()
    for read in (read_gguf, header):
        with pytest.raises(InputError, match=r"m-00002-of-00003\.gguf: missing"):
            read(paths[2])


def test_a_renamed_shard_cannot_be_followed(tmp_path: Path) -> None:
    paths = write_split(tmp_path, 2)
    renamed = paths[0].rename(tmp_path / "renamed.gguf")
    with pytest.raises(InputError, match="one shard of 2") as caught:
        read_gguf(renamed)
    assert caught.value.hint is not None
    assert "00001-of-00002" in caught.value.hint


def text(value: str | bytes, length: int | None = None) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw) if length is None else length) + raw


def file_of(
    *, keys: int = 0, tensors: int = 0, body: bytes = b"", version: int = 3, data: int = 64
) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", version, tensors, keys) + body
    return head + bytes(-len(head) % 32 + data)


def one_key(value: bytes, key: bytes = text("k")) -> bytes:
    return file_of(keys=1, body=key + value)


def tensor(
    name: str = "t", shape: tuple[int, ...] = (4,), type_id: int = 0, offset: int = 0
) -> bytes:
    dims = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return text(name) + dims + struct.pack("<IQ", type_id, offset)


def one_tensor(shape: tuple[int, ...] = (4,), type_id: int = 0, offset: int = 0) -> bytes:
    return file_of(tensors=1, body=tensor("t", shape, type_id, offset))


def u32(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}I", *numbers)


def u64(number: int) -> bytes:
    return struct.pack("<Q", number)


STRING, ARRAY = ValueType.STRING, ValueType.ARRAY
BROKEN: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "magic at byte 0: needs 4 bytes and the file ends after 0"),
    "binary magic": (b"\x89PNG" + bytes(40), r"magic at byte 0: is '\\x89PNG'"),
    "big endian": (b"GGUF\0\0\0\3" + bytes(40), "version at byte 4: the file is big-endian"),
    "version 0": (file_of(version=0), "version at byte 4: 0 is not supported"),
    "version 1": (file_of(version=1), "version at byte 4: 1 is not supported"),
    "version 4": (file_of(version=4), "version at byte 4: 4 is not supported"),
    "tensors 2^63": (file_of(tensors=1 << 63), f"is more than {MAX_TENSORS}"),
    "tensors lie": (file_of(tensors=100_000), "tensor count at byte 8: 100000 cannot fit"),
    "keys lie": (file_of(keys=60_000), "metadata count at byte 16: 60000 cannot fit"),
    "key empty": (one_key(u32(4, 1), text("")), "metadata key 0 at byte 24: length 0"),
    "key not utf-8": (one_key(u32(4, 1), text(b"\xff\xfe")), "byte 24: is not UTF-8"),
    "key escapes": (one_key(u32(4, 1), text("\x1b[2J")), "control characters"),
    "key twice": (file_of(keys=2, body=(text("k") + u32(4, 1)) * 2), "'k' occurs twice"),
    "value type 13": (one_key(u32(13)), "k at byte 33: unknown value type 13"),
    "nested array": (one_key(u32(ARRAY, ARRAY) + u64(1)), "arrays of arrays"),
    "string 2^62": (one_key(u32(STRING) + u64(1 << 62)), "k at byte 45: needs 4611"),
    "numbers run out": (one_key(u32(ARRAY, 4) + u64(5000)), "k at byte 41: 5000 cannot fit"),
    "strings 2^60": (
        one_key(u32(ARRAY, STRING) + u64(1 << 60)),
        "k at byte 41: 1152921504606846976 is more",
    ),
    "strings lie": (one_key(u32(ARRAY, STRING) + u64(5000)), "k at byte 41: 5000 cannot fit"),
    "string in array": (
        one_key(u32(ARRAY, STRING) + u64(2) + text("a") + u64(1 << 50)),
        r"k\[1\] at byte 66: needs 1125899906842624 bytes",
    ),
    "alignment 0": (one_key(u32(4, 0), text("general.alignment")), "0 is no power of two"),
    "alignment 48": (one_key(u32(4, 48), text("general.alignment")), "48 is no power of two"),
    "alignment 2^31": (one_key(u32(4, 1 << 31), text("general.alignment")), "is no power of two"),
    "alignment text": (
        one_key(u32(STRING) + text("32"), text("general.alignment")),
        "general.alignment at byte .*: is no integer",
    ),
    "tensor twice": (
        file_of(tensors=2, body=tensor() + tensor(offset=32)),
        "tensor name 1 at byte .*: 't' occurs twice",
    ),
    "dims 5": (one_tensor((1, 1, 1, 1, 1)), "t: dimensions at byte 33: 5 is more than 4"),
    "shape overflow": (one_tensor((1 << 32, 1 << 32)), "t: shape at byte .* overflows"),
    "shape hidden by 0": (one_tensor((0, 1 << 40, 1 << 40)), "overflows"),
    "row": (one_tensor((320,), Q4_K), "rows of 320 do not divide into q4_K blocks of 256"),
    "misaligned": (one_tensor(offset=4), "t: offset at byte .*: 4 is not a multiple of 32"),
    "offset outside": (one_tensor(offset=1 << 40), "t: data at byte .*: the file ends after"),
    "unknown outside": (one_tensor(type_id=UNKNOWN, offset=1 << 40), "the file ends after"),
    "data cut": (one_tensor((1000,)), "cut short: 128 of 4064 bytes are here"),
    "overlap": (
        file_of(tensors=2, body=tensor("a", (16,)) + tensor("b", (4,), offset=32)),
        "b: data at byte .*: overlaps 'a'",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_files(tmp_path: Path, case: str) -> None:
    content, message = BROKEN[case]
    path = tmp_path / "broken.gguf"
    path.write_bytes(content)
    tracemalloc.start()
    with pytest.raises(InputError, match=message) as caught:
        read_gguf(path)
    assert tracemalloc.get_traced_memory()[1] < 4 << 20
    tracemalloc.stop()
    assert str(caught.value).startswith(f"{path}: ")
    assert str(caught.value).isprintable()


def test_a_header_alone(tmp_path: Path) -> None:
    path = tmp_path / "header.gguf"
    path.write_bytes(encode_header(META, TENSORS))
    with pytest.raises(InputError, match="cut short: "):
        read_gguf(path)
    assert read_gguf(path, complete=False).tensor_bytes == 492


def test_cut_anywhere(model: Path) -> None:
    content = model.read_bytes()
    cut = model.with_name("cut.gguf")
    for length in range(read_gguf(model).data_offset + 1):
        cut.write_bytes(content[:length])
        with pytest.raises(InputError):
            read_gguf(cut)


def test_not_files(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.gguf"
    os.mkfifo(pipe)
    for path, message in (
        (pipe, "not a regular file"),
        (tmp_path / "none.gguf", "cannot be read: No such file"),
        ("a\0b.gguf", "cannot be read"),
    ):
        with pytest.raises(InputError, match=message):
            read_gguf(path)


def test_data_that_shrinks_after_the_header_was_read(model: Path) -> None:
    gguf = read_gguf(model)
    os.truncate(model, gguf.data_offset + 10)
    with pytest.raises(InputError, match="needs 24 bytes and there are 10"):
        gguf.read_tensor_bytes("token_embd.weight")


def test_tensor_list_errors_name_the_line(tmp_path: Path) -> None:
    path = tmp_path / "list.tsv"
    good = "a.weight\t4 x 2\tbf16\n"
    for line, message in (
        ("b\t4", ":2: expected name"),
        ("b\tfour\tf32", ":2: expected name"),
        ("b\t0 x 4\tf32", ":2: impossible shape"),
        ("b\t1 x 1 x 1 x 1 x 1\tf32", ":2: impossible shape"),
        ("a.weight\t4\tf32", ":2: 'a.weight' occurs twice"),
        ("b\t4\tf31", "unknown quant type"),
    ):
        path.write_text(good + line)
        with pytest.raises(InputError, match=message):
            read_tensor_list(path)
    path.write_text(f"# comment\n\n{good}")
    (only,) = read_tensor_list(path)
    assert (only.shape, only.type_name, only.size_bytes) == ((4, 2), "bf16", 16)


def test_a_header_is_read_again_when_any_shard_changes(tmp_path: Path) -> None:
    paths = write_split(tmp_path, 2)
    assert header(paths[0]) is header(paths[0])
    (tmp_path / "other").mkdir()
    write_split(tmp_path / "other", 2, name1=7)[1].replace(paths[1])
    assert [t.name for t in header(paths[0]).tensors] == ["blk.0.weight", "blk.7.weight"]
    with pytest.raises(InputError, match=r"none\.gguf: No such file"):
        header(tmp_path / "none.gguf")
