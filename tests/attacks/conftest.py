"""How many attacks of each kind a run made: counted, and printed at its end."""

from __future__ import annotations

import resource
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

COUNTS: Counter[str] = Counter()


def at_length(*case: Any) -> Any:
    """A case of a parametrised attack that runs under ``make soak`` alone."""
    return pytest.param(*case, marks=pytest.mark.soak)


@contextmanager
def memory_bounded() -> Iterator[None]:
    """A gigabyte more than is used now: what takes more raises MemoryError."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.fixture
def attacks() -> Counter[str]:
    """Attacks made so far, by kind; a test adds its own."""
    return COUNTS


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if COUNTS:
        terminalreporter.section("attacks")
        for kind, count in sorted(COUNTS.items()):
            terminalreporter.write_line(f"{count:>9,}  {kind}")
