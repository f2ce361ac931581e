"""JSON from strangers, read as the standard defines it."""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

MAX_PARTS = 2_000_000
"""Lists and objects: two bytes of text each, and up to a hundred times that in memory."""
_HALVES = re.compile(rb"\\u[dD][89a-fA-F]")
"""Spells a half of a character, which is one with its other half only."""


def loads(text: str | bytes) -> Any:
    """The value; ValueError for what is no JSON, NaN, infinities and bottomless nesting included,
    or has more than :data:`MAX_PARTS` parts.

    Python's own reader takes ``NaN`` and ``Infinity``, and makes an infinity of ``1e999``: figures
    that no later check expects. Of ``"\\ud800"`` it makes a text that nothing can write.
    """
    raw = text if isinstance(text, bytes) else text.encode()
    if raw.count(b"[") + raw.count(b"{") > MAX_PARTS:
        raise ValueError(f"more than {MAX_PARTS:,} lists and objects")
    try:
        value = json.loads(text, parse_constant=_refuse, parse_float=_finite)
        if _HALVES.search(raw):
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeError:
        raise ValueError("half of a character is no text") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return value


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number of JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is beyond every number")
    return value
