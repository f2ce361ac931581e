"""Forecasts under a sampling chain against real servers: a short share of the study."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.sampled_acceptance import agreements
from cook.engines.process.supervisor import Supervisor
from cook.formats.sampling import Sampling

MOST_ERRORS = 4.0
"""So few prompts that their own spread is little known."""


@pytest.mark.engine
def test_the_bundled_server_accepts_what_was_forecast(bundled: Any, tmp_path: Path) -> None:
    _agrees(bundled, tmp_path)


@pytest.mark.ik
def test_iks_server_accepts_what_was_forecast(ik_engine: Any, tmp_path: Path) -> None:
    _agrees(ik_engine, tmp_path)


def _agrees(engine: Any, tmp_path: Path) -> None:
    (found,) = agreements(engine, [Sampling(0.6, seed=5)], 12, 64, Supervisor(tmp_path / "logs"))
    assert found.errors <= MOST_ERRORS, str(found)
    assert 0.1 < found.forecast < 0.9
    assert found.forecast < found.elsewhere, "a greedy text flatters it"
