"""What is compared with what, and the bounds; each comparison is a name and a context manager."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from bench.hostile_log import hostile_log
from bench.pairs import Pair, Side

ROOT = Path(__file__).resolve().parent.parent
COOK = str(Path(sys.executable).with_name("cook"))
RECIPE = ROOT / "bench" / "recipe.yaml"
IMPORT_TYPER = Side(((sys.executable, "-c", "import typer"),))
_WORKSPACE = re.compile(r"/\S*/store/tmp/[0-9a-f]{32}")


@contextmanager
def help_page() -> Iterator[Pair]:
    """The cheapest thing cook does."""
    subject = Side(((COOK, "--help"),))
    yield Pair("cook --help", subject, IMPORT_TYPER, most_ratio=1.5, most_extra_s=0, repeats=21)


@contextmanager
def empty_rebuild() -> Iterator[Pair]:
    """A build whose every step is in the store already."""
    with tempfile.TemporaryDirectory(prefix="cook-bench-") as directory:
        home = Path(directory, "home")
        built(RECIPE, home)
        subject = Side((_build(RECIPE),), {"COOK_HOME": str(home)})
        yield Pair("empty rebuild", subject, IMPORT_TYPER, most_ratio=4, most_extra_s=0, repeats=11)


@contextmanager
def build() -> Iterator[Pair]:
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
        yield Pair("cook build", subject, reference, most_ratio=1.03, most_extra_s=2, repeats=3)


@contextmanager
def logs() -> Iterator[Pair]:
    """Reading 10 MB of lines made to look almost like figures: at most two seconds over ``wc``."""
    with tempfile.TemporaryDirectory(prefix="cook-bench-") as directory:
        log = Path(directory, "hostile.log")
        recorded = ROOT / "tests" / "data" / "server_logs" / "llama-cpp.log"
        log.write_bytes(recorded.read_bytes() + hostile_log(10_000_000))
        subject = Side(((COOK, "logs", str(log), "--json"),))
        reference = Side((("wc", "-l", str(log)),))
        yield Pair("cook logs", subject, reference, most_ratio=1, most_extra_s=2, repeats=5)


def _build(recipe: Path, engine: str = "bundled") -> tuple[str, ...]:
    return (COOK, "build", str(recipe), "--engine", engine, "--json")


def built(recipe: Path, home: Path, engine: str = "bundled") -> dict[str, Any]:
    """The record of one build into ``home``."""
    environment = {**os.environ, "COOK_HOME": str(home)}
    done = subprocess.run(
        _build(recipe, engine), env=environment, stdout=subprocess.PIPE, check=True
    )
    record: dict[str, Any] = json.loads(done.stdout)
    return record


COMPARISONS: dict[str, Callable[[], AbstractContextManager[Pair]]] = {
    "help": help_page,
    "rebuild": empty_rebuild,
    "build": build,
    "logs": logs,
}
