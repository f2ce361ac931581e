"""Headers of safetensors files: what is in them, not the weights.

Layout (safetensors' own README): a little-endian u64, a JSON object of so many bytes, the data.
"""

from __future__ import annotations

import json
from math import prod
from pathlib import Path

from cook.errors import InputError
from cook.formats.cursor import Cursor

MAX_HEADER_BYTES = 100_000_000
"""The format's own limit."""


def parameters(path: Path) -> int:
    """How many numbers the file holds; InputError for a file that is none or is cut short."""
    with Cursor(path, MAX_HEADER_BYTES + 8) as cursor:
        length = cursor.u64("header length")
        if length > MAX_HEADER_BYTES:
            cursor.fail("header length", f"{length} is more than {MAX_HEADER_BYTES}", at=0)
        try:
            header = json.loads(cursor.take(length, "header"))
            entries = [entry for name, entry in header.items() if name != "__metadata__"]
            shapes = [entry["shape"] for entry in entries]
            ends = [int(entry["data_offsets"][1]) for entry in entries]
            if any(type(n) is not int or n < 0 for shape in shapes for n in shape):
                raise TypeError
        except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
            raise InputError(f"{path}: header at byte 8: not a safetensors header") from None
        end = 8 + length + max(ends, default=0)
        if end > cursor.file_bytes:
            raise InputError(f"{path}: needs {end} bytes and the file has {cursor.file_bytes}")
    return sum(prod(shape) for shape in shapes)
