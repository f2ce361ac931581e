"""JSON of somebody else's making, read as the standard has it."""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

_HALVES = re.compile(rb"\\u[dD][89a-fA-F]")
"""Spells a half of a character, which is one with its other half only."""


def loads(text: str | bytes) -> Any:
    """The value; ValueError for what is no JSON, NaN, infinities and bottomless nesting included.

    Python's own reader takes ``NaN`` and ``Infinity``, and makes an infinity of ``1e999``: figures
    that no later check expects. Of ``"\\ud800"`` it makes a text that nothing can write.
    """
    try:
        value = json.loads(text, parse_constant=_refuse, parse_float=_finite)
        if _HALVES.search(text if isinstance(text, bytes) else text.encode()):
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
