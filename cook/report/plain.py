"""Text of a record made fit to be shown: names are data, and may hold anything."""

from __future__ import annotations

from cook.output import printable


def plain(text: str) -> str:
    """``text`` with what acts instead of being seen as escapes; line ends and tabs stay."""
    return printable(text, kept="\n\t")


def clipped(text: str, most: int) -> str:
    """:func:`plain` text of at most ``most`` characters; an ellipsis stands for the rest."""
    clean = plain(text[: most + 1])
    return clean if len(clean) <= most else clean[: most - 1] + "…"
