"""Find the record that a command means: a file, a recipe's name, or the newest one."""

from __future__ import annotations

from pathlib import Path

from cook.errors import InputError
from cook.paths import cook_home

HINT = "`cook demo` or `cook build RECIPE` makes one"


def find_record(named: str | None = None) -> Path:
    """``named`` as a file, or as a name among COOK_HOME/records; None: the newest of those.

    InputError where there is none.
    """
    directory = cook_home() / "records"
    if named is not None:
        for path in (Path(named), directory / f"{named}.json"):
            if path.is_file():
                return path
        raise InputError(f"{named}: no such record, neither a file nor in {directory}", hint=HINT)
    found = [(p.stat().st_mtime_ns, p) for p in directory.glob("*.json") if p.is_file()]
    if not found:
        raise InputError(f"{directory}: no record yet", hint=HINT)
    return max(found)[1]
