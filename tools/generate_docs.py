"""Writes what is generated: docs/cli.md, flags.md, recipe.md, the recipe's schema, from the code;
docs/when-drafting-pays.md and its plots from a record.

``--check`` writes nothing and exits 1 when one of them is stale (`make lint`).
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WIDTH = "100"
CLI_TITLE = """# Commands

Written by `make docs` from the commands themselves; do not edit.

stdout is the answer, stderr everything else. `--json` prints one JSON document, also for an
error. `--quiet` prints the rows of the answer's tables and nothing else: tab-separated, without
titles, `-` for what is missing; of a build each row begins with `*` (the pick) or nothing. Exit
status: 0 ok, 1 a step failed, 2 usage or recipe, 3 a bug of cook, 4 a gate failed (nothing
qualifies, or a regression), 5 a prerequisite is missing, 130 interrupted.
"""
FLAGS_TITLE = """# Raw flags

Written by `make docs` from cook/engines/options.tsv; do not edit.

`extra` in a recipe's `args` passes flags to the engine's own programs. Recipes are shared between
strangers, and those programs can download over your model, write files, load libraries and listen
to the world, so only flags that were reviewed and found harmless pass, each with a value of its
form, each said once, and only where the program's own `--help` offers it. All others are refused
with the reason, at their line and column, before anything runs. So are they in a record that
`cook serve` is given. What a key of the recipe says is said there.

`--allow-unsafe-args` on the command line lets refused flags through, for a recipe that you trust;
no file can say it. llama.cpp's programs run with `--offline` either way, and no variable of your
shell by which an engine takes options (`LLAMA_ARG_*`, `HF_*`) reaches them.

Replay, traces and timings run in cook's worker, with the parameters of the engine's library that
the server sets for a flag. "In replay" says which flags they follow so; which they go without,
because the flag is the server's alone and changes neither a token nor the time of a decode (a
warning says so); and which end a plan with an error, as only `score: {method: live}` can follow
them.

Reviewed: the bundled llama.cpp (of llama-cpp-python 0.3.36) and ik_llama.cpp 8337e4cd.
"""
RECIPE_NOTE = "<!-- Written by `make docs` from cook/recipe/schema.py; do not edit. -->\n\n"


def command_paths() -> list[tuple[str, ...]]:
    """Every command: the top, then each in the order of the help page."""
    from cook.cli.main import COMMANDS, MEMBERS

    paths: list[tuple[str, ...]] = [()]
    for name in COMMANDS:
        paths += [(name,), *((name, member) for member in MEMBERS.get(name, ()))]
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


def flags() -> str:
    from cook.engines.options import OPTIONS, FlagEffect, RefusalReason
    from cook.engines.worker.loading import in_replay

    parts = [FLAGS_TITLE]
    for flavour, table in OPTIONS.items():
        options = list({option.spellings: option for option in table.values()}.values())
        parts += [
            f"## {flavour}",
            "| flag | value | sets | what | in replay |\n|---|---|---|---|---|",
        ]
        for effect in FlagEffect:
            rows = [
                f"| {_codes(o.spellings)} | {o.value.says if o.value else '-'} | {effect} | {o.why}"
                f" | {in_replay(o)} |"
                for o in options
                if o.effect is effect
            ]
            parts[-1] += "".join(f"\n{row}" for row in rows)
        parts.append("Refused:")
        refused = []
        for reason in RefusalReason:
            words = [word for o in options if o.effect is reason for word in o.spellings]
            refused.append(f"- {reason}: {_codes(words)}")
        parts.append("\n".join(refused))
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _codes(words: Sequence[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)


def generated() -> dict[Path, str]:
    """Every generated file with the text it should have."""
    from cook.recipe.load import schema_file

    sys.path.insert(0, str(ROOT))  # this folder is a package to what is next to it
    from tools.recipe_reference import markdown, schema_text
    from tools.when_drafting_pays import files

    return {
        ROOT / "docs" / "cli.md": cli(),
        ROOT / "docs" / "flags.md": flags(),
        ROOT / "docs" / "recipe.md": RECIPE_NOTE + markdown().rstrip("\n") + "\n",
        schema_file(): schema_text(),
        **files(),
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
