"""What a source is named by (tests/test_files.py has the hashing itself)."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from cook.errors import InputError
from cook.graph.step import source


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COOK_HOME", str(tmp_path / "home"))


def test_digest_is_the_sha256_of_the_bytes(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"model")
    made = source([file])
    assert made.digest == "sha256:" + hashlib.sha256(b"model").hexdigest()
    assert made.size_bytes == 5
    assert not made.provisional


def test_a_plan_does_not_read_a_huge_source(
    tmp_path: Path,
) -> None:
    file = tmp_path / "a"
    with file.open("wb") as stream:
        stream.write(b"head")
        stream.truncate(1 << 40)
    planned = source([file], plan_only=True)
    assert planned.provisional
    assert planned.size_bytes == 1 << 40


def test_shards_are_one_source(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    a.write_bytes(b"1")
    b.write_bytes(b"2")
    assert source([a, b]).digest != source([b, a]).digest
    assert source([a, b]).size_bytes == 2


def test_absent_file_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        source([tmp_path / "absent"])
