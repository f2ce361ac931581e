"""Tensors under attack: kills while they are made, two cooks at them."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from cook.graph.store import Store
from tests.attacks.builds import (
    build,
    contents,
    require_no_process,
    require_nothing_left,
    require_part_of,
    said,
)
from tests.attacks.conftest import at_length
from tools.random_model import Shape, write_random_model

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


@pytest.mark.parametrize("count", [6, at_length(200)])
def test_kills(
    count: int, model: Path, tmp_path: Path, bundled: Any, attacks: Counter[str]
) -> None:
    """``count`` times -9 at any moment of a sweep that goes on where it was ended; what it comes to
    is that of one undisturbed in another home."""
    recipe = written(model, tmp_path)
    undisturbed, home = tmp_path / "undisturbed", tmp_path / "home"
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


def stored(
    recipes: Sequence[Path], home: Path, folder: Path, *more: str
) -> Mapping[str, list[str]]:
    """Who stored what, by kind and key: builds of all ``recipes`` that begin at one moment."""
    folder.mkdir()
    os.mkfifo(folder / "ready")
    ready = os.open(folder / "ready", os.O_RDWR)
    cook = (str(Path(__file__).with_name("counting_cook.py")), str(folder))
    with (folder / "go").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        cooks = [build(recipe, home, *more, cook=cook) for recipe in recipes]
        for _ in recipes:
            assert os.read(ready, 1) == b"."
    os.close(ready)
    assert [cook.wait() for cook in cooks] == [0] * len(recipes), said(home)
    found: dict[str, list[str]] = {}
    for line in (folder / "stored").read_text().splitlines():
        pid, _, what = line.partition(" ")
        found.setdefault(what, []).append(pid)
    return found


@pytest.mark.parametrize("jobs", ["1", "3"])
def test_two_cooks_with_one_recipe_make_each_once(
    model: Path, tmp_path: Path, bundled: Any, jobs: str
) -> None:
    """Each step and each tensor is stored by one of them, and once; the store is as if one had
    been alone."""
    recipe, home, alone = written(model, tmp_path), tmp_path / "home", tmp_path / "alone"
    once = stored([recipe], alone, tmp_path / "once")
    both = stored([recipe, recipe], home, tmp_path / "both", "--jobs", jobs)
    assert both.keys() == once.keys() == contents(home).keys()
    assert {what: pids for what, pids in both.items() if len(pids) != 1} == {}
    assert contents(home) == contents(alone)
    require_nothing_left(home)


def test_two_cooks_whose_candidates_share_tensors_make_each_tensor_once(
    model: Path, tmp_path: Path, bundled: Any
) -> None:
    """No step is both's: each makes its own candidate, of tensors that either made."""
    home = tmp_path / "home"
    lines = RECIPE.replace("MODEL", str(model)).splitlines(keepends=True)
    recipes = [tmp_path / f"{name}.yaml" for name in ("one", "other")]
    for recipe, quant in zip(recipes, ("A", "B"), strict=True):
        kept = [line for line in lines if "{name: " not in line or f"{{name: {quant}," in line]
        recipe.write_text("".join(kept).replace("name: tensors", f"name: {recipe.stem}"))
    both = stored(recipes, home, tmp_path / "both")
    assert {what: pids for what, pids in both.items() if len(pids) != 1} == {}
    assert both.keys() == contents(home).keys()
    users = Store(home / "store").users()
    shared = {key for key, models in users.items() if len(models) == 2}
    assert len(shared) == 3 * SHAPE.layers, "the routed experts"
    makers = {pid for key in shared for pid in both[f"tensor {key}"]}
    assert len(makers) == 2, "they took turns"
    require_nothing_left(home)
