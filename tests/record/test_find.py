"""Which record a command means, and that none is ever written over."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from cook.errors import InputError
from cook.record.find import (
    changed_meaning,
    files_named,
    find_record,
    find_search,
    keep_record,
    keep_search,
    kept_records,
    make_newest,
)
from cook.record.record import read_record
from tests import bare_records as bare
from tests.searches import search_record


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
    for name in ("/tmp/absent.json", "../old", "a*b"):
        with pytest.raises(InputError, match="no such record"):
            find_record(name)
    for file in records_of.iterdir():
        file.unlink()
    with pytest.raises(InputError, match="no record yet"):
        find_record()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COOK_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


FIRST = replace(bare.RECORD, recipe="demo", created="2026-11-21T20:00:00Z")
SECOND = replace(FIRST, created="2026-11-22T20:00:00Z")


def test_every_build_keeps_its_record_and_the_name_means_the_last(home: Path) -> None:
    one, other = keep_record(FIRST), keep_record(SECOND)
    assert one.name == "2026-11-21-20-00-00.json"
    assert read_record(one) == FIRST
    assert read_record(find_record("demo")) == SECOND
    assert find_record() == find_record("demo") == home / "records" / "demo.json"
    assert find_record("demo@2026-11-21") == one
    assert find_record("demo@2026-11") == other, "of several the last"
    assert [(k.name, k.newest) for k in kept_records("demo")] == [
        ("demo@2026-11-22-20-00-00", True),
        ("demo@2026-11-21-20-00-00", False),
    ]
    with pytest.raises(InputError) as caught:
        find_record("demo@2025")
    assert "--list" in (caught.value.hint or "")


def test_two_records_of_one_second_are_two_files(home: Path) -> None:
    paths = {keep_record(FIRST), keep_record(replace(FIRST, disturbed=1))}
    assert len(paths) == 2
    assert [read_record(p).disturbed for p in sorted(paths)] in ([0, 1], [1, 0])


def test_a_kept_answer_is_what_the_name_means_again(home: Path) -> None:
    one = keep_record(FIRST)
    keep_record(SECOND)
    make_newest(one)
    assert read_record(find_record("demo")) == FIRST
    assert len(kept_records("demo")) == 2
    make_newest(home / "elsewhere.json")


def test_a_name_that_changed_its_mind_says_so(home: Path) -> None:
    keep_record(FIRST)
    keep_record(SECOND)
    path = find_record("demo")
    assert changed_meaning(path, SECOND) is None, "the same pick, the same recipe"
    other = replace(
        SECOND, pick=replace(SECOND.pick, candidate="X"), created="2026-11-23T20:00:00Z"
    )
    keep_record(other)
    changed = changed_meaning(find_record("demo"), other)
    assert changed is not None
    assert "picks X" in changed
    assert "demo@2026-11-22-20-00-00 picks" in changed
    recipe = replace(other, recipe_sha256="another", created="2026-11-24T20:00:00Z")
    keep_record(recipe)
    assert "another recipe of this name" in (changed_meaning(find_record("demo"), recipe) or "")
    dated = find_record("demo@2026-11-23")
    assert changed_meaning(dated, other) is None, "asked for by its date"


def test_what_records_name(home: Path) -> None:
    keep_record(replace(FIRST, target="/t.gguf", drafts=(replace(bare.DRAFT, path="/d.gguf"),)))
    unreadable = keep_record(SECOND)
    unreadable.write_text('{"schema_version": 1}')
    paths, names = files_named()
    assert paths == {Path("/t.gguf"), Path("/d.gguf")}
    assert names == ("demo@2026-11-22-20-00-00",)


def test_searches_are_kept_apart_and_the_last_is_found(home: Path) -> None:
    first = keep_search(search_record())
    second = keep_search(search_record())
    other = keep_search(replace(search_record(), recipe="other"))
    assert len({first, second, other}) == 3
    assert first.parent == second.parent == home / "searches" / "demo"
    os.utime(other, ns=(1, 1))
    os.utime(first, ns=(2, 2))
    assert find_search("demo") == find_search() == second
    assert find_search("other") == other
    assert find_search(str(first)) == first
    assert kept_records() == ()
    with pytest.raises(InputError, match="no search of none yet"):
        find_search("none")
