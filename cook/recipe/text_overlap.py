"""Whether two texts share content: calibration text must not be scored or evaluated on."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from cook.files import file_sha256

MAX_BYTES = 8 << 20
"""Bytes read of each text; larger ones are compared by their beginning."""
SHINGLE_WORDS = 40
"""A run of equal words this long is a copy, not a turn of phrase."""


@dataclass(frozen=True)
class Overlap:
    """``shared`` of ``smaller`` sampled passages of the smaller text are in the other, too.

    ``identical``: the same bytes.
    """

    shared: int
    smaller: int
    identical: bool = False

    @property
    def share(self) -> float | None:
        """``shared`` of ``smaller``; None without a passage to compare."""
        if self.identical:
            return 1.0
        return self.shared / self.smaller if self.smaller else None


def compare_texts(first: Path, second: Path) -> Overlap:
    """The overlap of two text files (.jsonl counts by its strings); OSError if unreadable."""
    if first.samefile(second) or file_sha256(first) == file_sha256(second):
        return Overlap(0, 0, identical=True)
    ours, theirs = _passages(first), _passages(second)
    # A text shorter than a passage is compared whole, in both directions.
    return Overlap(len(ours & theirs), min(len(ours), len(theirs)))


def _passages(path: Path) -> frozenset[int]:
    """Hashes of every run of SHINGLE_WORDS words, thinned by content so that copies still meet."""
    with path.open("rb") as stream:
        texts = [stream.read(MAX_BYTES).decode("utf-8", "replace")]
    if path.suffix == ".jsonl":
        lines, texts = texts[0].splitlines(), []
        for line in lines:
            try:
                _strings(json.loads(line), texts)
            except (ValueError, RecursionError):
                texts.append(line)
    found: set[int] = set()
    for text in texts:
        words = [hash_word(w) for w in text.lower().split()]
        if len(words) <= SHINGLE_WORDS:
            if len(words) >= 8:
                found.add(_roll(words))
            continue
        weight = pow(_BASE, SHINGLE_WORDS - 1, _MODULUS)
        value = _roll(words[:SHINGLE_WORDS])
        found.add(value)
        for i in range(SHINGLE_WORDS, len(words)):
            value = ((value - words[i - SHINGLE_WORDS] * weight) * _BASE + words[i]) % _MODULUS
            if value % 4 == 0:
                found.add(value)
    return frozenset(found)


_BASE, _MODULUS = 1_000_003, (1 << 61) - 1


def hash_word(word: str) -> int:
    """A number for a word, the same in every process."""
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=7).digest(), "big")


def _roll(words: list[int]) -> int:
    value = 0
    for word in words:
        value = (value * _BASE + word) % _MODULUS
    return value


def _strings(value: object, out: list[str]) -> None:
    if isinstance(value, str):
        out.append(value)
    elif isinstance(value, dict):
        for item in value.values():
            _strings(item, out)
    elif isinstance(value, list):
        for item in value:
            _strings(item, out)
