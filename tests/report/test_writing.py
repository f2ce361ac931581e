"""Files of a report: each whole, and links from Markdown lead to them."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest

from cook.errors import InputError
from cook.report.view import document
from cook.report.writing import write_report


def test_writes_page_markdown_and_plots_that_are_linked(
    records: ModuleType, tmp_path: Path
) -> None:
    shown = document(records.record(("A", "B"), (2, 4)))
    places = {"html": "r.html", "markdown": "doc/r.md", "plots": "plots"}
    written = write_report(shown, **{name: tmp_path / place for name, place in places.items()})
    assert {p for p in tmp_path.rglob("*") if p.is_file()} == set(written)
    assert len(written) == 2 + 3 * len(shown.plots)
    links = re.findall(r'(?:src|srcset)="([^"]+)"', (tmp_path / "doc" / "r.md").read_text())
    assert links
    for link in links:
        assert (tmp_path / "doc" / link).resolve() in written


def test_a_place_that_cannot_be_written_is_named(records: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"file/r\.html") as caught:
        write_report(document(records.bare()), html=tmp_path / "file" / "r.html")
    assert "--html" in (caught.value.hint or "")
