"""Documents are whole or absent, and what is no such document says why."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from cook.errors import InputError
from cook.record.versioned import read_versioned, write_versioned


@dataclass(frozen=True)
class Note:
    schema_version: int
    words: tuple[str, ...]
    size: float = 0.0


def read(path: Path) -> Note:
    return read_versioned(path, Note, 2, "note", "write another")


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_versioned({"schema_version": 2, "words": ["ä", "b"]}, tmp_path / "new" / "n.json")
    assert read(tmp_path / "new" / "n.json") == Note(2, ("ä", "b"))


def test_nothing_is_left_of_what_json_cannot_say(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_versioned({"schema_version": 2, "x": float("nan")}, tmp_path / "n.json")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[1]", "note schema version None, this cook reads 2"),
        ('{"schema_version": 3}', "note schema version 3, this cook reads 2"),
        ('{"schema_version": 2, "words": [1]}', r"words\.0: "),
        ('{"schema_version": 2, "words": [], "size": NaN}', "not JSON"),
        ('{"schema_version": 2, "words": [], "size": "nan"}', "size: .*valid number"),
        ('{"schema_version": 2, "words": [], "size": 1e999}', "beyond every number"),
    ],
)
def test_a_wrong_document_says_what_is_wrong(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "n.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message) as caught:
        read(path)
    assert caught.value.hint == "write another"


def test_no_file_is_said_in_the_systems_words(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        read(tmp_path / "n.json")
