"""What a source is named by (tests/test_files.py has the hashing itself), and what a step costs."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from cook.errors import InputError
from cook.graph.step import Cost, source


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COOK_HOME", str(tmp_path / "home"))


def test_a_source_is_named_by_its_bytes_and_shards_are_one(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    a.write_bytes(b"model")
    b.write_bytes(b"2")
    one = source([a])
    assert one.digest == "sha256:" + hashlib.sha256(b"model").hexdigest()
    assert (one.size_bytes, one.provisional) == (5, False)
    assert len({source(paths).digest for paths in ([a], [b], [a, b], [b, a])}) == 4
    assert source([a, b]).size_bytes == 6
    with pytest.raises(InputError, match="No such file"):
        source([tmp_path / "absent"])


def test_a_plan_does_not_read_a_huge_source(tmp_path: Path) -> None:
    file = tmp_path / "a"
    with file.open("wb") as stream:
        stream.truncate(1 << 40)
    planned = source([file], plan_only=True)
    assert (planned.size_bytes, planned.provisional) == (1 << 40, True)


def test_a_cost_adds_up() -> None:
    cost = Cost((2e9,), 8e9, 0.0, 40e9)
    assert cost.nominal_s == pytest.approx(0.4 + 2.0 + 1.0 + 1.0)
    assert cost.seconds(2.0, 3.0) == pytest.approx(2 * (2.0 + 1.0) + 3 * (0.4 + 1.0))
    assert cost.held_bytes == 2_000_000_000
    assert Cost((2e9, 1e9)).nominal_s == pytest.approx(3.0 + 2 * 0.4)
    assert Cost((2.0, 3.0), memory_bytes=5.0).held_bytes == 5
