"""Photograph a report in Chromium: python tools/screenshot.py REPORT.html OUT.png.

For the README's picture, and for looking at a report in both themes and at a phone's width.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
COLOURS = 256
MOST_BYTES = 290_000
Theme = Literal["light", "dark"]


def program() -> str | None:
    """The installed Chromium, or None."""
    return next((found for name in PROGRAMS if (found := shutil.which(name))), None)


@contextmanager
def chromium(width: int = 1280, height: int = 900) -> Iterator[BrowserContext]:
    """A headless Chromium with an empty profile, offline, gone when the block ends."""
    from playwright.sync_api import sync_playwright

    found = program()
    if found is None:
        raise SystemExit("error: no Chromium\nhint: sudo apt install chromium")
    with tempfile.TemporaryDirectory() as profile, sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            profile,
            executable_path=found,
            headless=True,
            args=list(FLAGS),
            viewport={"width": width, "height": height},
            offline=True,
        )
        try:
            yield context
        finally:
            context.close()


def photograph(
    context: BrowserContext, file: Path, width: int, height: int | None, theme: Theme
) -> bytes:
    """A PNG of ``file`` at ``width`` CSS pixels; ``height`` None: the whole page."""
    page = context.new_page()
    try:
        page.emulate_media(color_scheme=theme)
        page.set_viewport_size({"width": width, "height": height or 900})
        page.goto(file.resolve().as_uri())
        return page.screenshot(full_page=height is None)
    finally:
        page.close()


def reduced(png: bytes) -> bytes:
    """The same picture packed well; with fewer colours only where it would be too large."""
    from PIL import Image

    stream = BytesIO()
    with Image.open(BytesIO(png)) as image:
        whole = image.convert("RGB")
        whole.save(stream, "PNG", optimize=True)
        if stream.tell() <= MOST_BYTES:
            return stream.getvalue()
        stream = BytesIO()
        whole.quantize(COLOURS, dither=Image.Dither.NONE).save(stream, "PNG", optimize=True)
    return stream.getvalue()


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("report", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--height", type=int, help="absent: the whole page")
    parser.add_argument("--dark", action="store_true")
    given = parser.parse_args(arguments)
    with chromium() as context:
        theme: Theme = "dark" if given.dark else "light"
        picture = reduced(photograph(context, given.report, given.width, given.height, theme))
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_bytes(picture)
    print(f"{given.out}: {len(picture)} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
