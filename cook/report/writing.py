"""Write a report: one HTML file, one Markdown file, and its plots as files."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path, PurePath

from cook.errors import InputError
from cook.files import atomic_write
from cook.report.document import Document


@dataclass(frozen=True)
class ReportRequest:
    """Where to write what; ``markdown`` may be ``-``, which is left to the caller to print."""

    html: Path | None = None
    markdown: Path | None = None
    plots: Path | None = None


def write_report(document: Document, wanted: ReportRequest) -> tuple[Path, ...]:
    """The files written, each whole or absent; InputError where a place can't be written to."""
    written: list[Path] = []
    if wanted.plots is not None:
        from cook.report.canvas import png, svg_file

        for plot in document.plots:
            written += [
                _put(wanted.plots / f"{plot.name}.svg", svg_file(plot).encode()),
                _put(wanted.plots / f"{plot.name}.png", png(plot)),
                _put(wanted.plots / f"{plot.name}-dark.png", png(plot, dark=True)),
            ]
    if wanted.html is not None:
        from cook.report.html import html

        written.append(_put(wanted.html, html(document).encode()))
    if wanted.markdown is not None:
        text = printed(document, wanted.plots, wanted.markdown.parent)
        written.append(_put(wanted.markdown, text.encode()))
    return tuple(written)


def printed(document: Document, plots: Path | None = None, directory: Path = Path()) -> str:
    """The Markdown; links to ``plots`` are relative to ``directory``."""
    from cook.report.markdown import markdown

    if plots is None:
        return markdown(document)
    return markdown(document, PurePath(os.path.relpath(plots, directory)))


def _put(path: Path, content: bytes) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as stream:
            stream.write(content)
    except OSError as error:
        hint = "name another place with --html, --markdown or --plots"
        raise InputError(f"{path}: {error.strerror or error}", hint=hint) from None
    return path
