"""Threads where no one sets a number: the engines' own count, within what cook may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cook.engines.threads import default_threads, engine_threads


def system(folder: Path, siblings: list[str], efficient: str = "") -> Path:
    """A /sys/devices with one processor for each of ``siblings``."""
    for number, listed in enumerate(siblings):
        topology = folder / f"system/cpu/cpu{number}/topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings").write_text(f"{listed}\n")
    if efficient:
        (folder / "cpu_atom").mkdir()
        (folder / "cpu_atom/cpus").write_text(f"{efficient}\n")
    return folder


def may_use(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(count)))


def test_two_threads_of_a_core_are_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    may_use(monkeypatch, 8)
    cores = system(tmp_path, ["11", "22", "44", "88"] * 2)
    assert engine_threads(cores) == default_threads(cores) == 4


def test_efficiency_cores_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    may_use(monkeypatch, 8)
    cores = system(tmp_path, ["03", "03", "0c", "0c", "10", "20", "40", "80"], "4-6,7")
    assert engine_threads(cores) == 2


def test_no_more_than_cook_may_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    may_use(monkeypatch, 2)
    cores = system(tmp_path, ["1", "2", "4", "8"])
    assert engine_threads(cores) == 4
    assert default_threads(cores) == 2


def test_without_a_system_that_lists_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    assert engine_threads(tmp_path) == 8
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    assert engine_threads(tmp_path) == 4
