"""How many attacks of each kind a run made: counted, and told at its end."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

COUNTS: Counter[str] = Counter()


def at_length(*case: Any) -> Any:
    """A case of a parametrised attack that runs under ``make soak`` alone."""
    return pytest.param(*case, marks=pytest.mark.soak)


@pytest.fixture
def attacks() -> Counter[str]:
    """Attacks made so far, by kind; a test adds its own."""
    return COUNTS


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if COUNTS:
        terminalreporter.section("attacks")
        for kind, count in sorted(COUNTS.items()):
            terminalreporter.write_line(f"{count:>9,}  {kind}")
