"""Tensors under attack: kills while they are made, two cooks at them."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from bench.random_model import Shape, write_random_model
from tests.attacks.builds import (
    build,
    contents,
    require_no_process,
    require_nothing_left,
    require_part_of,
    said,
)

pytestmark = pytest.mark.engine

RECIPE = """\
version: 1
name: tensors
model: {source: "MODEL"}
quants:
  - {name: A, type: Q8_0, rules: [{'_exps': iq4_xs}, {'.*': q6_K}]}
  - {name: B, type: Q8_0, rules: [{'_exps': iq4_xs}, {'.*': q8_0}]}
  - {name: C, type: Q8_0, rules: [{'_exps': q3_K}, {'.*': q8_0}]}
"""
SHAPE = Shape(vocabulary=512, width=256, layers=4, hidden=1024, experts=8)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some 50 MB, so that quantizing takes longer than starting."""
    return write_random_model(tmp_path_factory.mktemp("model") / "model.gguf", SHAPE)


def written(model: Path, folder: Path) -> Path:
    recipe = folder / "recipe.yaml"
    recipe.write_text(RECIPE.replace("MODEL", str(model)))
    return recipe


def killed(count: int, model: Path, folder: Path, attacks: Counter[str]) -> None:
    """``count`` times -9 at any moment of a sweep that goes on where it was ended; what it comes to
    is that of one undisturbed in another home."""
    recipe = written(model, folder)
    undisturbed, home = folder / "undisturbed", folder / "home"
    started = time.monotonic()
    assert build(recipe, undisturbed).wait() == 0, said(undisturbed)
    seconds = time.monotonic() - started
    expected = contents(undisturbed)
    random = Random(20_261_122)
    while count > 0:
        victim = build(recipe, home, "--jobs", str(1 + count % 2))
        try:
            status = victim.wait(random.uniform(0.3, seconds / 2))
        except subprocess.TimeoutExpired:
            victim.kill()
            status = victim.wait(60)
            attacks["kills while tensors are made"] += 1
            count -= 1
        where = f"{count}: {status}, {said(home)[-2000:]}"
        assert status in (0, -signal.SIGKILL), where
        require_no_process(home)
        require_part_of(expected, home, where)
        if status == 0:
            assert contents(home) == expected
            require_nothing_left(home)
            shutil.rmtree(home)
    assert build(recipe, home).wait() == 0, said(home)
    assert contents(home) == expected
    require_nothing_left(home)


def test_a_few_kills(model: Path, tmp_path: Path, bundled: Any, attacks: Counter[str]) -> None:
    killed(6, model, tmp_path, attacks)


@pytest.mark.soak
def test_two_hundred_kills(
    model: Path, tmp_path: Path, bundled: Any, attacks: Counter[str]
) -> None:
    killed(200, model, tmp_path, attacks)


def test_two_cooks_at_the_same_tensors(model: Path, tmp_path: Path, bundled: Any) -> None:
    recipe, home = written(model, tmp_path), tmp_path / "home"
    cooks = [build(recipe, home) for _ in range(2)]
    assert [cook.wait() for cook in cooks] == [0, 0], said(home)
    alone = tmp_path / "alone"
    assert build(recipe, alone).wait() == 0, said(alone)
    assert contents(home) == contents(alone)
    require_nothing_left(home)
