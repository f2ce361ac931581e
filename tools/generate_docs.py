"""Writes what is generated from the code: docs/cli.md, docs/recipe.md and the recipe's schema.

``--check`` writes nothing and exits 1 when one of them is stale (`make lint`).
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WIDTH = "100"
CLI_TITLE = """# Commands

Written by `make docs` from the commands themselves; do not edit.

stdout is the answer, stderr everything else. `--json` prints one JSON document, also for an
error; `--quiet` prints the answer alone, tables as tab-separated values. Exit status: 0 ok,
1 a step failed, 2 usage or recipe, 3 a bug of cook, 4 a gate failed (nothing qualifies, or a
regression), 5 a prerequisite is missing, 130 interrupted.
"""
RECIPE_NOTE = "<!-- Written by `make docs` from cook/recipe/schema.py; do not edit. -->\n\n"


def command_paths() -> list[tuple[str, ...]]:
    """Every command: the top, then each in the order of the help page."""
    from cook.cli.commands import COMMANDS

    paths: list[tuple[str, ...]] = [()]
    for name, command in COMMANDS.items():
        paths += [(name,), *((name, member) for member in command.members)]
    return paths


def help_page(path: tuple[str, ...]) -> str:
    """What ``cook <path> --help`` prints, at a fixed width."""
    from cook.cli.main import main

    sink = io.StringIO()
    with contextlib.redirect_stdout(sink):
        status = main([*path, "--help"])
    if status != 0:
        raise SystemExit(f"cook {' '.join(path)} --help exits {status}")
    return "\n".join(line.rstrip() for line in sink.getvalue().splitlines()).strip()


def cli() -> str:
    parts = [CLI_TITLE]
    for path in command_paths():
        level = "#" * (2 if len(path) < 2 else 3)
        parts.append(f"{level} {' '.join(('cook', *path))}\n\n```text\n{help_page(path)}\n```\n")
    return "\n".join(parts)


def generated() -> dict[Path, str]:
    """Every generated file with the text it should have."""
    from cook.recipe.json_schema import SCHEMA_FILE, markdown, schema_text

    return {
        ROOT / "docs" / "cli.md": cli(),
        ROOT / "docs" / "recipe.md": RECIPE_NOTE + markdown().rstrip("\n") + "\n",
        SCHEMA_FILE: schema_text(),
    }


def main(arguments: list[str]) -> int:
    os.environ["COLUMNS"] = WIDTH
    stale = [
        (path, text)
        for path, text in generated().items()
        if not path.is_file() or path.read_text(encoding="utf-8") != text
    ]
    for path, text in stale:
        if arguments == ["--check"]:
            print(f"{path.relative_to(ROOT)} is stale: run `make docs`", file=sys.stderr)
        else:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path.relative_to(ROOT)}", file=sys.stderr)
    return 1 if stale and arguments == ["--check"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
