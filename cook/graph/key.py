"""The key of an artifact: a hash of all that decides its content.

Steps and pieces are named by it, and the store looks whether an artifact's key still follows from
the parts that were written down with it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any


def as_read_back(parts: Mapping[str, Any]) -> dict[str, Any]:
    """``parts`` as JSON returns them, so that what is stored compares equal to what is asked."""
    normal: dict[str, Any] = json.loads(json.dumps(parts, allow_nan=False))
    return normal


def key_of(parts: Mapping[str, Any]) -> str:
    """SHA-256, in hexadecimal, of ``parts`` as canonical JSON."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
