"""A signal at any moment loses work at most: the same command again ends in the same artifacts.

INT, TERM and HUP end cook tidily; QUIT and KILL end it at once, and its children with it. Two
hundred under ``make soak``, half of them with two jobs side by side.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.attacks.builds import (
    SMALL,
    WHOLE,
    build,
    contents,
    require_no_bug,
    require_no_process,
    require_nothing_left,
    require_part_of,
    said,
    undisturbed,
    workspaces,
)
from tests.attacks.conftest import at_length

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("hangups")]

TIDY = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SIGNALS = (*TIDY, signal.SIGQUIT, signal.SIGKILL)
INTERRUPTED = 130


@pytest.mark.parametrize(
    ("text", "jobs", "count"),
    [(SMALL, (2, 1), 10), at_length(SMALL, (1, 2), 100), at_length(WHOLE, (1, 2), 100)],
    ids=["a few", "two hundred of quants", "two hundred of scores"],
)
def test_signals(
    text: str,
    jobs: tuple[int, ...],
    count: int,
    tmp_path: Path,
    bundled: Any,
    attacks: Counter[str],
) -> None:
    """``count`` signals to builds of ``text``, each build going on where the last was ended."""
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(text)
    home = tmp_path / "home"
    started = time.monotonic()
    expected = undisturbed(recipe, home)
    seconds = time.monotonic() - started

    random = Random(20_261_122)
    for number in range(count):
        sent = SIGNALS[number % len(SIGNALS)]
        side_by_side = jobs[number // len(SIGNALS) % len(jobs)]
        # What was killed leaves its workspace to the next build, which may not come to sweep it.
        killed = set(workspaces(home))
        victim = build(recipe, home, "--jobs", str(side_by_side))
        try:
            status = victim.wait(random.uniform(0.02, seconds if number % 2 else seconds / 3))
        except subprocess.TimeoutExpired:
            victim.send_signal(sent)
            attacks[f"signals: {sent.name}, {side_by_side} jobs"] += 1
            status = victim.wait(60)
        where = f"{number}: {sent.name}, {side_by_side} jobs: {status}, {said(home)[-2000:]}"
        # Python dies by SIGINT, said and tidied up, if it was within an exec() when it came (a
        # dataclass being made, while a module loads); before cook has a handler, by the signal.
        ended = (INTERRUPTED, -signal.SIGINT) if sent in TIDY else ()
        assert status in (0, -sent, *ended), where
        require_no_bug(home, where)
        require_no_process(home)
        if home.exists():
            require_part_of(expected, home, where)
            if status == INTERRUPTED:
                assert set(workspaces(home)) <= killed, where
        if status == 0:
            shutil.rmtree(home)
    assert build(recipe, home).wait() == 0, said(home)
    assert contents(home) == expected
    require_nothing_left(home)
