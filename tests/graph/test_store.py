"""The store keeps whole artifacts or none, under keys that are equal where their parts are."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cook import files
from cook.graph.store import SEAL, Artifact, Store, _seal, as_read_back, key_of
from tests.stored import stored


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("COOK_HOME", str(tmp_path / "home"))
    return Store(tmp_path / "store")


@pytest.fixture
def artifact(store: Store) -> Artifact:
    return put(store, {"a": 1})


def put(store: Store, parts: dict[str, object], data: bytes = b"data", **fields: Any) -> Artifact:
    return stored(store, {"model.gguf": data}, parts, result={"x": 1}, **fields)


def found_wrong(store: Store) -> list[str]:
    return [fault.message for fault in store.verify()]


def test_what_was_committed_is_found(store: Store, artifact: Artifact) -> None:
    assert store.find("quantize", artifact.key) == artifact
    assert store.find("quantize", "0" * 64) is None
    assert artifact.file("model.gguf").read_bytes() == b"data"
    assert found_wrong(store) == []
    store.remove(artifact.directory)
    assert list(store.entries()) == []


def test_an_artifact_under_another_key_is_not_that(store: Store, artifact: Artifact) -> None:
    artifact.directory.rename(artifact.directory.with_name("0" * 64))
    assert store.find("quantize", "0" * 64) is None
    assert found_wrong(store) == [f"is recorded under another key, {artifact.key}"]


NOT_AS_WRITTEN = "artifact.json is missing, unreadable, or not as it was written"


def truncate(artifact: Artifact) -> None:
    artifact.file("model.gguf").write_bytes(b"da")


def change(artifact: Artifact) -> None:
    artifact.file("model.gguf").write_bytes(b"DATA")


def put_a_pipe_in_place_of_the_description(artifact: Artifact) -> None:
    artifact.meta.unlink()
    os.mkfifo(artifact.meta)


def tear(artifact: Artifact) -> None:
    artifact.meta.write_text("{")


def edit_the_result(artifact: Artifact) -> None:
    artifact.meta.write_text(artifact.meta.read_text().replace('"x": 1', '"x": 2'))


def forge_the_parts_of_the_key(artifact: Artifact) -> None:
    document = json.loads(artifact.meta.read_text())
    document["key_parts"] = {"a": 2}
    artifact.meta.write_text(json.dumps(document | {SEAL: _seal(document)}))


@pytest.mark.parametrize(
    ("damage", "message", "still_found"),
    [
        (truncate, "has 2 bytes, recorded 4", False),
        (change, "has other content than was recorded", True),
        (put_a_pipe_in_place_of_the_description, NOT_AS_WRITTEN, False),
        (tear, NOT_AS_WRITTEN, False),
        (edit_the_result, NOT_AS_WRITTEN, False),
        (forge_the_parts_of_the_key, "its key does not follow from its recorded inputs", True),
    ],
)
def test_what_is_damaged_is_found_and_replaced(
    store: Store, artifact: Artifact, damage: Any, message: str, still_found: bool
) -> None:
    damage(artifact)
    assert found_wrong(store) == [message]
    assert (store.find("quantize", artifact.key) is not None) is still_found
    again = put(store, {"a": 1}, b"better")
    assert store.find("quantize", artifact.key) == again
    assert found_wrong(store) == []


def test_a_look_at_what_was_just_made_reads_nothing(
    store: Store, artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> str:
        raise AssertionError(f"{path} was read")

    monkeypatch.setattr(files, "file_sha256", refuse)
    assert store.damage(artifact) is None


def test_mending_removes_what_was_made_from_it_and_nothing_else(store: Store) -> None:
    model = put(store, {"a": 1}, b"model")
    measured = put(store, {"inputs": {"model": model.key}}, b"31.75")
    judged = put(store, {"inputs": {"figure": measured.key}}, b"best")
    # What a conversion made is a source to those after it; here it is one of two shards.
    digest = model.files[0].sha256
    shards = {"source": {"model.gguf": digest, "other.gguf": "1" * 64}}
    sharded = put(store, {"inputs": {"source": "sha256:" + "2" * 64}}, b"x", made_from=shards)
    put_together = put(store, {"x": 1}, pieces=frozenset({model.key}))
    other = put(store, {"a": 2}, b"model")
    model.file("model.gguf").write_bytes(b"m0del")
    (other.directory / "stray").touch()
    faults = tuple(store.verify())
    assert len(faults) == 2
    removed = {a.key for a in store.mend(faults)}
    assert removed == {measured.key, judged.key, sharded.key, put_together.key}
    assert [a.key for a in store.entries()] == [other.key]
    assert found_wrong(store) == []


def test_a_source_that_was_remembered_wrongly_goes_with_what_was_made_from_it_but_stays_itself(
    store: Store, tmp_path: Path
) -> None:
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


def test_a_workspace_leaves_nothing_after_an_error(store: Store) -> None:
    with suppress(RuntimeError), store.workspace() as directory:
        (directory / "half").write_bytes(b"x")
        raise RuntimeError
    assert list((store.root / "tmp").iterdir()) == []


def test_workspaces_of_the_dead_are_swept_and_of_the_living_kept(store: Store) -> None:
    dead = store.root / "tmp" / "dead"
    dead.mkdir(parents=True)
    (dead / "half").write_bytes(b"12345")
    dead.with_suffix(".lock").touch()
    with store.workspace() as living:
        assert living.is_dir()
        assert not dead.exists()
        assert Store(store.root).sweep_workspaces() == 0
        assert living.is_dir()


def test_two_processes_make_it_once(store: Store) -> None:
    """A second cook waits at the lock, looks again, and finds the first one's work."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        with store.locked("quantize", "k"):
            os.write(writer, b"x")
            put(store, {"a": 1})
        os._exit(0)
    os.read(reader, 1)
    with store.locked("quantize", "k"):
        assert store.find("quantize", key_of({"a": 1})) is not None
    assert os.waitpid(child, 0)[1] == 0


FLOATS = st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | FLOATS | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
PARTS = st.dictionaries(st.text(), JSON, max_size=4)


@settings(deadline=None)
@given(PARTS, PARTS)
def test_keys_are_equal_exactly_where_the_parts_are_stored_or_not(
    one: dict[str, object], other: dict[str, object]
) -> None:
    assert key_of(as_read_back(one)) == key_of(one)
    assert key_of(dict(reversed(one.items()))) == key_of(one)
    assert (key_of(one) == key_of(other)) == (in_order(one) == in_order(other))


def in_order(value: object) -> str:
    """``value`` in words, the items of every mapping in order."""
    if isinstance(value, dict):
        return str({name: in_order(value[name]) for name in sorted(value)})
    return str([in_order(item) for item in value]) if isinstance(value, list) else repr(value)


def test_a_key_is_the_hash_of_canonical_json() -> None:
    text = b'{"kind":"x","params":{"a":[1,2.5,null],"b":"\\u00e4"}}'
    parts = {"params": {"b": "ä", "a": (1, 2.5, None)}, "kind": "x"}
    assert key_of(parts) == hashlib.sha256(text).hexdigest()
    with pytest.raises(ValueError, match="not JSON compliant"):
        key_of({"speed": float("nan")})
