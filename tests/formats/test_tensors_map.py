"""Maps of one-tensor shards: real lines, and every way in which one can lie."""

from __future__ import annotations

from pathlib import Path

import pytest

from cook.errors import InputError
from cook.formats import tensors_map
from cook.formats.naming import ShardNames
from cook.formats.tensors_map import MAX_LINE, MapEntry, read_tensors_map

# Of Thireus/GLM-4.5-Air-THIREUS-IQ1_KT-SPECIAL_SPLIT, whose 804 lines are alike: a type with a
# scale a row, counted without; a vector; a row that does not divide, listed as what it became.
REAL = """\
GLM-4.5-Air-THIREUS-IQ1_KT-SPECIAL_TENSOR-00002-of-00804.gguf:66909b833a011829aa3d724360efc9c50b3ab65eb9e67fe692cfa34a635389a8:token_embd.weight:shape=(4096, 151552):dtype=iq1_kt:elements=620756992:bytes=135790592
GLM-4.5-Air-THIREUS-IQ1_KT-SPECIAL_TENSOR-00003-of-00804.gguf:82b2e89488548b803d1f8394ba7ff6d6a7a71fb5605b88c1e5ab99d9cbda38bc:blk.0.attn_norm.weight:shape=(4096,):dtype=f32:elements=4096:bytes=16384
GLM-4.5-Air-THIREUS-IQ1_KT-SPECIAL_TENSOR-00017-of-00804.gguf:ed462f509a7ed15fd03fde77b2b9dbdcba508df43dacd675d95d5d1ac4a49207:blk.1.ffn_down_exps.weight:shape=(1408, 4096, 128):dtype=iq4_nl:elements=738197504:bytes=415236096
"""  # noqa: E501
SHA = "ab" * 32
GOOD = f"m-T-Q8_0-SPECIAL_TENSOR-00002-of-00003.gguf:{SHA}:a.weight:shape=(32, 2):dtype=q8_0"
WHOLE = f"{GOOD}:elements=64:bytes=68"


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "tensors.map"
    path.write_text(text, encoding="utf-8")
    return path


def test_real_lines(tmp_path: Path) -> None:
    found = read_tensors_map(written(tmp_path, REAL))
    assert [e.type for e in found.entries.values()] == ["iq1_kt", "f32", "iq4_nl"]
    embeddings, _, experts = found.entries.values()
    assert embeddings.shape == (4096, 151552)
    assert embeddings.size_bytes == 135790592 + 4 * 151552, "with the scale of every row"
    assert found.entries["blk.1.ffn_down_exps.weight"] is experts
    names = ShardNames("Thireus", "GLM-4.5-Air")
    assert [e.file for e in found.entries.values()] == [
        names.shard("iq1_kt", n, 804) for n in (2, 3, 17)
    ]
    assert names.repository("iq1_kt") == "Thireus/GLM-4.5-Air-THIREUS-IQ1_KT-SPECIAL_SPLIT"


def test_an_imatrix_and_what_a_later_map_may_add(tmp_path: Path) -> None:
    path = written(tmp_path, f"\n{WHOLE}:tool=7:imatrix={'cd' * 32}\r\n")
    (entry,) = read_tensors_map(path).entries.values()
    file = "m-T-Q8_0-SPECIAL_TENSOR-00002-of-00003.gguf"
    assert entry == MapEntry(2, file, SHA, "a.weight", (32, 2), "q8_0", 68, "cd" * 32)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("nothing", "expected a shard's name, found 'nothing'"),
        (GOOD, "expected elements=NUMBER, found nothing"),
        (WHOLE.replace("m-T", "../m-T"), "expected a shard's name"),
        (WHOLE.replace("-00002-of-00003", ""), "is no name of a shard"),
        (WHOLE.replace(".gguf", ".gguf.zbst"), "packed shards"),
        (WHOLE.replace(SHA, SHA.upper()), "expected a SHA-256"),
        (WHOLE.replace("a.weight", ""), "expected a tensor's name"),
        (WHOLE.replace("a.weight", "a\tb"), "expected a tensor's name"),
        (WHOLE.replace("(32, 2)", "(32, 0)"), "impossible shape"),
        (WHOLE.replace("(32, 2)", "(1, 1, 1, 1, 64)"), "impossible shape"),
        (WHOLE.replace("(32, 2)", f"({2**62}, 4)"), "impossible shape"),
        (WHOLE.replace("shape=", "form="), "expected shape=("),
        (WHOLE.replace("q8_0:", "q9_9:"), "unknown quant type"),
        (WHOLE.replace("=64", "=65"), "65 elements"),
        (WHOLE.replace("=68", "=67"), "67 bytes, and q8_0 of this shape has 68"),
        (WHOLE.replace("(32, 2)", "(16, 4)"), "does not divide"),
        (f"{WHOLE}:imatrix=no", "expected name=value (imatrix=SHA-256), found 'imatrix=no'"),
        (f"{WHOLE}:more", "expected name=value"),
        (WHOLE + "x" * MAX_LINE, "a line of"),
    ],
)
def test_a_fault_says_its_place(tmp_path: Path, line: str, message: str) -> None:
    path = written(tmp_path, f"{REAL}{line}\n")
    with pytest.raises(InputError) as raised:
        read_tensors_map(path)
    assert raised.value.message.startswith(f"{path}:4: ")
    assert message in raised.value.message


@pytest.mark.parametrize(("part", "what"), [("00002", "a.weight"), ("a.weight", "m-T")])
def test_what_occurs_twice(tmp_path: Path, part: str, what: str) -> None:
    path = written(tmp_path, f"{WHOLE}\n{WHOLE.replace(part, '00003')}\n")
    with pytest.raises(InputError, match=rf"map:2: '{what}.* occurs twice"):
        read_tensors_map(path)


def test_counts_and_sizes_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    two = f"{WHOLE}\n{WHOLE.replace('00002', '00003').replace('a.w', 'b.w')}\n"
    assert len(read_tensors_map(written(tmp_path, two)).entries) == 2
    monkeypatch.setattr(tensors_map, "MAX_TENSORS", 1)
    with pytest.raises(InputError, match=r"map:2: more than 1 tensors"):
        read_tensors_map(written(tmp_path, two))
    monkeypatch.setattr(tensors_map, "MAX_MAP_BYTES", 100)
    with pytest.raises(InputError, match="and cook reads at most 100"):
        read_tensors_map(written(tmp_path, two))


@pytest.mark.parametrize(("raw", "place"), [(b"", "1"), (b"a:b\nab\xff\n", "2:3")])
def test_no_map_at_all(tmp_path: Path, raw: bytes, place: str) -> None:
    path = written(tmp_path, "")
    path.write_bytes(raw)
    with pytest.raises(InputError, match=rf"tensors\.map:{place}: "):
        read_tensors_map(path)
