"""A table, or a sentence, as lines that fit a width and break inside no word.

Numbers, flags and paths are words here: a line that one of them does not fit stays too long. A
table that is too wide gives way in this order: titles go over several lines; cells of text go over
several lines; the first column stands on a line of its own; each row becomes a list of its figures.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Literal
from unicodedata import combining, east_asian_width

GAP = "  "
HANGING = "  "
"""Before what a cell goes on with."""
INDENT = "    "
"""Before what stands below the first column's cell."""


@dataclass(frozen=True)
class Column:
    """A table's column; numbers read best aligned ``right``, and only text goes over lines."""

    title: str
    align: Literal["left", "right"] = "left"


Rows = Sequence[Sequence[str]]
_BEGINNING = re.compile(r" *(?:\* )?")


def width_of(text: str) -> int:
    """How many places of a terminal ``text`` takes."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(c) else 2 if east_asian_width(c) in "WF" else 1 for c in text)


def wrapped(text: str, width: int, indent: str = "") -> list[str]:
    """``text`` in lines of at most ``width`` places, broken at spaces; ``indent`` before all but
    the first. What it begins with, spaces and a mark (``* ``), stays with its first word.
    """
    first = _BEGINNING.match(text)
    start = len(first[0]) if first else 0
    words = text[start:].split(" ")
    lines, line = [], text[:start] + words[0]
    for word in words[1:]:
        if width_of(f"{line} {word}") > width:
            lines.append(line)
            line = " " * start + indent + word
        else:
            line += f" {word}"
    return [*lines, line]


def table(rows: Rows, columns: Sequence[Column], width: int | None = None) -> list[str]:
    """The lines of a table with its titles; ``width`` None: as wide as it is."""
    cells = [max((width_of(row[i]) for row in rows), default=0) for i in range(len(columns))]
    natural = [max(w, width_of(column.title)) for w, column in zip(cells, columns, strict=True)]
    width = _total(natural) if width is None else width
    widths = natural if _total(natural) <= width else _fitted(rows, columns, width)
    if widths is not None:
        body = [line for row in rows for line in _lines(row, columns, widths)]
        return [*_heads(columns, widths), *body]
    rest = [row[1:] for row in rows]
    below = _fitted(rest, columns[1:], width - len(INDENT))
    if below is None or len(columns) < 2:
        return list(_listed(rows, columns, width))
    lines = [columns[0].title]
    lines += [INDENT + line for line in _heads(columns[1:], below)]
    for row, figures in zip(rows, rest, strict=True):
        lines.append(row[0].rstrip())
        lines += [(INDENT + line).rstrip() for line in _lines(figures, columns[1:], below)]
    return lines


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _fitted(rows: Rows, columns: Sequence[Column], width: int) -> list[int] | None:
    """Widths that add up to at most ``width``; None where no word may be left whole then."""
    least, widths = [], []
    for i, column in enumerate(columns):
        title = max(width_of(word) for word in column.title.split(" "))
        cells = [row[i] for row in rows]
        whole = max((width_of(cell) for cell in cells), default=0)
        words = (word for cell in cells for word in wrapped(cell, 0, HANGING))
        word = max(map(width_of, words), default=0)
        least.append(max(title, word if column.align == "left" else whole))
        widths.append(max(title, whole))
    while _total(widths) > width:
        room = [w - few for w, few in zip(widths, least, strict=True)]
        if not any(room):
            return None
        # The widest of those that can give way.
        at = max((i for i, r in enumerate(room) if r), key=lambda i: widths[i])
        widths[at] -= 1
    return widths


def _heads(columns: Sequence[Column], widths: Sequence[int]) -> list[str]:
    """Titles over as many lines as they need, the last words on the last line."""
    broken = [wrapped(c.title, w)[::-1] for c, w in zip(columns, widths, strict=True)]
    return _next_to_each_other(broken, columns, widths)[::-1]


def _lines(row: Sequence[str], columns: Sequence[Column], widths: Sequence[int]) -> list[str]:
    """One row; text that is wider than its column goes on below."""
    broken = [
        wrapped(cell, w, HANGING) if column.align == "left" else [cell]
        for cell, column, w in zip(row, columns, widths, strict=True)
    ]
    return _next_to_each_other(broken, columns, widths)


def _next_to_each_other(
    cells: Sequence[Sequence[str]], columns: Sequence[Column], widths: Sequence[int]
) -> list[str]:
    """The lines of each cell in its column, the first of all in one line."""
    lines = []
    for parts in zip_longest(*cells, fillvalue=""):
        padded = []
        for part, column, width in zip(parts, columns, widths, strict=True):
            space = " " * (width - width_of(part))
            padded.append(space + part if column.align == "right" else part + space)
        lines.append(GAP.join(padded).rstrip())
    return lines


def _listed(rows: Rows, columns: Sequence[Column], width: int) -> Iterator[str]:
    """Each row as its first cell and ``title value`` of all others; no title and value part."""
    for row in rows:
        yield row[0].rstrip()
        line = INDENT
        for cell, column in zip(row[1:], columns[1:], strict=True):
            pair = f"{column.title} {cell}".strip()
            if line.strip() and width_of(f"{line}, {pair}") >= width:
                yield f"{line},"
                line = INDENT
            line += f", {pair}" if line.strip() else pair
        if line.strip():
            yield line
