"""Markdown as GitHub reads it: its words, code and tables, and a whole report of them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePath
from urllib.parse import quote

from cook.report.canvas import WIDTHS, Plot
from cook.report.document import Block, Code, Document, Items, Section, Table, Text
from cook.report.plain import plain
from cook.report.public import SAID

MISSING = "-"
_SPECIAL = re.compile(r"[&<>|`*\[\]~@#$\\]|^[-+=]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
_BREAKS = re.compile(r"[\t\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]+")


def markdown(document: Document, plots: PurePath | None = None) -> str:
    """``document`` as GitHub's Markdown; ``plots`` is their folder relative to the file.

    Without ``plots`` the tables speak for themselves, and are not folded away.
    """
    parts = [f"# {text(document.title)}: {text(document.headline.title)}"]
    parts.append(" · ".join(text(part) for part in document.subtitle))
    parts += _headline(document)
    for section in document.shown:
        parts += _section(section, plots)
    if document.absent:
        parts.append("## Not in this record")
        parts.append(
            "\n".join(f"- {text(s.title)}: {text(s.absent or '')}." for s in document.absent)
        )
    return "\n\n".join(part for part in parts if part) + "\n"


def text(value: str) -> str:
    """``value`` as plain words: nothing in it is markup, a link or a mention."""
    flat = plain(_BREAKS.sub(" ", value)).strip()
    escaped = _SPECIAL.sub(lambda m: f"&#{ord(m[0])};", flat)
    return escaped.replace("://", ":&#47;/")


def code(value: str) -> str:
    """``value`` as code within a line; backticks, which would end it, become apostrophes."""
    return f"`{plain(_BREAKS.sub(' ', value)).strip().replace('`', chr(39))}`"


def row(cells: Iterable[str | None]) -> str:
    """A line of a table. Cells are Markdown already; None is a missing value."""
    return f"| {' | '.join(MISSING if cell is None else cell for cell in cells)} |"


def head(columns: Iterable[tuple[str, str]]) -> str:
    """The head of a table from (title, alignment): two lines."""
    pairs = tuple(columns)
    rule = "".join("---:|" if align == "right" else "---|" for _, align in pairs)
    return f"{row(text(title) or ' ' for title, _ in pairs)}\n|{rule}"


def fenced(value: str, language: str = "") -> str:
    """``value`` as a code block that nothing in it can end."""
    clean = plain(value.replace("\r", "\n"))
    longest = max((len(m) for m in re.findall(r"`{3,}", clean)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}{language}\n{clean.rstrip()}\n{fence}"


def _headline(document: Document) -> list[str]:
    first = document.headline
    parts = [f"**{text(first.why)}**"]
    if first.facts:
        titles = tuple((fact.label, "left") for fact in first.facts)
        rows = (tuple(f.value for f in first.facts), tuple(f.note for f in first.facts))
        parts.append(table_text(Table(titles, rows, strong=0)))
    if facts := (*document.evidence, *document.answers):
        lines = tuple((fact.label, fact.value) for fact in facts)
        parts.append(table_text(Table((("", "left"), ("", "left")), lines)))
    if first.warnings:
        word = "warning" if first.warnings == 1 else "warnings"
        parts.append(f"{first.warnings} {word}: see below.")
    if first.command is not None:
        parts += [fenced(first.command, "sh"), text(SAID)]
    else:
        parts.append(f"No server command: {text(first.command_absent or 'not recorded')}.")
    return parts


def _section(section: Section, plots: PurePath | None) -> list[str]:
    """A heading and what stands under it; a folded one is opened by a click on GitHub."""
    title = text(section.title)
    body = [text(section.lead), *(_block(block, plots) for block in section.blocks)]
    if not section.folded:
        return [f"## {title}", *body]
    return [f"<details><summary>{title}</summary>", *body, "</details>"]


def _block(block: Block, plots: PurePath | None) -> str:
    if isinstance(block, Text):
        return text(block.text)
    if isinstance(block, Items):
        return "\n".join(f"- {text(item)}" for item in block.items)
    if isinstance(block, Code):
        return _folded(block.title, fenced(block.text))
    if isinstance(block, Table):
        return _folded(block.title if plots is not None else None, table_text(block))
    return _picture(block, plots)


def _folded(title: str | None, body: str) -> str:
    if title is None:
        return body
    return f"<details><summary>{text(title)}</summary>\n\n{body}\n\n</details>"


def table_text(table: Table) -> str:
    """The lines of a table, and its caption below."""
    lines = [head(table.columns)]
    for index, cells in enumerate(table.rows):
        shown = [text(cell) if cell is not None else None for cell in cells]
        strong = index == table.strong
        lines.append(row(f"**{cell}**" if strong and cell else cell for cell in shown))
    if table.caption:
        lines += ["", text(table.caption)]
    return "\n".join(lines)


def _picture(plot: Plot, plots: PurePath | None) -> str:
    if plots is None:
        return ""
    base = quote((plots / plot.name).as_posix())
    alt = text(plot.alt).replace('"', "&quot;")
    return (
        f'<picture><source media="(prefers-color-scheme: dark)" srcset="{base}-dark.png">'
        f'<img src="{base}.png" alt="{alt}" width="{WIDTHS[plot.width]}">'
        "</picture>"
    )
