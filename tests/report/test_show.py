"""What a build prints at its end, in real terminals of 80 and 120 places.

COOK_UPDATE_SNAPSHOTS=1 writes the snapshots again.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cook.record.record import Record, write_record
from cook.text_table import width_of
from tests.report.records import record, undecided
from tests.terminals import in_terminal

SNAPSHOTS = Path(__file__).parent / "snapshots"
PRINT = """
import sys
from pathlib import Path
from cook.output import Output
from cook.record.record import read_record
from cook.report.show import show, shown
show(shown(read_record(Path(sys.argv[1]))), Output(), wide=sys.argv[2] == "wide")
"""


def printed(record: Path, width: int, form: str = "short") -> str:
    argv = [sys.executable, "-c", PRINT, str(record), form]
    status, text = in_terminal(
        argv, width, {"PATH": os.environ["PATH"], "NO_COLOR": "1"}, SNAPSHOTS
    )
    assert status == 0, text
    return text


def words(text: str) -> set[str]:
    """Words as they stand; a list's commas are not theirs."""
    return {word.rstrip(",") for word in text.split()}


LONG = tuple(f"Ling-flash-2.0-{q}" for q in ("IQ1_KT-PUFFED", "Q2_K", "IQ2_KL"))
MADE: dict[str, Callable[[], Record]] = {
    "decided": record,
    "live-only": lambda: record(("Q8_0", "Q4_K_M"), (2, 4), predicted=False),
    "long-names": lambda: undecided(record(LONG, (2, 4, 8))),
}


@pytest.fixture(params=MADE)
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / f"{request.param}.json"
    write_record(MADE[request.param](), path)
    return path


@pytest.mark.parametrize("kept", ["decided"], indirect=True)
def test_the_answer_in_a_terminal(kept: Path) -> None:
    text = printed(kept, 80)
    file = SNAPSHOTS / "show-decided-80.txt"
    if os.environ.get("COOK_UPDATE_SNAPSHOTS") == "1":
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    assert text == file.read_text(), "if this is meant, run with COOK_UPDATE_SNAPSHOTS=1"


@pytest.mark.parametrize("form", ["short", "wide"])
def test_no_line_is_wider_than_the_terminal_and_no_word_is_broken(kept: Path, form: str) -> None:
    whole = words(printed(kept, 1000, form))
    for width in (80, 120):
        text = printed(kept, width, form)
        assert max(map(width_of, text.splitlines())) <= width
        # A row that is a list names its first cell nothing.
        assert whole - words(text) <= {"candidate"}, "broken or gone"
        if (form, width) == ("short", 80):  # the usual 40 lines; warnings come before the table
            assert len(text.partition("candidate")[2].splitlines()) <= 34
