"""Which record a command means."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cook.errors import InputError
from cook.record.find import find_record


@pytest.fixture
def records_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COOK_HOME", str(tmp_path / "home"))
    directory = tmp_path / "home" / "records"
    directory.mkdir(parents=True)
    for age, name in enumerate(("new", "old")):
        file = directory / f"{name}.json"
        file.write_text("{}")
        os.utime(file, (1_000_000 - age, 1_000_000 - age))
    return directory


def test_the_newest_a_name_and_a_file(records_of: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    file.write_text("{}")
    assert find_record() == records_of / "new.json"
    assert find_record("old") == records_of / "old.json"
    assert find_record(str(file)) == file


def test_none_says_how_to_make_one(records_of: Path) -> None:
    with pytest.raises(InputError, match="absent: no such record") as caught:
        find_record("absent")
    assert "cook demo" in (caught.value.hint or "")
    for file in records_of.iterdir():
        file.unlink()
    with pytest.raises(InputError, match="no record yet"):
        find_record()
