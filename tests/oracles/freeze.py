"""Frozen outputs of cook: ``python -m tests.oracles.freeze`` writes all of them again.

What stays the same through the rewrite of the house is held by the files of tests/data/oracles.
Arguments go to pytest: ``-m 'not engine'``, ``-k recipes``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FILES = HERE.parent / "data" / "oracles"
FREEZE = "COOK_FREEZE"
COMMAND = "python -m tests.oracles.freeze"


def is_freezing() -> bool:
    return os.environ.get(FREEZE) == "1"


def require_frozen(name: str, lines: Iterable[str]) -> None:
    """``lines`` are those of the frozen file, or become it under the command."""
    file, text = FILES / name, "".join(f"{line}\n" for line in lines)
    if is_freezing():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    frozen = file.read_text(encoding="utf-8") if file.is_file() else ""
    old, new = frozen.splitlines(), text.splitlines()
    gone = [f"- {line}" for line in old if line not in set(new)]
    came = [f"+ {line}" for line in new if line not in set(old)]
    if frozen != text:
        raise AssertionError(
            f"{file.name} is frozen, and cook's output differs from it in {len(gone) + len(came)} "
            "lines:\n"
            + "\n".join((*gone[:12], *came[:12]))
            + f"\nIf the change is meant, `{COMMAND}` writes the file, and the commit says why."
        )


if __name__ == "__main__":
    os.environ[FREEZE] = "1"
    sys.exit(pytest.main(["-q", str(HERE), *sys.argv[1:]]))
