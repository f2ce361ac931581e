"""The capabilities' page: every row names a test that is there, every section has a row."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent.joinpath("docs", "internals", "capabilities").with_suffix(".md")
README = TESTS.parent / "README.md"
UNSHOWN = "## Not shown by a test"


def rows() -> list[list[str]]:
    """The cells of every row above the list of what no test shows."""
    text = PAGE.read_text("utf-8").partition(UNSHOWN)[0]
    lines = [line.strip("|").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return [
        [c.strip() for c in cells]
        for cells in lines
        if cells[-1].strip() not in ("shown by", "---")
    ]


def test_every_test_named_is_there() -> None:
    for *_, cell in rows():
        path, _, name = cell.strip("`").partition("::")
        tree = ast.parse((TESTS / path).read_text("utf-8"))
        assert name in {getattr(node, "name", "") for node in tree.body}, cell


def test_every_section_and_command_of_the_readme_has_a_row() -> None:
    text = README.read_text("utf-8")
    page = PAGE.read_text("utf-8")
    sections = {cells[0] for cells in rows() if len(cells) == 3}
    assert sections == set(re.findall(r"^#{1,2} (?!.*[.])(.+)$", text, re.MULTILINE)) - {""}
    commands = set(re.findall(r"(?:^|`)cook (?!finds)([a-z]+)", text, re.MULTILINE))
    assert {c for c in commands if f"cook {c}" not in page} == set()
    steps = re.findall(r"^\d\. \*\*(\w+)\.\*\*", text, re.MULTILINE)
    assert {s for s in steps if s.lower() not in page.lower()} == set()
