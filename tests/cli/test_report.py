"""``cook report`` as it is run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cook.record.find import keep_record, keep_search
from cook.record.record import to_json, write_record
from tests.report import records
from tests.searches import search_record


@pytest.fixture
def home(cook: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    """That of the test itself and of ``cook``."""
    monkeypatch.setenv("COOK_HOME", str(cook.directory / "cook-home"))
    return Path(cook.directory / "cook-home")


def test_the_newest_record_as_html_beside_it(cook: Any) -> None:
    record = cook.directory / "cook-home" / "records" / "demo.json"
    write_record(records.record(("A",), (4,)), record)
    done = cook("report")
    assert (done.status, done.stderr) == (0, "")
    assert done.stdout.strip() == str(record.with_suffix(".html"))
    assert record.with_suffix(".html").read_text().startswith("<!doctype html>")


def test_markdown_goes_to_stdout_and_json_says_what_was_written(cook: Any) -> None:
    write_record(records.bare(), cook.directory / "r.json")
    done = cook("report", "r.json", "--markdown", "-")
    assert done.status == 0
    assert done.stdout.startswith("# demo: 3 quants\n")
    assert [p.name for p in cook.directory.iterdir() if p.is_file()] == ["r.json"]
    done = cook("report", "r.json", "--html", "out/x.html", "--json")
    assert json.loads(done.stdout)["written"] == ["out/x.html"]
    assert (cook.directory / "out" / "x.html").is_file()


def test_no_record_and_no_such_record_say_what_mends_it(cook: Any) -> None:
    done = cook("report")
    assert done.status == 2
    assert "no record yet" in done.stderr
    assert "hint: `cook demo`" in done.stderr
    (cook.directory / "bad.json").write_text('{"schema_version": 1}')
    done = cook("report", "bad.json")
    assert done.status == 2
    assert "bad.json" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_kept_records_are_listed_and_shown_by_date(cook: Any, home: Path) -> None:
    first = records.record(("A",), (4,))
    keep_record(first)
    keep_record(replace(first, created="2026-11-22T18:00:00Z"))
    done = cook("report", "--list")
    assert (done.status, done.stderr) == (0, "* is what the recipe's name alone means\n")
    listed = [line.split()[:3] for line in done.stdout.splitlines()[1:]]
    assert listed == [
        ["*", "demo@2026-11-22-18-00-00", "A"],
        ["demo@2026-11-21-18-00-00", "A", "n_max=4"],
    ]
    documents = json.loads(cook("report", "demo", "--list", "--json").stdout)["records"]
    assert [d["newest"] for d in documents] == [True, False]
    done = cook("report", "demo")
    assert "1 earlier record of demo: `cook report --list`" in done.stderr
    earlier = cook("report", "demo@2026-11-21")
    assert earlier.stdout.strip().endswith("records/demo/2026-11-21-18-00-00.html")
    assert cook("report", "absent", "--list").status == 2


def test_a_record_that_cannot_be_read_is_listed_as_such(cook: Any, home: Path) -> None:
    keep_record(records.record(("A",), (4,)))
    document = to_json(records.record(("A",), (4,)))
    del document["pick"]["ranking"]  # as another cook may have written it
    (home / "records/demo/2026-11-20-18-00-00.json").write_text(json.dumps(document))
    done = cook("report", "--list")
    assert done.status == 0
    assert done.stdout.splitlines()[-1].split()[:4] == [
        *("demo@2026-11-20-18-00-00", "cannot", "be", "read")
    ]
    assert "pick.ranking: Field required; `cook build RECIPE` writes it again" in done.stderr
    (_, listed) = json.loads(cook("report", "--list", "--json").stdout)["records"]
    assert listed["hint"] == "`cook build RECIPE` writes it again"
    for words in (("report", "demo@2026-11-20"), ("serve", "demo@2026-11-20", "--print")):
        done = cook(*words)
        assert done.status == 2
        assert "pick.ranking: Field required" in done.stderr
        assert "hint: `cook build RECIPE` writes it again" in done.stderr


def test_a_search_is_shown_in_place_of_a_build(cook: Any, home: Path) -> None:
    assert "no search of demo yet" in cook("report", "--search", "demo").stderr
    path = keep_search(search_record())
    done = cook("report", "--search", "demo")
    assert (done.status, done.stderr) == (0, "")
    assert done.stdout.strip() == str(path.with_suffix(".html"))
    done = cook("report", "--search", "--markdown", "-")
    assert done.stdout.startswith("# demo: found: found")
    done = cook("report", "--search", str(path), "--html", "s.html", "--plots", "plots", "--json")
    assert "plots/search-front.svg" in json.loads(done.stdout)["written"]
    done = cook("report", "--search", "demo", "--against", str(path))
    assert done.status == 2
    assert "--search goes with --html, --markdown and --plots alone" in done.stderr
