"""A source of 2 TB: what a plan of it reads and holds, whatever the machine's speed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cook.formats import gguf
from cook.inspection import ModelReport, inspect
from cook.job.plan import plan
from cook.job.prepare import prepare
from tests.giant import VOCABULARY, write_giant

MOST_BYTES = 300e6
MOST_A_QUANT = 256 << 10
"""Bytes of memory that one more candidate may take."""


FEW = """\
quants:
  - {name: a, type: Q4_K_M, rules: [{routed_experts: q2_K}, {attention: q8_0}]}
  - {name: b, type: Q4_K_M, rules: [{routed_experts: q3_K}, {attention: q6_K}]}
  - {name: c, type: Q4_K_M, mixture: pure}
"""
MANY = r"""
sweep:
  name: '{1}-{2}-{3}-{4}-{5}'
  type: Q4_K_M
  over:
    'blk\.7\d\.ffn_down_exps': [q8_0, q6_K]
    routed_experts: [q2_K, q3_K, q4_K, q5_K, q6_K]
    attention: [q4_K, q5_K, q6_K, q8_0, q4_0]
    shared_experts: [q4_K, q5_K, q6_K, q8_0, q4_0]
    output: [q6_K, q8_0]
"""


def recipe(source: Path, quants: str, *, scored: bool = False) -> str:
    """A recipe of ``quants`` of ``source``; with ``scored`` drafting for the source itself."""
    score = f"score: {{target: {{source: '{source}'}}}}\n" if scored else ""
    return f"version: 1\nname: giant\nmodel: {{source: '{source}'}}\n{quants}{score}"


_APART = """
import json, os, sys
quiet = [(os.POSIX_SPAWN_OPEN, n, os.devnull, os.O_WRONLY, 0) for n in (1, 2)]
child = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ, file_actions=quiet)
_, status, usage = os.wait4(child, 0)
code = os.waitstatus_to_exitcode(status)
print(json.dumps([code, usage.ru_maxrss << 10]))
"""
"""Runs its arguments as a command, from a process that is small: Linux counts as a program's peak
what the process that started it held at that moment, and a test run holds more than cook does."""


def peak_bytes(command: Sequence[str], home: Path) -> int:
    """Resident memory of cook's ``command``, at its most, in a process of its own."""
    ran = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _APART, sys.executable, "-m", "cook", *command],
        env={**os.environ, "COOK_HOME": str(home)},
        capture_output=True,
        text=True,
        check=True,
    )
    code, peak = json.loads(ran.stdout)
    assert code == 0
    return int(peak)


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
    one = gguf.read_shard

    def counted(path: Path, **options: Any) -> gguf.GgufFile:
        read[path] += 1
        return one(path, **options)

    monkeypatch.setattr(gguf, "read_shard", counted)
    gguf._kept_header.cache_clear()
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
    least = peak_bytes(["plan", str(few)], home)
    assert least < MOST_BYTES
    assert peak_bytes(["inspect", str(giant)], home) < MOST_BYTES
    most = peak_bytes(["plan", str(many)], home)
    assert (most - least) / 497 < MOST_A_QUANT
