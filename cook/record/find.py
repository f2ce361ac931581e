"""Where records are kept, and which one a command means.

``COOK_HOME/records/NAME/DATE.json`` are the records of recipes called NAME, a file each, and none
is ever written again. ``records/NAME.json`` is a link to the one that the last build of that name
ended with. ``searches/NAME/DATE.json`` are the records of their searches.
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cook.errors import InputError
from cook.paths import cook_home
from cook.record.versioned import json_values, write_versioned

if TYPE_CHECKING:
    from cook.record.record import Record
    from cook.record.search_record import SearchRecord

HINT = "`cook demo` or `cook build RECIPE` makes one"
LIST = "`cook report --list` lists those that are kept"
AT = "@"
"""Between a recipe's name and the date of one of its records: ``demo@2026-11-21``."""


@dataclass(frozen=True)
class KeptRecord:
    """One record in COOK_HOME. ``date`` (UTC) is its file's name; ``newest``: what the recipe's
    name alone means."""

    recipe: str
    date: str
    path: Path
    newest: bool

    @property
    def name(self) -> str:
        """What commands call it."""
        return f"{self.recipe}{AT}{self.date}"


def keep_record(record: Record) -> Path:
    """Write ``record`` to a file of its own, and have its recipe's name mean it."""
    from cook.record.record import to_json

    path = _keep(to_json(record), _records() / record.recipe, record.created)
    make_newest(path)
    return path


def make_newest(path: Path) -> None:
    """Have the name of a kept record's recipe mean this one; other files are left alone."""
    folder = path.parent
    if folder.parent != _records() or not path.is_file():
        return
    newest = folder.with_name(f"{folder.name}.json")
    if newest.exists() and newest.resolve() == path.resolve():
        return
    link = folder / f".{os.getpid()}.link"
    link.unlink(missing_ok=True)
    link.symlink_to(Path(folder.name) / path.name)
    link.replace(newest)


def find_record(named: str | None = None) -> Path:
    """``named`` as a file, or as a name in COOK_HOME/records, with ``@`` and (the beginning of) a
    date after it for an earlier one; None: the record of the last build.

    InputError where there is none.
    """
    directory = _records()
    if named is not None:
        for path in (Path(named), directory / f"{named}.json"):
            if path.is_file():
                return path
        recipe, at, date = named.rpartition(AT)
        dated = (kept for kept in kept_records(recipe) if kept.date.startswith(date))
        if at and (found := next(dated, None)) is not None:
            return found.path
        hint = LIST if kept_records(recipe or named) else HINT
        raise InputError(f"{named}: no such record, neither a file nor in {directory}", hint=hint)
    links = [(p.lstat().st_mtime_ns, p) for p in directory.glob("*.json") if p.is_file()]
    if not links:
        raise InputError(f"{directory}: no record yet", hint=HINT)
    return max(links)[1]


def keep_search(record: SearchRecord) -> Path:
    """Write ``record`` to a file of its own, among the searches of its recipe."""
    return _keep(json_values(record), _searches() / record.recipe, record.created)


def find_search(named: str | None = None) -> Path:
    """``named`` as a file, or the last search of the recipe called so; None: the last of all.

    InputError where there is none.
    """
    if named is not None and Path(named).is_file():
        return Path(named)
    folder = _searches()
    kept = [p for p in folder.glob("*/[!.]*.json") if named is None or p.parent.name == named]
    if not kept:
        of = f" of {named}" if named else ""
        raise InputError(f"{folder}: no search{of} yet", hint="`cook search RECIPE` makes one")
    return max(kept, key=lambda path: (path.stat().st_mtime_ns, path.name))


def kept_records(recipe: str | None = None) -> tuple[KeptRecord, ...]:
    """Those in COOK_HOME, of one recipe's name or of all, the last made first."""
    directory = _records()
    found = []
    every = [directory / f"{recipe}.json"] if recipe else directory.glob("*.json")
    for newest in every:
        if newest.parent != directory:
            continue  # a path, not a name
        meant = newest.resolve()
        found += [
            KeptRecord(newest.stem, path.stem, path, newest=path == meant)
            for path in newest.with_suffix("").glob("[!.]*.json")
        ]
    return tuple(sorted(found, key=lambda kept: (kept.date, kept.recipe), reverse=True))


def changed_meaning(path: Path, record: Record) -> str | None:
    """What a recipe's name meant before, or would mean, where that record picks something else or
    is of another recipe; None for a record that was asked for by its date or its file."""
    from cook.record.record import read_record

    if path.parent != _records():
        return None
    meant = path.resolve()
    earlier = next((k for k in kept_records(path.stem) if k.path.resolve() != meant), None)
    if earlier is None:
        return None
    try:
        before = read_record(earlier.path)
    except InputError:
        return None  # nothing can be said of it
    ways = []
    if before.target != record.target or before.demo != record.demo:
        ways.append(f"is of another target ({Path(before.target).name or 'none'})")
    elif before.recipe_sha256 != record.recipe_sha256:
        ways.append("is of another recipe of this name")
    if before.pick.candidate != record.pick.candidate:
        ways.append(f"picks {before.pick.candidate or 'nothing'}")
    if not ways:
        return None
    return (
        f"{path.stem} means the record of {record.created}, which picks "
        f"{record.pick.candidate or 'nothing'}; {earlier.name} {' and '.join(ways)}"
    )


def files_named() -> tuple[frozenset[Path], tuple[str, ...]]:
    """Models that a kept record names, which is what serving or publishing it needs; and the names
    of records that cannot be read."""
    from cook.record.record import read_record

    found: set[Path] = set()
    unreadable = []
    for kept in kept_records():
        try:
            record = read_record(kept.path)
        except InputError:
            unreadable.append(kept.name)
            continue
        paths = (record.target, *(draft.path for draft in record.drafts))
        found |= {Path(path) for path in paths if path}
    return frozenset(found), tuple(unreadable)


def _records() -> Path:
    return cook_home() / "records"


def _searches() -> Path:
    return cook_home() / "searches"


def date_in_names(created: str) -> str:
    """``created`` as it stands in the names of records and searches."""
    return re.sub(r"[^0-9-]", "-", created).strip("-")


def _keep(document: dict[str, Any], folder: Path, created: str) -> Path:
    """``document`` in ``folder``, in a file named by its date; no file that is there is touched."""
    draft = folder / f".{os.getpid()}.tmp"
    write_versioned(document, draft)
    date = date_in_names(created)
    try:
        for number in count(1):
            path = folder / f"{date}{'' if number == 1 else f'-{number}'}.json"
            with contextlib.suppress(FileExistsError):
                os.link(draft, path)
                return path
    finally:
        draft.unlink(missing_ok=True)
    raise AssertionError("unreachable")
