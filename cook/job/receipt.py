"""Receipts: proof that a build which ended well would run nothing, at the cost of a few stats.

A receipt lists every file that the build depended on (recipe, models, texts, prompts, engine
binaries and libraries, configuration, cook's own code) and every file it left, each with its
identity (:class:`cook.files.Identity`). While all of them are as they were, the same command has
the same answer, so it is printed without loading the recipe again. Anything else, and the
receipt is void: the build looks at everything again. Nothing is decided here that the store's
keys would not decide; this only saves the looking.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cook.errors import InputError
from cook.files import atomic_write, identity, own_bytes
from cook.paths import config_file, cook_home, package_dir

if TYPE_CHECKING:
    from cook.report.show import Shown

FORMAT = 4

TICK_S = 0.02
"""The clock of file times runs behind by up to a tick of the kernel's."""


def find(question: Mapping[str, object]) -> tuple[Shown, Path] | None:
    """The answer kept for ``question`` and the record's path, if nothing has changed since."""
    from cook.report.document import Table
    from cook.report.show import Shown

    def sheet(kept: Mapping[str, Any]) -> Table:
        columns = tuple((title, align) for title, align in kept["columns"])
        rows = tuple(tuple(row) for row in kept["rows"])
        return Table(columns, rows, strong=kept["strong"])

    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        document = json.loads(own_bytes(_path(question)))
        if document["format"] != FORMAT or document["environment"] != _environment():
            return None
        if any(_identity(Path(name)) != then for name, then in document["files"]):
            return None
        kept: dict[str, Any] = document["shown"]
        answer = Shown(
            table=sheet(kept["table"]),
            wide=sheet(kept["wide"]),
            answers=tuple(kept["answers"]),
            warnings=tuple(kept["warnings"]),
            notes=tuple(kept["notes"]),
        )
        return answer, Path(document["record"])
    return None


def keep(
    question: Mapping[str, object],
    files: Iterable[Path],
    shown: Shown,
    record: Path,
    *,
    began: float,
) -> None:
    """Keep the answer of a build that ended well and depends on ``files`` (and what it left).

    ``began``: when it began (seconds since 1970). What was read and has changed since is not
    what the answer is about, so then nothing is kept; nor where another cook has removed
    something from the store meanwhile, which this build shall make again.
    """
    from dataclasses import asdict

    watched = dict.fromkeys([*files, record, *_own_code()])
    made = (cook_home() / "store", record)
    read = (path for path in watched if not any(path.is_relative_to(m) for m in made))
    if any(_changed_since(path, began) for path in read):
        return
    identities = {path: _identity(path) for path in watched}
    if any(then is None and path.is_relative_to(made[0]) for path, then in identities.items()):
        return
    document = {
        "format": FORMAT,
        "environment": _environment(),
        "files": [[str(path), then] for path, then in identities.items()],
        "shown": asdict(shown),
        "record": str(record),
    }
    path = _path(question)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file:
        file.write(json.dumps(document).encode())


def _path(question: Mapping[str, object]) -> Path:
    text = json.dumps(question, sort_keys=True, default=str)
    return cook_home() / "receipts" / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"


def _environment() -> list[list[str]]:
    """Variables that change what a build means. Logins do not, and are never written down."""
    wanted = [(k, v) for k, v in os.environ.items() if k.startswith(("COOK_", "HF_"))]
    secret = ("TOKEN", "KEY", "SECRET", "PASSWORD")
    kept = [(k, v) for k, v in wanted if k != "COOK_HOME" and not k.endswith(secret)]
    return [[k, v] for k, v in sorted(kept)]


def _own_code() -> Sequence[Path]:
    return [*sorted(package_dir().rglob("*.py")), config_file()]


def _changed_since(path: Path, moment: float) -> bool:
    try:
        return identity(path).changed_ns > (moment - TICK_S) * 1e9
    except InputError:
        return False


def _identity(path: Path) -> str | None:
    """None for a file that is not there; its absence is part of the answer, too."""
    try:
        return str(identity(path))
    except InputError:
        return None
