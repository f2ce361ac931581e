"""The store keeps whole artifacts or none."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from cook import files
from cook.graph.store import META, SEAL, Artifact, Store, _seal
from tests.stored import stored


def put(store: Store, parts: dict[str, object], data: bytes = b"data", **fields: Any) -> Artifact:
    return stored(store, {"model.gguf": data}, parts, result={"x": 1}, **fields)


def test_what_was_committed_is_found(tmp_path: Path) -> None:
    store = Store(tmp_path)
    artifact = put(store, {"a": 1})
    assert store.find("quantize", artifact.key) == artifact
    assert artifact.file("model.gguf").read_bytes() == b"data"
    assert list(store.verify()) == []


def test_another_key_is_not_found(tmp_path: Path) -> None:
    store = Store(tmp_path)
    put(store, {"a": 1})
    assert store.find("quantize", "0" * 64) is None


def test_a_truncated_file_is_not_found_and_is_told(tmp_path: Path) -> None:
    store = Store(tmp_path)
    artifact = put(store, {"a": 1})
    artifact.file("model.gguf").write_bytes(b"da")
    assert store.find("quantize", artifact.key) is None
    assert [f.message for f in store.verify()] == ["has 2 bytes, recorded 4"]


def test_a_pipe_in_place_of_the_description_is_not_waited_for(tmp_path: Path) -> None:
    store = Store(tmp_path)
    artifact = put(store, {"a": 1})
    artifact.meta.unlink()
    os.mkfifo(artifact.meta)
    assert store.find("quantize", artifact.key) is None
    assert [f.path for f in store.verify()] == [artifact.directory]


def test_changed_content_of_the_same_size_is_told(tmp_path: Path) -> None:
    store = Store(tmp_path)
    artifact = put(store, {"a": 1})
    artifact.file("model.gguf").write_bytes(b"DATA")
    assert [f.message for f in store.verify()] == ["has other content than was recorded"]


def test_a_forged_key_is_told(tmp_path: Path) -> None:
    store = Store(tmp_path)
    artifact = put(store, {"a": 1})
    meta = artifact.directory / META
    document = json.loads(meta.read_text())
    document["key_parts"] = {"a": 2}
    document[SEAL] = _seal(document)
    meta.write_text(json.dumps(document))
    assert [f.message for f in store.verify()] == [
        "its key does not follow from its recorded inputs"
    ]


def test_an_edited_result_is_not_believed(tmp_path: Path) -> None:
    store = Store(tmp_path)
    artifact = put(store, {"a": 1})
    meta = artifact.directory / META
    meta.write_text(meta.read_text().replace('"x": 1', '"x": 2'))
    assert store.find("quantize", artifact.key) is None
    assert [f.message for f in store.verify()] == [
        "artifact.json is missing, unreadable, or not as it was written"
    ]


def test_a_look_at_what_was_just_made_reads_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COOK_HOME", str(tmp_path / "home"))
    store = Store(tmp_path)
    artifact = put(store, {"a": 1})

    def refuse(path: Path) -> str:
        raise AssertionError(f"{path} was read")

    with monkeypatch.context() as patch:
        patch.setattr(files, "file_sha256", refuse)
        assert store.damage(artifact) is None
    stat = artifact.file("model.gguf").stat()
    artifact.file("model.gguf").write_bytes(b"dAta")
    os.utime(artifact.file("model.gguf"), ns=(stat.st_atime_ns, stat.st_mtime_ns))
    fault = store.damage(artifact)
    assert fault.message == "has other content than was recorded"


def test_mending_removes_what_was_made_from_it_and_nothing_else(tmp_path: Path) -> None:
    store = Store(tmp_path)
    model = put(store, {"a": 1}, b"model")
    measured = put(store, {"inputs": {"model": model.key}}, b"31.75")
    judged = put(store, {"inputs": {"figure": measured.key}}, b"best")
    # What a conversion made is a source to those after it; here it is one of two shards.
    digest = model.files[0].sha256
    shards = {"source": {"model.gguf": digest, "other.gguf": "1" * 64}}
    sharded = put(store, {"inputs": {"source": "sha256:" + "2" * 64}}, b"x", made_from=shards)
    beside = put(store, {"a": 2}, b"model")
    model.file("model.gguf").write_bytes(b"m0del")
    (beside.directory / "stray").touch()
    faults = tuple(store.verify())
    assert len(faults) == 2
    removed = store.mend(faults)
    assert {a.key for a in removed} == {measured.key, judged.key, sharded.key}
    assert [a.key for a in store.entries()] == [beside.key]
    assert list(store.verify()) == []


def test_a_source_that_was_remembered_wrongly_is_told_and_what_was_made_from_it_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COOK_HOME", str(tmp_path / "home"))
    store = Store(tmp_path / "home" / "store")
    model = tmp_path / "model.gguf"
    model.write_bytes(b"model")
    wrong = f"sha256:{'0' * 64}"
    files.remember(model, wrong)
    artifact = put(store, {"inputs": {"source": wrong}})
    (fault,) = store.verify()
    assert fault.path == model
    assert [a.key for a in store.mend([fault])] == [artifact.key]
    assert model.read_bytes() == b"model"
    assert list(store.entries()) == []


def test_damaged_artifact_is_replaced(tmp_path: Path) -> None:
    store = Store(tmp_path)
    artifact = put(store, {"a": 1})
    (artifact.directory / META).write_text("{")
    assert store.find("quantize", artifact.key) is None
    again = put(store, {"a": 1}, b"better")
    assert store.find("quantize", artifact.key) == again
    assert list(store.verify()) == []


def test_a_workspace_leaves_nothing_after_an_error(tmp_path: Path) -> None:
    store = Store(tmp_path)
    try:
        with store.workspace() as directory:
            (directory / "half").write_bytes(b"x")
            raise RuntimeError
    except RuntimeError:
        pass
    assert list((tmp_path / "tmp").iterdir()) == []


def test_workspaces_of_the_dead_are_swept_and_of_the_living_kept(tmp_path: Path) -> None:
    store = Store(tmp_path)
    dead = tmp_path / "tmp" / "dead"
    dead.mkdir(parents=True)
    (dead / "half").write_bytes(b"12345")
    dead.with_suffix(".lock").touch()
    with store.workspace() as living:
        assert living.is_dir()
        assert not dead.exists()
        assert Store(tmp_path).sweep_workspaces() == 0
        assert living.is_dir()


def test_remove(tmp_path: Path) -> None:
    store = Store(tmp_path)
    artifact = put(store, {"a": 1})
    store.remove(artifact.directory)
    assert list(store.entries()) == []


def test_two_processes_make_it_once(tmp_path: Path) -> None:
    """A second cook waits at the lock, looks again, and finds the first one's work."""
    store = Store(tmp_path)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        with store.locked("quantize", "k"):
            os.write(writer, b"x")
            put(store, {"a": 1})
        os._exit(0)
    os.read(reader, 1)
    from cook.graph.store import key_of

    with store.locked("quantize", "k"):
        assert store.find("quantize", key_of({"a": 1})) is not None
    assert os.waitpid(child, 0)[1] == 0
