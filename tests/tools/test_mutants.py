"""A listed mutant is found again after other lines have changed, and never put elsewhere."""

from __future__ import annotations

import pytest

from tools.mutants import ROOT, mutants

FILE = ROOT / "cook" / "units.py"


def test_a_mutant_is_applied_where_its_line_has_moved_to() -> None:
    text = FILE.read_text("utf-8")
    for mutant in mutants(FILE):
        here = mutant.applied(text)
        assert here != text
        assert mutant.applied(f"# a line more\n{text}") == f"# a line more\n{here}"


def test_a_mutant_whose_line_is_gone_is_refused() -> None:
    mutant = mutants(FILE)[0]
    without = FILE.read_text("utf-8").replace(mutant.source, "pass")
    with pytest.raises(SystemExit, match="is not as listed"):
        mutant.applied(without)
