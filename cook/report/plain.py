"""Text of a record made fit to be shown: names are data, and may hold anything."""

from __future__ import annotations

import re

UNSEEN = "\ufffd"
# C0 and C1 controls, lone surrogates, non-characters, and what turns the direction of a line.
_CONTROL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)


def plain(text: str) -> str:
    """``text`` without characters that act instead of being seen; line ends and tabs stay."""
    return _CONTROL.sub(UNSEEN, text)


def clipped(text: str, most: int) -> str:
    """:func:`plain` text of at most ``most`` characters; an ellipsis tells of the rest."""
    clean = plain(text[: most + 1])
    return clean if len(clean) <= most else clean[: most - 1] + "…"
