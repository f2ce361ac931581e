"""Markdown as GitHub reads it: its words, code and tables, and the documents made of them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import PurePath
from typing import TYPE_CHECKING
from urllib.parse import quote

from cook.report.canvas import PAGE, WIDTHS
from cook.report.document import Document, Table
from cook.report.public import NAMES_NOTE
from cook.report.texts import perplexity, plain
from cook.units import short_size

if TYPE_CHECKING:
    from jinja2 import Template

MISSING = "-"
_SPECIAL = re.compile(r"[&<>|`*\[\]~@#$\\]|^[-+=]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
_BREAKS = re.compile(r"[\t\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]+")


class Marked(str):
    """Markdown already: a template writes it as it is."""

    __slots__ = ()


def text(value: str) -> str:
    """``value`` as plain words: nothing in it is markup, a link or a mention."""
    flat = plain(_BREAKS.sub(" ", value)).strip()
    escaped = _SPECIAL.sub(lambda m: f"&#{ord(m[0])};", flat)
    return escaped.replace("://", ":&#47;/")


def code(value: str) -> Marked:
    """``value`` as code within a line; backticks, which would end it, become apostrophes."""
    return Marked(f"`{plain(_BREAKS.sub(' ', value)).strip().replace('`', chr(39))}`")


def row(cells: Iterable[str | None]) -> str:
    """A line of a table. Cells are Markdown already; None is a missing value."""
    return f"| {' | '.join(MISSING if cell is None else cell for cell in cells)} |"


def head(columns: Iterable[tuple[str, str]]) -> str:
    """The head of a table from (title, alignment): two lines."""
    pairs = tuple(columns)
    rule = "".join("---:|" if align == "right" else "---|" for _, align in pairs)
    return f"{row(text(title) or ' ' for title, _ in pairs)}\n|{rule}"


def fenced(value: str, language: str = "") -> Marked:
    """``value`` as a code block that nothing in it can end."""
    clean = plain(value.replace("\r", "\n"))
    longest = max((len(m) for m in re.findall(r"`{3,}", clean)), default=2)
    fence = "`" * (longest + 1)
    return Marked(f"{fence}{language}\n{clean.rstrip()}\n{fence}")


def table_text(table: Table) -> Marked:
    """The lines of a table, and its caption below."""
    lines = [head(table.columns)]
    for index, cells in enumerate(table.rows):
        shown = [text(cell) if cell is not None else None for cell in cells]
        strong = index == table.strong
        lines.append(row(f"**{cell}**" if strong and cell else cell for cell in shown))
    if table.caption:
        lines += ["", text(table.caption)]
    return Marked("\n".join(lines))


def markdown(document: Document, plots: PurePath | None = None) -> str:
    """``document`` as GitHub's Markdown; ``plots`` is their folder relative to the file.

    Without ``plots`` the tables speak for themselves, and are not folded away.
    """
    return written(
        "report.md.jinja",
        document=document,
        plots=None if plots is None else Marked(quote(plots.as_posix())),
        widths=WIDTHS,
        names_note=NAMES_NOTE,
    )


def written(template: str, **values: object) -> str:
    """The Markdown that a template of ``page/`` makes of ``values``."""
    return _template(template).render(values).rstrip("\n") + "\n"


@cache
def _template(name: str) -> Template:
    """Every value is written as :func:`text`, but for what is :class:`Marked` or a number."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(PAGE),
        undefined=StrictUndefined,
        finalize=lambda value: value if isinstance(value, Marked | int) else text(value),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"code": code, "fenced": fenced, "table": table_text}
    environment.filters["attribute"] = lambda value: Marked(text(value).replace('"', "&quot;"))
    environment.filters |= {"size": short_size, "perplexity": perplexity}
    environment.filters["url"] = lambda value: Marked(quote(value))
    environment.filters["kind"] = lambda block: type(block).__name__
    return environment.get_template(name)
