"""The stated confidence holds in contests drawn from real drafts' per-prompt figures.

``tests/data/contests.json`` (``python -m bench.record_contests``) is taken as the whole
population, so that the true winner is known; each contest draws its own prompts from it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cook.scoring.statistics import Measured
from tests.scoring.contests import ContestScore, run_contests

RECORDED: dict[str, Any] = json.loads(
    (Path(__file__).parent.parent / "data" / "contests.json").read_text()
)
EVERY = tuple(RECORDED["candidates"])
RIVALS = tuple(f"{draft} n_max=4" for draft in ("source", "Q8_0", "Q6_K", "Q4_K_M"))
NEAR = tuple(f"{draft} n_max=4" for draft in ("Q3_K_S", "Q2_K"))
SETS = {"every candidate": EVERY, "four close rivals": RIVALS, "two close rivals": NEAR}


def population(names: Sequence[str], figure: str) -> Measured[str]:
    """Decode speed (tokens over seconds), or acceptance, of the candidates that have it."""
    columns = RECORDED["candidates"]
    categories = sorted(set(RECORDED["categories"]))
    if figure == "acceptance":
        names = [n for n in names if columns[n]["drafted"][0] is not None]
        parts = [(columns[n]["accepted"], columns[n]["drafted"]) for n in names]
    else:
        parts = [(RECORDED["tokens"], columns[n]["seconds"]) for n in names]
    return Measured(
        tuple(names),
        np.array([p[0] for p in parts], dtype=np.float64),
        np.array([p[1] for p in parts], dtype=np.float64),
        np.array([categories.index(c) for c in RECORDED["categories"]]),
        np.ones(len(RECORDED["prompts"])),
    )


def contests(names: str, figure: str, count: int, prompts: int) -> ContestScore:
    rng = np.random.default_rng(6)
    return run_contests(population(SETS[names], figure), rng, contests=count, prompts=prompts)


def test_the_population_is_real() -> None:
    assert len(RECORDED["prompts"]) == 70
    assert {"made_by", "made", "engine", "machine", "drafts"} <= set(RECORDED)
    acceptance = population(EVERY, "acceptance").ratios()
    assert len(acceptance) == 24
    assert ((acceptance > 0.3) & (acceptance < 1)).all()


@pytest.mark.parametrize("figure", ["speed", "acceptance"])
@pytest.mark.parametrize("names", SETS)
def test_a_hundred_contests(names: str, figure: str) -> None:
    score = contests(names, figure, 100, 40)
    assert score.covered >= 90  # 94 % and two standard errors of a hundred draws
    assert score.wrong <= 10
    assert score.right >= 0.94 * score.decided


@pytest.mark.soak
@pytest.mark.parametrize("prompts", [20, 60])
@pytest.mark.parametrize("figure", ["speed", "acceptance"])
@pytest.mark.parametrize("names", SETS)
def test_two_thousand_contests(names: str, figure: str, prompts: int) -> None:
    score = contests(names, figure, 2000, prompts)
    assert score.covered >= 0.94 * score.contests
    assert score.wrong <= 0.06 * score.contests
    assert score.right >= 0.94 * score.decided
