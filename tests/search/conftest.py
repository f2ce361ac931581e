"""A folder for the whole searches of a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.search.whole import RECIPE


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of ``small.yaml``, and the store of what is searched there."""
    home = tmp_path_factory.mktemp("search")
    (home / "small.yaml").write_text(RECIPE)
    return home
