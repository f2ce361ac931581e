"""Damaged inputs: the same kind and number give the same bytes on every machine.

``mutant(seeds, number)`` is one of ``seeds`` with a few things wrong: bytes overwritten, cut,
removed, repeated or mixed with another seed. ``document(seed, number)`` damages JSON where bytes
would seldom hit: a value replaced by one of another type or size, a key gone, twice or renamed.
"""

from __future__ import annotations

import copy
import json
import struct
from collections.abc import Sequence
from random import Random
from typing import Any

WORDS = (0, 1, 7, 8, 9, 255, 2**31 - 1, 2**31, 2**32 - 1, 2**48, 2**63 - 1, 2**64 - 1)
TOKENS = (
    *(b"\n", b"\r\n", b"\x00", b"\x1b[2J", b"\xff", b"\xe2\x80\xae", b"{", b"}", b"[", b'"', b","),
    *(b"null", b"NaN", b"-Infinity", b"1e999", b"-1", b"9" * 30, b"\\ud800", b"[" * 3000),
    *(b"GGUF", b"COOKTRAC", b"slot", b"draft acceptance = 0.5 (1 accepted / 2 generated)"),
)
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, -(2**80), 0.5, -0.0, 1e308, 5e-324),
    *(float("nan"), float("inf"), float("-inf"), "", " ", "\x1b]0;x\x07", "\u202e", "\ud800"),
    *("x" * 5000, "../../etc/passwd", "<script>", "\r\nerror: no", [], {}, [[]], [None], {"": 0}),
)


def mutant(seeds: Sequence[bytes], number: int) -> bytes:
    """Damaged input ``number`` of those that start from ``seeds``."""
    random = Random(number)
    data = bytearray(random.choice(seeds))
    for _ in range(random.randint(1, 4)):
        at = random.randrange(len(data) + 1)
        end = min(len(data), at + random.choice((1, 1, 4, 8, 40, 400)))
        match random.randrange(7):
            case 0:
                word = random.choice((*WORDS, random.getrandbits(64)))
                width = random.choice((1, 4, 8))
                data[at : at + width] = struct.pack("<Q", word)[:width]
            case 1:
                data[at:end] = random.choice(TOKENS)
            case 2:
                data[at:at] = random.choice(TOKENS)
            case 3:
                del data[at:end]
            case 4:
                data[at:at] = data[at:end] * random.choice((1, 2, 50))
            case 5:
                other = random.choice(seeds)
                data[at:] = other[random.randrange(len(other) + 1) :]
            case _:
                del data[at if random.random() < 0.5 else len(data) // 2 :]
    return bytes(data)


def document(seed: Any, number: int) -> str:
    """Damaged JSON ``number`` of ``seed``."""
    random = Random(number)
    tree = copy.deepcopy(seed)
    for _ in range(random.randint(1, 3)):
        parent, key = random.choice(_places(tree))
        match random.randrange(5):
            case 0 if isinstance(parent, dict):
                del parent[key]
            case 1 if isinstance(parent, dict):
                parent[random.choice(("", "x", "\x1b", str(key).upper()))] = parent.pop(key)
            case 2 if isinstance(parent, list):
                parent.insert(key, copy.deepcopy(random.choice(parent)))
            case 3:
                other, where = random.choice(_places(tree))
                parent[key] = copy.deepcopy(other[where])
            case _:
                parent[key] = copy.deepcopy(random.choice(VALUES))
    text = json.dumps(tree)
    if random.random() < 0.02:
        return text[: random.randrange(len(text))]
    return text


def _places(tree: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) of ``tree``; the root's own when nothing is in it."""
    found: list[tuple[Any, Any]] = []
    rest = [tree]
    while rest:
        node = rest.pop()
        keys = list(node) if isinstance(node, dict) else range(len(node))
        for key in keys:
            found.append((node, key))
            if isinstance(node[key], dict | list):
                rest.append(node[key])
    return found or [({"": tree}, "")]
