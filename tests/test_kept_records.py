"""Documents of real runs: read, written again as they are, and shown.

``tests/data/records`` holds what real runs on the bundled engine left, with paths of no machine:
records of the demo, of a build under a sampling target and of a small live score, a sweep's history
and cell, a trace. They were made on 26 November 2026; what records got later is null or empty.
COOK_UPDATE_SNAPSHOTS=1 writes the reports' texts again, never the documents.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

# Where the readers and writers live; nothing below names a module.
# isort: split
from cook.cli.main import main
from cook.formats.trace_file import TraceFile
from cook.inspection import inspect
from cook.nightly.cell_outcomes import read_outcomes, write_outcome
from cook.nightly.history import append, read_history
from cook.output import plain
from cook.record.record import read_record, write_record
from cook.report.card import CardFacts, card
from cook.report.show import shown

# isort: split

RECORDS = Path(__file__).parent / "data" / "records"
NAMES = ("demo", "sampled", "live")
PATHS = re.compile(r"[\"\s=,](/(?:home|work|root|Users)/[^\"\s]*)")


def values(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def check(text: str, kept: Path) -> None:
    """``text`` is what ``kept`` says."""
    if os.environ.get("COOK_UPDATE_SNAPSHOTS") == "1":
        kept.write_text(text, encoding="utf-8")
    assert text == kept.read_text(encoding="utf-8"), "if meant, run with COOK_UPDATE_SNAPSHOTS=1"


@pytest.mark.parametrize("name", NAMES)
def test_a_record_is_read_and_written_as_it_was(name: str, tmp_path: Path) -> None:
    kept = RECORDS / f"{name}.json"
    record = read_record(kept)
    write_record(record, tmp_path / "again.json")
    assert values(tmp_path / "again.json") == values(kept)


def test_the_records_hold_what_the_reports_show() -> None:
    """Else reading them would show little: forecasts, live requests, checks, who did not run."""
    demo, sampled, live = (read_record(RECORDS / f"{name}.json") for name in NAMES)
    for record in (demo, sampled):
        assert record.pick.leader is not None
        assert record.factors
        assert record.imatrix is not None
        assert record.noise
        assert sum(c.live is not None for c in record.candidates) >= 3
        assert any(c.counts is not None and c.output is not None for c in record.candidates)
    assert [record.pick.maximize for record in (demo, sampled, live)] == [
        *("end_to_end_speed", "acceptance_length", "decode_speed")
    ]
    assert all(c.predicted is not None for c in demo.candidates)
    assert any(c.predicted and c.predicted.rejection for c in sampled.candidates)
    assert len({c.cache_type for c in sampled.candidates if c.draft}) == 2
    assert live.factors == ()
    assert all(c.live is not None and c.predicted is None for c in live.candidates)
    for record in (demo, sampled, live):
        assert record.pick.candidate is not None
        assert all(d.quality is not None and d.memory_bytes for d in record.drafts)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_shown_of_a_record_is_what_was_shown(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept, page = RECORDS / f"{name}.json", tmp_path / "report.html"
    record = read_record(kept)
    assert main(["report", str(kept), "--html", str(page)]) == 0
    written = page.read_text(encoding="utf-8")
    assert str(record.pick.candidate) in written
    assert written.count("<svg") >= 4
    capsys.readouterr()
    assert main(["report", str(kept), "--markdown", "-"]) == 0
    check(capsys.readouterr().out, RECORDS / f"{name}.md")
    files = {d.quant: (f"Model-{d.quant}.gguf",) for d in record.drafts}
    facts = CardFacts("Model", files, "org/model", "mit", imatrix="imatrix.gguf")
    check(card(record, facts), RECORDS / f"{name}.card.md")
    check(json.dumps(plain(shown(record)), indent=1) + "\n", RECORDS / f"{name}.printed.json")


def test_a_history_is_read_and_written_as_it_was(tmp_path: Path) -> None:
    kept = RECORDS / "history.jsonl"
    found = read_history(kept)
    assert not found.warnings
    assert [night.good for night in found.nights] == [True]
    for night in found.nights:
        append(tmp_path / "again.jsonl", night)
    assert (tmp_path / "again.jsonl").read_bytes() == kept.read_bytes()


def test_a_record_is_compared_with_the_night_that_was_made_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The gates judge the same figures a day later against themselves: nothing got worse."""
    later = values(RECORDS / "live.json") | {"created": "2027-01-01T00:00:00Z"}
    (tmp_path / "later.json").write_text(json.dumps(later), encoding="utf-8")
    against = ("--against", str(RECORDS / "history.jsonl"), "--json")
    assert main(["report", str(tmp_path / "later.json"), *against]) == 0
    found = json.loads(capsys.readouterr().out)["against"]
    check(json.dumps(found, indent=1) + "\n", RECORDS / "live.against.json")


def test_a_cell_is_read_and_written_as_it_was(tmp_path: Path) -> None:
    (outcome,) = read_outcomes([RECORDS / "cell"])
    again = write_outcome(outcome, tmp_path)
    assert values(again) == values(RECORDS / "cell" / "cell.json")


def test_a_trace_is_read_as_it_was() -> None:
    kept = RECORDS / "target.trace"
    document = plain(inspect(kept)) | {"path": kept.name}
    trace = TraceFile(kept)
    document["header"] = trace.header.model_dump(mode="json")
    document["tokens"] = [[reply.head.id, reply.tokens.tolist()] for reply in trace]
    check(json.dumps(document, indent=1) + "\n", RECORDS / "target.trace.json")


def test_no_path_of_a_machine_is_among_them() -> None:
    for path in RECORDS.rglob("*.*"):
        assert not PATHS.findall(path.read_bytes().decode("utf-8", "replace")), path.name
