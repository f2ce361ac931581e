"""Two cooks and a clearing of the store at once: nothing is half there, and no answer is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.attacks.builds import (
    SMALL,
    build,
    contents,
    require_no_bug,
    require_nothing_left,
    require_part_of,
    said,
)
from tests.attacks.conftest import at_length

pytestmark = pytest.mark.engine


def clear(home: Path, *how: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cook", "store", "gc", *how],
        env={**os.environ, "COOK_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize("rounds", [1, at_length(10)])
def test_two_cooks_and_gc(rounds: int, tmp_path: Path, bundled: Any, attacks: Counter[str]) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(SMALL)
    home = tmp_path / "home"
    assert build(recipe, home).wait() == 0, said(home)
    expected = contents(home)
    random = Random(20_261_122)
    for number in range(rounds):
        clear(home, "--all")
        cooks = [build(recipe, home, "--jobs", str(jobs)) for jobs in (1, 2)]
        while any(cook.poll() is None for cook in cooks):
            time.sleep(random.uniform(0.2, 2))
            how = random.choice((["--all"], ["--kind", "quantize"], ["--kind", "imatrix"], []))
            done = clear(home, *how)
            attacks["gc next to two cooks"] += 1
            # It may come when nothing of the kind is there, and says so.
            none_there = done.returncode == 2 and "no artifact of kind" in done.stderr
            assert done.returncode == 0 or none_there, done.stderr
            assert "Traceback" not in done.stderr
        # What was cleared away under a build may end it, with a word and never with a wrong answer.
        for cook in cooks:
            assert cook.returncode in (0, 1), (number, cook.returncode, said(home)[-2000:])
        require_no_bug(home)
        require_part_of(expected, home, f"round {number}")
    assert build(recipe, home).wait() == 0, said(home)
    assert contents(home) == expected
    require_nothing_left(home)
