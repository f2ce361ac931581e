"""No space left, in every kind of step: named as such, nothing half written, the next build whole.

As root on a small tmpfs that grows by steps; without that right, by a limit of file sizes.
"""

from __future__ import annotations

import re
import resource
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.attacks.builds import (
    SMALL,
    WHOLE,
    build,
    contents,
    require_no_bug,
    require_nothing_left,
    require_part_of,
    said,
)
from tests.attacks.conftest import at_length

pytestmark = pytest.mark.engine

FULL = re.compile(r"space|disk|File too large|limit of file sizes|too small", re.IGNORECASE)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """An empty tmpfs of half a megabyte."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(disk)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip("SKIPPED LOUDLY: no right to mount a small tmpfs (root has it)")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def resize(disk: Path, kib: int) -> None:
    subprocess.run(["mount", "-o", f"remount,size={kib}k", str(disk)], check=True)


@pytest.mark.parametrize(
    ("text", "step_kib"), [(SMALL, 9_000), at_length(SMALL, 500), at_length(WHOLE, 1_000)]
)
def test_a_disk_that_fills(
    text: str, step_kib: int, small_disk: Path, bundled: Any, attacks: Counter[str]
) -> None:
    """Builds on a disk that grows by ``step_kib`` until one ends well."""
    disk, recipe = small_disk, small_disk.parent / "recipe.yaml"
    recipe.write_text(text)
    home = disk / "home"
    resize(disk, 1 << 20)
    assert build(recipe, home).wait() == 0, said(home)
    expected = contents(home)
    needed_kib = sum(p.stat().st_blocks for p in home.rglob("*")) // 2
    shutil.rmtree(home)

    for kib in range(256, 4 * needed_kib + 4096, step_kib):
        resize(disk, kib)
        status = build(recipe, home).wait()
        if status == 0:
            break
        attacks["full disks"] += 1
        where = f"{kib} KiB: {status}: {said(home)[-2000:]}"
        assert status in (1, 5), where
        assert FULL.search(said(home)), where
        require_no_bug(home, where)
        if home.exists():
            require_nothing_left(home)
            require_part_of(expected, home, where)
    else:
        pytest.fail(f"still no space: {said(home)[-2000:]}")
    assert contents(home) == expected


@pytest.mark.soak
def test_a_limit_of_file_sizes(tmp_path: Path, bundled: Any, attacks: Counter[str]) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(SMALL)
    home = tmp_path / "home"

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))

    status = build(recipe, home, preexec_fn=limited).wait()
    attacks["full disks"] += 1
    assert status in (1, 5), said(home)
    require_no_bug(home)
    require_nothing_left(home)
    assert build(recipe, home).wait() == 0, said(home)
    contents(home)
