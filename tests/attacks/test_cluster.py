"""Workers of a cluster killed in mid-step: their programs die with them, and the build goes on to
the artifacts that an undisturbed one makes. A hundred under ``make soak``.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.attacks.builds import (
    SMALL,
    build,
    contents,
    require_no_bug,
    require_no_process,
    require_nothing_left,
    said,
    undisturbed,
    wait_until,
    workspaces,
)
from tests.attacks.conftest import at_length
from tests.clusters import Processes, children, cluster, worker_pids

pytestmark = pytest.mark.engine

TEXT = SMALL.replace("chunks: 2,", "chunks: 12,").replace("chunks: 1,", "chunks: 4,")


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    (tmp_path / "cluster").mkdir()
    with cluster(tmp_path / "cluster", tmp_path / "home") as running:
        yield running


def programs(processes: Iterable[int]) -> set[int]:
    """Those that are an engine's own programs."""
    found = set()
    for pid in processes:
        with suppress(OSError):
            if b"/llama-" in Path(f"/proc/{pid}/cmdline").read_bytes().partition(b"\0")[0]:
                found.add(pid)
    return found


def programs_anywhere() -> set[int]:
    return programs(int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())


def have_ended(programs: set[int]) -> bool:
    return not programs & programs_anywhere()


def programs_of(processes: Processes) -> dict[int, set[int]]:
    """Each worker that runs programs, with these."""
    found = {worker: programs(children(worker)) for worker in worker_pids(processes)}
    return {worker: running for worker, running in found.items() if running}


@pytest.mark.parametrize(
    ("kills", "seed"), [(3, 20_261_122), *(at_length(20, seed) for seed in range(5))]
)
def test_workers_killed(
    kills: int,
    seed: int,
    tmp_path: Path,
    bundled: Any,
    processes: Processes,
    attacks: Counter[str],
) -> None:
    recipe, home = tmp_path / "recipe.yaml", tmp_path / "home"
    recipe.write_text(TEXT)
    expected = undisturbed(recipe, home)
    random = Random(seed)
    done = 0
    while done < kills:
        client = build(recipe, home, "--scheduler", processes.address)
        here = 0  # a step that is killed four times fails
        while client.poll() is None:
            time.sleep(random.uniform(0.0, 0.3))
            busy = programs_of(processes)
            if busy and here < 3 and done < kills:
                worker, running = random.choice([*busy.items()])
                os.kill(worker, signal.SIGKILL)
                attacks["workers of a cluster killed in mid-step"] += 1
                done, here = done + 1, here + 1
                wait_until(partial(have_ended, running), 5, f"programs of {worker} run on")
        where = f"after {done} kills: {said(home)[-2000:]}"
        assert client.returncode == 0, where
        require_no_bug(home, where)
        assert contents(home) == expected, where
        if done < kills:
            shutil.rmtree(home)
    processes.close()
    require_no_process(home)
    # What was killed leaves its workspace to the next build.
    assert build(recipe, home, "--fresh").wait() == 0, said(home)
    assert workspaces(home) == []
    assert contents(home) == expected
    require_nothing_left(home)


def test_ctrl_c_at_the_client_ends_its_programs(
    tmp_path: Path, bundled: Any, processes: Processes
) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(TEXT.replace("chunks: 12,", "chunks: 400,"))
    home = tmp_path / "home"
    client = build(recipe, home, "--scheduler", processes.address)
    wait_until(lambda: bool(programs_of(processes)) or client.poll() is not None, 60, "no program")
    assert client.poll() is None, said(home)
    client.send_signal(signal.SIGINT)
    try:
        assert client.wait(20) == 130, said(home)
    except subprocess.TimeoutExpired:
        client.kill()
        raise
    require_no_bug(home)
    wait_until(lambda: not programs_of(processes), 10, "programs of workers run on")
    # A worker removes its own once its program has ended.
    wait_until(lambda: not workspaces(home), 10, "workspaces are left")


def test_two_cooks_with_one_recipe_make_each_step_once(
    tmp_path: Path, bundled: Any, processes: Processes
) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(TEXT)
    alone, home = tmp_path / "alone", tmp_path / "home"
    assert build(recipe, alone).wait() == 0, said(alone)
    cooks = [build(recipe, home, "--scheduler", processes.address, "--json") for _ in range(2)]
    assert [cook.wait() for cook in cooks] == [0, 0], said(home)
    assert contents(home).keys() == contents(alone).keys()
    ran = programs_of_steps(home)
    assert sorted(ran) == sorted(programs_of_steps(alone))
    assert len(ran) == len({step for step, _ in ran}) >= 3


LAST_LINES = ("Final estimate:", "Same top p:")


def programs_of_steps(home: Path) -> list[tuple[str, str]]:
    """Programs that ran for a step, by its folder and their own in it, without its number.

    llama-perplexity at times exits 0 without its last line, and is run again within its step
    (:mod:`cook.engines.tool_runs`): such a run does not count.
    """
    folders = [path.parent for path in (home / "logs").glob("*--bundled--*/*/command.json")]
    return [
        (folder.parent.name, re.sub(r"-\d+$", "", folder.name))
        for folder in folders
        if "llama-perplexity" not in (folder / "command.json").read_text()
        or any(
            line in log.read_text(errors="replace")
            for log in folder.glob("std*.log")
            for line in LAST_LINES
        )
    ]
