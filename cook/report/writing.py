"""A report's forms: one HTML file (no script, no address outside, readable in light and dark),
Markdown as GitHub reads it, and its plots as files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from functools import partial
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from cook.errors import InputError, InternalError
from cook.files import atomic_write
from cook.report.canvas import DARK, LIGHT, PAGE, WIDTHS, css, inline_svg, png, svg_file
from cook.report.document import Document, Table
from cook.report.public import NAMES_NOTE
from cook.report.texts import clipped, perplexity, plain
from cook.units import short_size

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup


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
    """The Markdown that a template of ``page/`` makes of ``values``.

    Every value is written as :func:`text`, but for what is :class:`Marked` or a number.
    """
    environment = _environment(finalize=lambda v: v if isinstance(v, Marked | int) else text(v))
    environment.filters |= {
        "code": code,
        "fenced": fenced,
        "table": table_text,
        "attribute": lambda value: Marked(text(value).replace('"', "&quot;")),
        "size": short_size,
        "perplexity": perplexity,
        "url": lambda value: Marked(quote(value)),
    }
    return environment.get_template(template).render(values).rstrip("\n") + "\n"


def _environment(**how: Any) -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(PAGE),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        **how,
    )
    environment.filters["kind"] = lambda block: type(block).__name__
    return environment


MAX_BYTES = 2_000_000
_QUOTED = re.compile(r"`([^`\n]{1,40})`")
_OPTION = re.compile(r"(?<!\S)(--?[a-z][a-z0-9-]{1,40})(?!\S)")
CHARACTERS_A_ROW = 120
"""A listing may have as many rows' worth of characters as a table has rows."""


def html_page(document: Document) -> str:
    """``document`` as a page. Every value of the record is escaped by the template.

    Where the page would pass 2 MB, its tables and listings end earlier and say so: the record
    has the rest.
    """
    from markupsafe import Markup

    environment = _environment(autoescape=True)
    environment.filters |= {
        "short": clipped,
        "prose": partial(_unbroken, words=_QUOTED, tag="code"),
        "flags": partial(_unbroken, words=_OPTION, tag="span"),
    }
    template = environment.get_template("report.html")
    fixed = {
        "document": document,
        "pictures": {plot.name: Markup(inline_svg(plot)) for plot in document.plots},
        "light": Markup(css(LIGHT)),
        "dark": Markup(css(DARK)),
        "style": Markup((PAGE / "report.css").read_text(encoding="utf-8")),
        "characters_a_row": CHARACTERS_A_ROW,
        "names_note": NAMES_NOTE,
    }
    for most_rows in (2000, 400, 100, 25):
        page = template.render(fixed, most_rows=most_rows)
        if len(page.encode()) < MAX_BYTES:
            return page
    raise InternalError("a report passes 2 MB with its tables cut to 25 rows")


def _unbroken(text: str, words: re.Pattern[str], tag: str) -> Markup:
    """``text`` escaped, with a ``tag`` around ``words`` that keeps each on one line."""
    from markupsafe import Markup, escape

    return Markup(words.sub(rf'<{tag} class="word">\1</{tag}>', str(escape(text))))


def write_report(
    document: Document,
    *,
    html: Path | None = None,
    markdown: Path | None = None,
    plots: Path | None = None,
) -> tuple[Path, ...]:
    """The files written, each whole or absent; InputError where a place can't be written to."""
    written: list[Path] = []
    if plots is not None:
        for plot in document.plots:
            written += [
                _put(plots / f"{plot.name}.svg", svg_file(plot).encode()),
                _put(plots / f"{plot.name}.png", png(plot)),
                _put(plots / f"{plot.name}-dark.png", png(plot, dark=True)),
            ]
    if html is not None:
        written.append(_put(html, html_page(document).encode()))
    if markdown is not None:
        written.append(_put(markdown, printed(document, plots, markdown.parent).encode()))
    return tuple(written)


def printed(document: Document, plots: Path | None = None, directory: Path = Path()) -> str:
    """The Markdown; links to ``plots`` are relative to ``directory``."""
    return markdown(document, PurePath(os.path.relpath(plots, directory)) if plots else None)


def _put(path: Path, content: bytes) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as stream:
            stream.write(content)
    except OSError as error:
        hint = "name another place with --html, --markdown or --plots"
        raise InputError(f"{path}: {error.strerror or error}", hint=hint) from None
    return path
