"""Outcomes of cells: written whole, merged by name, refused when they are something else."""

from __future__ import annotations

from pathlib import Path

import pytest

from cook.errors import InputError
from cook.nightly.cell_outcome import read_outcomes, write_outcome
from tests.nightly.outcomes import WORSE, outcome


def test_cells_of_several_folders_are_merged_and_the_newest_wins(tmp_path: Path) -> None:
    write_outcome(outcome(), tmp_path / "one")
    write_outcome(WORSE, tmp_path / "two")
    newer = outcome(created="2026-11-22T02:17:00Z")
    write_outcome(newer, tmp_path / "two")
    assert read_outcomes([tmp_path / "one", tmp_path / "two"]) == (newer, WORSE)
    assert read_outcomes([tmp_path]) == (newer, WORSE)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[]", "version None"),
        ('{"schema_version": 9}', "version 9"),
        ('{"schema_version": 2}', "cell: Field required"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_something_else_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "cell.json").write_text(text)
    with pytest.raises(InputError, match=message):
        read_outcomes([tmp_path])


def test_no_folder_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such folder"):
        read_outcomes([tmp_path / "none"])
