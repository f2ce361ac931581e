"""Sources are hashed once, and again when they change."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from cook.errors import InputError
from cook.graph import digest


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COOK_HOME", str(tmp_path / "home"))


def test_digest_is_the_sha256_of_the_bytes(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"model")
    source = digest.source([file])
    assert source.digest == "sha256:" + hashlib.sha256(b"model").hexdigest()
    assert source.size_bytes == 5
    assert not source.provisional


def test_second_look_reads_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"model")
    first = digest.source([file])

    def refuse(path: Path) -> str:
        raise AssertionError(path)

    monkeypatch.setattr(digest, "file_sha256", refuse)
    assert digest.source([file]) == first


def test_changed_file_is_hashed_again(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"model")
    first = digest.source([file])
    file.write_bytes(b"MODEL")
    os.utime(file, ns=(1, 1))
    assert digest.source([file]).digest != first.digest


def test_a_plan_does_not_read_a_huge_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a"
    with file.open("wb") as stream:
        stream.write(b"head")
        stream.truncate(1 << 40)
    planned = digest.source([file], plan_only=True)
    assert planned.provisional
    assert planned.size_bytes == 1 << 40


def test_shards_are_one_source(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    a.write_bytes(b"1")
    b.write_bytes(b"2")
    assert digest.source([a, b]).digest != digest.source([b, a]).digest
    assert digest.source([a, b]).size_bytes == 2


def test_absent_file_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        digest.source([tmp_path / "absent"])
