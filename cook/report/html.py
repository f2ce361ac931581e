"""A report as one HTML file: no script, no address outside, readable in light and dark."""

from __future__ import annotations

import re
from functools import cache, partial
from typing import TYPE_CHECKING

from cook.errors import InternalError
from cook.report.canvas import PAGE, inline_svg
from cook.report.document import Document
from cook.report.palette import DARK, LIGHT, css
from cook.report.public import NAMES_NOTE
from cook.report.texts import clipped

if TYPE_CHECKING:
    from jinja2 import Template
    from markupsafe import Markup

MAX_BYTES = 2_000_000
_QUOTED = re.compile(r"`([^`\n]{1,40})`")
_OPTION = re.compile(r"(?<!\S)(--?[a-z][a-z0-9-]{1,40})(?!\S)")
CHARACTERS_A_ROW = 120
"""A listing may have as many rows' worth of characters as a table has rows."""


def html(document: Document) -> str:
    """``document`` as a page. Every value of the record is escaped by the template.

    Where the page would pass 2 MB, its tables and listings end earlier and say so: the record
    has the rest.
    """
    from markupsafe import Markup

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
        page = _template().render(fixed, most_rows=most_rows)
        if len(page.encode()) < MAX_BYTES:
            return page
    raise InternalError("a report passes 2 MB with its tables cut to 25 rows")


def _unbroken(text: str, words: re.Pattern[str], tag: str) -> Markup:
    """``text`` escaped, with a ``tag`` around ``words`` that keeps each on one line."""
    from markupsafe import Markup, escape

    return Markup(words.sub(rf'<{tag} class="word">\1</{tag}>', str(escape(text))))


@cache
def _template() -> Template:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(PAGE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["kind"] = lambda block: type(block).__name__
    environment.filters["short"] = clipped
    environment.filters["prose"] = partial(_unbroken, words=_QUOTED, tag="code")
    environment.filters["flags"] = partial(_unbroken, words=_OPTION, tag="span")
    return environment.get_template("report.html")
