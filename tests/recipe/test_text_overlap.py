"""Shared content of two texts."""

from __future__ import annotations

import json
from pathlib import Path

from cook.recipe.text_overlap import Overlap, compare_texts


def words(start: int, count: int) -> str:
    return " ".join(f"w{i * 7919 % 100003}" for i in range(start, start + count))


def overlap(folder: Path, one: str, two: str, name: str = "b") -> Overlap:
    (folder / "a").write_text(one)
    (folder / name).write_text(two)
    return compare_texts(folder / "a", folder / name)


def test_identical_bytes(tmp_path: Path) -> None:
    assert overlap(tmp_path, words(0, 100), words(0, 100)).identical
    assert compare_texts(tmp_path / "a", tmp_path / "a").share == 1.0


def test_a_part_is_found_wherever_it_stands(tmp_path: Path) -> None:
    part = words(50_000, 2000)
    whole = f"{words(0, 5000)} {part} {words(10_000, 5000)}"
    assert (overlap(tmp_path, whole, part.upper().replace(" ", "\n")).share or 0) > 0.9


def test_nothing_in_common(tmp_path: Path) -> None:
    found = overlap(tmp_path, words(0, 5000), words(50_000, 5000))
    assert found.shared == 0
    assert found.smaller > 500
    assert overlap(tmp_path, "", "a few words").share is None


def test_prompts_are_compared_by_their_strings(tmp_path: Path) -> None:
    text = f"{words(0, 3000)}\n{words(60_000, 500)}"
    lines = [json.dumps({"id": "x", "prompt": words(60_000, 500)}), "not json"]
    assert overlap(tmp_path, text, "\n".join(lines), "p.jsonl").shared > 50
