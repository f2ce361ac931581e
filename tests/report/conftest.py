"""Records for the tests of reports."""

from __future__ import annotations

from types import ModuleType

import pytest

from cook.record.record import Record


@pytest.fixture(scope="session")
def records() -> ModuleType:
    """The module that makes them."""
    from tests.report import records

    return records


@pytest.fixture
def record(records: ModuleType) -> Record:
    """One that has something to say in every section."""
    made: Record = records.record()
    return made
