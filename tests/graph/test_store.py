"""The store keeps whole artifacts or none."""

from __future__ import annotations

import json
import os
from pathlib import Path

from cook.graph.store import META, Artifact, Store


def put(store: Store, parts: dict[str, object], data: bytes = b"data") -> Artifact:
    from cook.graph.store import _key_of

    key = _key_of(parts)
    with store.workspace() as directory:
        (directory / "model.gguf").write_bytes(data)
        return store.commit(
            directory,
            kind="quantize",
            key=key,
            label="quantize X",
            key_parts=parts,
            result={"x": 1},
            seconds=1.5,
            work=10.0,
        )


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
    meta.write_text(json.dumps(document))
    assert [f.message for f in store.verify()] == [
        "its key does not follow from its recorded inputs"
    ]


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
    store.remove(artifact)
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
    from cook.graph.store import _key_of

    with store.locked("quantize", "k"):
        assert store.find("quantize", _key_of({"a": 1})) is not None
    assert os.waitpid(child, 0)[1] == 0
