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

FIRST = replace(bare.RECORD, recipe="demo", created="2026-11-21T20:00:00Z")
SECOND = replace(FIRST, created="2026-11-22T20:00:00Z")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COOK_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_a_file_and_an_older_link_are_found_and_else_it_says_how_to_make_one(home: Path) -> None:
    with pytest.raises(InputError, match="no record yet"):
        find_record()
    (home / "records").mkdir(parents=True)
    files = [home / "records" / "old.json", home / "records" / "new.json", home / "mine.json"]
    for age, file in enumerate(files):
        file.write_text("{}")
        os.utime(file, (age, age))
    assert [find_record("old"), find_record(), find_record(str(files[2]))] == files
    for name in ("absent", "/tmp/absent.json", "../old", "a*b"):
        with pytest.raises(InputError, match="no such record") as caught:
            find_record(name)
        assert "cook demo" in (caught.value.hint or "")


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
    make_newest(one)
    make_newest(home / "elsewhere.json")
    assert read_record(find_record("demo")) == FIRST, "a kept answer is what the name means again"
    assert len(kept_records("demo")) == 2


def test_two_records_of_one_second_are_two_files() -> None:
    paths = {keep_record(FIRST), keep_record(replace(FIRST, disturbed=1))}
    assert len(paths) == 2
    assert {read_record(path).disturbed for path in paths} == {0, 1}


def test_a_name_that_changed_its_mind_says_so() -> None:
    keep_record(FIRST)
    keep_record(SECOND)
    assert changed_meaning(find_record("demo"), SECOND) is None, "the same pick, the same recipe"
    pick = replace(SECOND.pick, candidate="X")
    other = replace(SECOND, pick=pick, created="2026-11-23T20:00:00Z")
    keep_record(other)
    assert changed_meaning(find_record("demo"), other) == (
        "demo means the record of 2026-11-23T20:00:00Z, which picks X; "
        "demo@2026-11-22-20-00-00 picks nothing"
    )
    recipe = replace(other, recipe_sha256="another", created="2026-11-24T20:00:00Z")
    keep_record(recipe)
    assert "another recipe of this name" in (changed_meaning(find_record("demo"), recipe) or "")
    dated = find_record("demo@2026-11-23")
    assert changed_meaning(dated, other) is None, "asked for by its date"


def test_what_records_name() -> None:
    keep_record(replace(FIRST, target="/t.gguf", drafts=(replace(bare.DRAFT, path="/d.gguf"),)))
    keep_record(SECOND).write_text('{"schema_version": 1}')
    paths, unreadable = files_named()
    assert paths == {Path("/t.gguf"), Path("/d.gguf")}
    assert unreadable == ("demo@2026-11-22-20-00-00",)


def test_searches_are_kept_apart_and_the_last_is_found(home: Path) -> None:
    first, second = keep_search(search_record()), keep_search(search_record())
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
