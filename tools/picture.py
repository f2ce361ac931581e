"""Draw what a build printed as an SVG, for the README: python tools/picture.py RECORD OUT.svg."""

from __future__ import annotations

import argparse
import io
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cook.report.record import read_record
from cook.report.show import shown

WIDTH = 184
COMMAND = "$ make demo"


def picture(record: Path) -> str:
    """The table and the pick of ``record`` as an SVG."""
    told = shown(read_record(record))
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    table = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for title, align in told.columns:
        table.add_column(title, justify="right" if align == "right" else "left", no_wrap=True)
    for row in told.rows:
        style = "bold green" if str(row[0]).startswith("*") else ""
        table.add_row(*(Text(cell or "-", style=style) for cell in row))
    console.print(Text(COMMAND, style="dim"))
    console.print(table)
    for answer in told.answers:
        console.print(Text(answer, style="bold"))
    return console.export_svg(title="cook")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("record", type=Path)
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(picture(given.record), encoding="utf-8")


if __name__ == "__main__":
    main()
