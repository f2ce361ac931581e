"""Write a report: one HTML file, one Markdown file, and its plots as files."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePath

from cook.errors import InputError
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
        written += _plots(document, wanted.plots)
    if wanted.html is not None:
        from cook.report.html import html

        _put(wanted.html, lambda: html(document).encode())
        written.append(wanted.html)
    if wanted.markdown is not None:
        markdown = wanted.markdown
        _put(markdown, lambda: _markdown(document, markdown.parent, wanted.plots).encode())
        written.append(markdown)
    return tuple(written)


def printed(document: Document, plots: Path | None = None) -> str:
    """The Markdown for stdout; links are relative to the current directory."""
    return _markdown(document, Path.cwd(), plots)


def _markdown(document: Document, directory: Path, plots: Path | None) -> str:
    from cook.report.markdown import markdown

    folder = None
    if plots is not None:
        folder = PurePath(os.path.relpath(plots.absolute(), directory.absolute()))
    return markdown(document, folder)


def _plots(document: Document, directory: Path) -> list[Path]:
    from cook.report.canvas import png, svg_file

    written = []
    for plot in document.plots:
        files: tuple[tuple[str, Callable[[], bytes]], ...] = (
            (f"{plot.name}.svg", lambda plot=plot: svg_file(plot).encode()),  # type: ignore[misc]
            (f"{plot.name}.png", lambda plot=plot: png(plot)),  # type: ignore[misc]
            (f"{plot.name}-dark.png", lambda plot=plot: png(plot, dark=True)),  # type: ignore[misc]
        )
        for name, make in files:
            _put(directory / name, make)
            written.append(directory / name)
    return written


def _put(path: Path, make: Callable[[], bytes]) -> None:
    from cook.files import atomic_write

    content = make()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as stream:
            stream.write(content)
    except OSError as error:
        raise InputError(
            f"{path}: {error.strerror or error}",
            hint="name another place with --html, --markdown or --plots",
        ) from None
