"""Shared content of two texts."""

from __future__ import annotations

import json
from pathlib import Path

from cook.recipe.text_overlap import compare_texts


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def words(start: int, count: int) -> str:
    return " ".join(f"w{i * 7919 % 100003}" for i in range(start, start + count))


def test_identical_bytes(tmp_path: Path) -> None:
    one, two = write(tmp_path / "a", words(0, 100)), write(tmp_path / "b", words(0, 100))
    assert compare_texts(one, two).identical
    assert compare_texts(one, one).share == 1.0


def test_a_part_is_found_wherever_it_stands(tmp_path: Path) -> None:
    part = words(50_000, 2000)
    whole = write(tmp_path / "a", f"{words(0, 5000)} {part} {words(10_000, 5000)}")
    again = write(tmp_path / "b", part.upper().replace(" ", "\n"))
    share = compare_texts(whole, again).share
    assert share is not None
    assert share > 0.9


def test_nothing_in_common(tmp_path: Path) -> None:
    overlap = compare_texts(
        write(tmp_path / "a", words(0, 5000)), write(tmp_path / "b", words(50_000, 5000))
    )
    assert overlap.shared == 0
    assert overlap.smaller > 500


def test_prompts_are_compared_by_their_strings(tmp_path: Path) -> None:
    text = write(tmp_path / "a.txt", f"{words(0, 3000)}\n{words(60_000, 500)}")
    lines = [json.dumps({"id": "x", "prompt": words(60_000, 500)}), "not json"]
    prompts = write(tmp_path / "p.jsonl", "\n".join(lines))
    assert compare_texts(text, prompts).shared > 50


def test_empty_and_short_texts(tmp_path: Path) -> None:
    empty, short = write(tmp_path / "a", ""), write(tmp_path / "b", "a few words")
    assert compare_texts(empty, short).share is None
