"""A source of 2 TB: what a plan of it reads and holds, whatever the machine's speed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from bench.giant import VOCABULARY, write_giant
from bench.scale import FEW, MANY, MOST_BYTES, cost, recipe
from cook.build.plan import plan
from cook.build.prepare import prepare
from cook.formats import gguf, headers
from cook.inspection import ModelReport, inspect

MOST_A_QUANT = 256 << 10
"""Bytes of memory that one more candidate may take."""


@pytest.fixture(scope="module")
def giant(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        return write_giant(tmp_path_factory.mktemp("giant"))
    except OSError as error:
        pytest.skip(f"no sparse files of terabytes here: {error}")


def test_the_giant_is_what_it_says(giant: Path) -> None:
    report = inspect(giant)
    assert isinstance(report, ModelReport)
    assert report.file_bytes is not None
    assert 1.99e12 < report.file_bytes < 2.01e12
    assert (report.layers, report.experts, report.vocabulary) == (80, 256, VOCABULARY)
    assert report.total.tensors == 1103
    on_disk = sum(512 * shard.stat().st_blocks for shard in giant.parent.glob("*.gguf"))
    assert on_disk < 64 << 20


@pytest.mark.engine
@pytest.mark.parametrize("scored", [False, True])
def test_a_plan_reads_every_header_once(
    giant: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scored: bool
) -> None:
    monkeypatch.setenv("COOK_HOME", str(tmp_path / "home"))
    path = tmp_path / "few.yaml"
    path.write_text(recipe(giant, FEW, scored=scored))
    read: Counter[Path] = Counter()
    one = gguf._read_shard

    def counted(path: Path, index: int, complete: bool) -> gguf.GgufFile:
        read[path] += 1
        return one(path, index, complete)

    monkeypatch.setattr(gguf, "_read_shard", counted)
    headers._read.cache_clear()
    planned = plan(prepare(path, engines=["bundled"], plan_only=True))
    assert sum(step.kind == "quantize" for step in planned.steps) == 3
    shards = {path: count for path, count in read.items() if path.parent == giant.parent}
    assert len(shards) == len(list(giant.parent.glob("*.gguf")))
    # The first is read once more to find that it is one of several.
    assert max(shards.values()) <= 2
    assert sum(shards.values()) == len(shards) + 1


@pytest.mark.engine
def test_a_plan_and_an_inspection_take_little_memory(giant: Path, tmp_path: Path) -> None:
    few, many = tmp_path / "few.yaml", tmp_path / "many.yaml"
    few.write_text(recipe(giant, FEW))
    many.write_text(recipe(giant, MANY))
    home = tmp_path / "home"
    least = cost(["plan", str(few)], home).peak_bytes
    assert least < MOST_BYTES
    assert cost(["inspect", str(giant)], home).peak_bytes < MOST_BYTES
    most = cost(["plan", str(many)], home).peak_bytes
    assert (most - least) / 497 < MOST_A_QUANT
