"""Records for the tests of reports."""

from __future__ import annotations

from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def records() -> ModuleType:
    """The module that makes them."""
    from tests.report import records

    return records
