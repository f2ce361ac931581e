"""What a recipe's references come to: files, stand-ins for a plan, choices among several."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cook.errors import InputError, PrerequisiteError
from cook.formats.gguf import ValueType, read_gguf
from cook.formats.gguf_writer import copy_of, encode, write_gguf_file
from cook.graph.step import source
from cook.job.locate import local_path, locate
from cook.recipe.sources import HubRef

Writer = Callable[..., Path]


@pytest.fixture
def model(tmp_path: Path, make_tiny_model: Writer) -> bytes:
    return make_tiny_model(tmp_path / "made.gguf").read_bytes()


def ref(text: str) -> HubRef:
    return HubRef.parse(text)


def test_a_plan_reads_the_header_and_knows_the_digest(
    hub: Any, model: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The tiny model is smaller than what a plan would ask of a real one.
    monkeypatch.setattr("cook.hub.download.FIRST_BYTES", 1000)
    commit = hub.add("org/m", {"m-F16.gguf": model})
    planned = locate(ref("hf://org/m"), plan_only=True)
    assert planned.left_bytes == len(model)
    assert planned.origin.commit == commit
    sent = sum(
        int(s.headers["range"].split("-")[1]) + 1 for s in hub.seen if s.path.startswith("/blob/")
    )
    assert sent < len(model) / 4
    file = read_gguf(planned.path)
    assert file.file_bytes == len(model)
    assert planned.path.stat().st_blocks * 512 < len(model) / 2
    # What a build then finds has the same name in every key.
    built = locate(ref("hf://org/m"))
    assert built.source.digest == planned.source.digest
    assert built.source.digest == source([tmp_path / "made.gguf"]).digest
    assert read_gguf(built.path).header_digest == file.header_digest
    again = locate(ref("hf://org/m"), plan_only=True)
    assert again.left_bytes == 0
    assert again.path == built.path


def test_a_split_model_is_planned_and_fetched_whole(
    hub: Any, tmp_path: Path, make_tiny_model: Writer
) -> None:
    shards = _split(make_tiny_model(tmp_path / "whole.gguf"))
    hub.add("org/big", {f"BF16/{p.name}": p.read_bytes() for p in shards})
    planned = locate(ref("hf://org/big/BF16"), plan_only=True)
    wanted = source(shards)
    assert planned.source.digest == wanted.digest
    assert planned.source.size_bytes == planned.left_bytes == wanted.size_bytes
    assert len(read_gguf(planned.path).shards) == len(shards)
    # Any shard names the whole.
    built = locate(ref(f"hf://org/big/BF16/{shards[1].name}"))
    assert built.source.digest == wanted.digest
    # Engines open the other shards by name, so the link's name must stay.
    assert built.source.path.name == shards[0].name
    bytes_of = [[p.read_bytes() for p in each] for each in (read_gguf(built.path).shards, shards)]
    assert bytes_of[0] == bytes_of[1]
    hub.add("org/cut", {p.name: p.read_bytes() for p in shards[:-1]})
    with pytest.raises(InputError, match=rf"{shards[-1].name}: this shard of {len(shards)} is not"):
        local_path(ref("hf://org/cut"))


def test_of_several_models_one_is_named(hub: Any, model: bytes) -> None:
    hub.add("org/m", {"m-Q8_0.gguf": model, "m-Q4_K.gguf": model, "mmproj-F16.gguf": model})
    with pytest.raises(InputError, match=r"several models: m-Q4_K.gguf \(.*\), m-Q8_0.gguf") as got:
        local_path(ref("hf://org/m"))
    assert got.value.hint == "add the file's path: hf://org/m/m-Q4_K.gguf"
    assert local_path(ref("hf://org/m/m-Q8")).name == "m-Q8_0.gguf"


def test_a_branch_is_pinned_and_moves(hub: Any, model: bytes) -> None:
    first = hub.add("org/m", {"m.gguf": model})
    before = locate(ref("hf://org/m@main"))
    second = hub.add("org/m", {"README.md": b"new"})
    after = locate(ref("hf://org/m@main"))
    assert [before.origin.commit, after.origin.commit] == [first, second]
    assert before.source.digest == after.source.digest
    assert hub.count("GET /blob/") == 1  # the same bytes under another commit


def test_texts_come_whole_even_for_a_plan(hub: Any) -> None:
    text = b"some words\n" * 10_000
    hub.add("org/texts", {"wiki.test.raw": text})
    found = locate(ref("hf://org/texts/wiki.test.raw"), plan_only=True)
    assert found.path.read_bytes() == text
    assert found.left_bytes == 0


def test_what_holds_no_model_is_refused(hub: Any, model: bytes) -> None:
    hub.add("org/m", {"m.gguf": b"GGUG" + bytes(100_000)})
    with pytest.raises(InputError, match=r"hf://org/m: m.gguf: magic at byte 0"):
        locate(ref("hf://org/m"), plan_only=True)
    hub.add("org/evil", {"../../evil.gguf": model, "a/../../evil.gguf": model})
    with pytest.raises(InputError, match="holds no GGUF"):
        local_path(ref("hf://org/evil"))


def test_a_safetensors_plan_says_its_size(hub: Any) -> None:
    hub.add("org/m", {"config.json": b"{}", "model.safetensors": bytes(200_000)})
    with pytest.raises(PrerequisiteError, match=r"195.31 KiB of safetensors to download and conv"):
        locate(ref("hf://org/m"), plan_only=True)
    with pytest.raises(PrerequisiteError, match=r"no convert_hf_to_gguf\.py was found"):
        locate(ref("hf://org/m"))


def _split(whole: Path) -> list[Path]:
    """``whole`` as three shards, as llama-gguf-split lays them out."""
    file, paths = read_gguf(whole), []
    third = -(-len(file.tensors) // 3)
    for number in range(3):
        metadata = {
            "split.no": encode(number, ValueType.UINT16),
            "split.count": encode(3, ValueType.UINT16),
            "split.tensors.count": encode(len(file.tensors), ValueType.INT32),
        }
        metadata |= file.raw_metadata() if not number else {}
        tensors = file.tensors[number * third : (number + 1) * third]
        paths.append(whole.with_name(f"m-BF16-{number + 1:05d}-of-00003.gguf"))
        write_gguf_file(paths[-1], metadata, [copy_of(file, t.name) for t in tensors])
    return paths
