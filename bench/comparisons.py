"""cook beside the same work done by hand."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.pairs import Side, paired
from bench.study import Study

ROOT = Path(__file__).resolve().parent.parent
COOK = str(Path(sys.executable).with_name("cook"))
RECIPE = ROOT / "bench" / "recipe.yaml"
IMPORT_TYPER = Side(((sys.executable, "-c", "import typer"),))
_WORKSPACE = re.compile(r"/\S*/store/tmp/[0-9a-f]{32}")


def help_page() -> Study:
    """The cheapest thing cook does."""
    return paired("cook --help", Side(((COOK, "--help"),)), IMPORT_TYPER, 21, most_ratio=1.5)


def empty_rebuild() -> Study:
    """A build whose every step is in the store already."""
    with tempfile.TemporaryDirectory(prefix="cook-bench-") as directory:
        home = Path(directory, "home")
        built(RECIPE, home)
        subject = Side((_build(RECIPE),), {"COOK_HOME": str(home)})
        return paired("empty rebuild", subject, IMPORT_TYPER, 11, most_ratio=4)


def build() -> Study:
    """A whole build in an empty home, against the very commands it ran, run by hand.

    The commands are the record's. By hand they read what the recorded build left and write
    into a folder of their own; nothing is hashed, verified or stored.
    """
    with tempfile.TemporaryDirectory(prefix="cook-bench-") as directory:
        recorded, fresh, by_hand = (Path(directory, n) for n in ("recorded", "fresh", "by-hand"))
        steps = [step for step in built(RECIPE, recorded)["steps"] if step["command"]]
        commands = tuple(
            tuple(_WORKSPACE.sub(str(by_hand / str(index)), word) for word in step["command"])
            for index, step in enumerate(steps)
        )

        def empty_home() -> None:
            shutil.rmtree(fresh, ignore_errors=True)

        def empty_folders() -> None:
            shutil.rmtree(by_hand, ignore_errors=True)
            for index in range(len(commands)):
                (by_hand / str(index)).mkdir(parents=True)

        subject = Side((_build(RECIPE),), {"COOK_HOME": str(fresh)}, empty_home)
        reference = Side(commands, prepare=empty_folders)
        return paired("cook build", subject, reference, 3, most_ratio=1.03, extra_s=2)


def _build(recipe: Path, engine: str = "bundled") -> tuple[str, ...]:
    return (COOK, "build", str(recipe), "--engine", engine, "--json")


def built(recipe: Path, home: Path, engine: str = "bundled") -> dict[str, Any]:
    """The record of one build into ``home``."""
    environ = {**os.environ, "COOK_HOME": str(home)}
    done = subprocess.run(_build(recipe, engine), env=environ, stdout=subprocess.PIPE, check=True)
    record: dict[str, Any] = json.loads(done.stdout)
    return record
