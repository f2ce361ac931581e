"""Write a report: one HTML file, one Markdown file, and its plots as files."""

from __future__ import annotations

import os
from pathlib import Path, PurePath

from cook.errors import InputError
from cook.files import atomic_write
from cook.report import html as page
from cook.report.canvas import png, svg_file
from cook.report.document import Document
from cook.report.markdown import markdown as text


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
        written.append(_put(html, page.html(document).encode()))
    if markdown is not None:
        written.append(_put(markdown, printed(document, plots, markdown.parent).encode()))
    return tuple(written)


def printed(document: Document, plots: Path | None = None, directory: Path = Path()) -> str:
    """The Markdown; links to ``plots`` are relative to ``directory``."""
    if plots is None:
        return text(document)
    return text(document, PurePath(os.path.relpath(plots, directory)))


def _put(path: Path, content: bytes) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as stream:
            stream.write(content)
    except OSError as error:
        hint = "name another place with --html, --markdown or --plots"
        raise InputError(f"{path}: {error.strerror or error}", hint=hint) from None
    return path
