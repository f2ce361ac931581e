"""JSON of somebody else's making, read as the standard has it."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn


def loads(text: str | bytes) -> Any:
    """The value; ValueError for what is no JSON, NaN, infinities and bottomless nesting included.

    Python's own reader takes ``NaN`` and ``Infinity``, and makes an infinity of ``1e999``: figures
    that no later check expects.
    """
    try:
        return json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number of JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is beyond every number")
    return value
