"""Replay of an iq1_kt draft against what ik's own server counts of it."""

from __future__ import annotations

import math
import os
from typing import Any

import pytest

from bench.ik_agreement import LEAST_DRAFTED, MOST_POINTS, Agreement, agreements, ik_agreement
from bench.study import empty_executor

pytestmark = pytest.mark.ik

CLUSTERED = 1.8
"""Least factor by which prompts widen the binomial error (docs/internals/scoring.md#statistics)."""


@pytest.fixture(autouse=True)
def _build(ik_engine: Any) -> None:
    assert os.environ.get("COOK_ENGINE_IK")


def bound(found: Agreement) -> float:
    """Points within which a sample so small must agree: the study's own, and three errors."""
    drafted, accepted = found.live
    rate = accepted / drafted
    return MOST_POINTS + 300 * CLUSTERED * math.sqrt(rate * (1 - rate) / drafted)


def test_a_small_share_agrees() -> None:
    with empty_executor() as executor:
        found = agreements(executor, limit=6, tokens=64, n_max=(4,))
    (agreement,) = found
    assert agreement.requests == 6
    assert agreement.live[0] > 200
    assert abs(agreement.points) <= bound(agreement), str(agreement)
    # Where a near-tie changes no text, nothing at all may differ.
    assert agreement.exact > agreement.requests / 2, str(agreement)


@pytest.mark.soak
def test_all_prompts_agree_within_a_point(capsys: pytest.CaptureFixture[str]) -> None:
    study = ik_agreement()
    with capsys.disabled():
        print("\n" + "\n".join(study.lines))
    assert len(study.lines) == 2
    assert study.within, (study.lines, MOST_POINTS, LEAST_DRAFTED)


def test_without_a_build_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COOK_ENGINE_IK")
    study = ik_agreement()
    assert study.within
    assert "not measured" in study.lines[0]
