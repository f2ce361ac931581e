"""A small HTTP server whose answers a test writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.http_server import Fake, serving


@pytest.fixture
def fake() -> Iterator[Callable[[dict[str, Any]], Fake]]:
    """Starts :func:`tests.http_server.serving` until the end of the test."""
    with ExitStack() as stack:
        yield lambda answers: stack.enter_context(serving(answers))
