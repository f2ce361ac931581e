"""``cook report`` as it is run."""

from __future__ import annotations

import json
from typing import Any

from cook.record.record import write_record
from tests.report import records


def test_the_newest_record_as_html_beside_it(cook: Any) -> None:
    record = cook.directory / "cook-home" / "records" / "demo.json"
    write_record(records.record(("A",), (4,)), record)
    done = cook("report")
    assert (done.status, done.stderr) == (0, "")
    assert done.stdout.strip() == str(record.with_suffix(".html"))
    assert record.with_suffix(".html").read_text().startswith("<!doctype html>")


def test_markdown_goes_to_stdout_and_nothing_is_written(cook: Any) -> None:
    record = cook.directory / "r.json"
    write_record(records.bare(), record)
    done = cook("report", "r.json", "--markdown", "-")
    assert done.status == 0
    assert done.stdout.startswith("# demo: 3 quants\n")
    assert [p.name for p in cook.directory.iterdir() if p.is_file()] == ["r.json"]


def test_json_says_what_was_written(cook: Any) -> None:
    write_record(records.bare(), cook.directory / "r.json")
    done = cook("report", "r.json", "--html", "out/x.html", "--json")
    document = json.loads(done.stdout)
    assert document["written"] == ["out/x.html"]
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
