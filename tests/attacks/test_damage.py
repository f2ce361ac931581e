"""Files of the store that are cut, flipped, replaced by links or made unreadable.

Whatever happened to them, the next build ends in what an undisturbed one gives, or says which
file is wrong; nothing outside of the store is touched, and the store verifies again.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from cook.graph.store import META, Store
from tests.attacks.builds import SMALL, build, contents, require_no_bug, require_nothing_left, said

pytestmark = pytest.mark.engine


def flipped(path: Path) -> None:
    """One byte in the middle, size and times kept."""
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(before.st_size // 2)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def linked(path: Path) -> None:
    """A link to the user's own file of the same size."""
    mine = path.parents[4] / "mine"
    mine.write_bytes(b"M" * path.stat().st_size)
    path.unlink()
    path.symlink_to(mine)


def replaced(make: Callable[[Path], object]) -> Callable[[Path], object]:
    def damage(path: Path) -> None:
        path.unlink()
        make(path)

    return damage


HOW: dict[str, Callable[[Path], object]] = {
    "cut": lambda path: os.truncate(path, path.stat().st_size // 2),
    "flipped": flipped,
    "replaced by a pipe": replaced(os.mkfifo),  # opening it would wait for ever
    "emptied": lambda path: os.truncate(path, 0),
    "linked": linked,
    "gone": Path.unlink,
    "dangling": replaced(lambda path: path.symlink_to("/nowhere/at/all")),
    "replaced by a folder": replaced(Path.mkdir),
    "unreadable": lambda path: path.chmod(0),  # root reads it all the same: then nothing is wrong
}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, bundled: Any) -> Path:
    """A folder with a recipe and a home in which it was built."""
    folder = tmp_path_factory.mktemp("damage")
    (folder / "recipe.yaml").write_text(SMALL)
    assert build(folder / "recipe.yaml", folder / "home").wait() == 0, said(folder / "home")
    shutil.copytree(folder / "home", folder / "kept", symlinks=True)
    return folder


def victims(home: Path) -> list[Path]:
    """One file of each kind of artifact, and its description."""
    found: dict[tuple[str, bool], Path] = {}
    for artifact in Store(home / "store").entries():
        for name in (*(f.name for f in artifact.files), META):
            found.setdefault((artifact.kind, name == META), artifact.directory / name)
    return list(found.values())


def damage(ways: Sequence[str | None], built: Path, attacks: Counter[str]) -> None:
    """The n-th of the ``ways`` done to the n-th victim (None: left alone), and a build."""
    home, recipe = built / "home", built / "recipe.yaml"
    shutil.rmtree(home)
    shutil.copytree(built / "kept", home, symlinks=True)
    shutil.rmtree(home / "receipts", ignore_errors=True)
    expected = contents(home)
    paths = victims(home)
    attacked = {path.parent for how, path in zip(ways, paths, strict=True) if how}
    if any(folder.parent.name == "tensor" for folder in attacked):
        # A tensor is read only where a file is made of it.
        for folder in set((home / "store" / "quantize").iterdir()) - attacked:
            shutil.rmtree(folder)
    done = []
    for how, path in zip(ways, paths, strict=True):
        if how is not None:
            HOW[how](path)
            attacks[f"stored files {how}"] += 1
            done.append(f"{how} {path}")
    mine = built / "mine"
    kept = mine.read_bytes() if mine.exists() else b""
    status = build(recipe, home).wait()
    where = f"{done}: {said(home)[-2000:]}"
    assert status == 0, where
    require_no_bug(home, where)
    assert contents(home) == expected, where
    assert (mine.read_bytes() if mine.exists() else b"") == kept, "a file of the user's changed"
    require_nothing_left(home)


def test_a_store_damaged_all_over(built: Path, attacks: Counter[str]) -> None:
    count = len(victims(built / "kept"))
    for start in range(0, len(HOW), count):
        some = [*[*HOW][start : start + count], *[None] * count][:count]
        damage(some, built, attacks)


@pytest.mark.soak
@pytest.mark.parametrize("how", HOW)
def test_what_is_not_what_it_was_is_made_again(
    how: str, built: Path, attacks: Counter[str]
) -> None:
    count = len(victims(built / "kept"))
    for number in range(count):
        damage([how if n == number else None for n in range(count)], built, attacks)
