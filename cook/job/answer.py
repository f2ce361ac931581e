"""Answer a command that builds: by its receipt while nothing has changed, else by building.

A receipt is proof that a build which ended well would run nothing, at the cost of a few stats. It
lists every file that the build depended on (recipe, models, texts, prompts, engine binaries and
libraries, configuration, cook's own code) and every file it left, each with its identity
(:class:`cook.files.Identity`). While all of them are as they were, the same command has the same
answer, so it is printed without loading the recipe again. Anything else, and the receipt is void:
the build looks at everything again. Nothing is decided here that the store's keys would not
decide; this only saves the looking, and so imports neither the recipe nor the engines.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cook.engines.environment import user_settings
from cook.errors import InputError
from cook.files import Identity, atomic_write, distrust_older_digests, identity, own_bytes
from cook.output import Mode, Output
from cook.paths import config_file, cook_home, package_dir
from cook.provenance import machine
from cook.record.find import make_newest
from cook.report.show import NOTHING_RAN, Shown, show, shown

if TYPE_CHECKING:
    from cook.job.run import Built

FORMAT = 5
TICK_S = 0.02
"""The clock of file times runs behind by up to a tick of the kernel's."""


def print_build(
    question: Mapping[str, object],
    build: Callable[[], Built],
    output: Output,
    *,
    again: str | None = None,
    wide: bool = False,
) -> None:
    """Print the answer to ``question``; raises as ``raise_for`` where it is no good one.

    ``question`` is all of the command line that can change the answer; ``again``, the option that
    asked for more to run than must, ignores what was kept, ``--fresh`` hashes of sources included;
    ``wide``: print all there is of each candidate.
    """
    if again == "--fresh":
        distrust_older_digests()
    if again is None and (kept := find(question)) is not None:
        make_newest(kept[1])
        _print(*kept, (), output, wide=wide)
        return
    began = time.time()
    built = build()
    answered = shown(built.record)
    good = not built.failures and (built.record.pick.candidate or not built.record.candidates)
    # A branch of a repository may have moved by the next time: only the Hub can say.
    pinned = all(origin.pinned for origin in built.record.sources)
    if good and pinned:
        keep(question, built.files, answered, built.path, began=began)
    _print(answered, built.path, built.ran, output, wide=wide)
    from cook.job.run import raise_for

    raise_for(built, again)


def _print(
    answered: Shown, record: Path, ran: tuple[str, ...], output: Output, *, wide: bool
) -> None:
    if output.mode is Mode.JSON:
        document = json.loads(record.read_text(encoding="utf-8"))
        output.emit({**document, "record": str(record), "ran": list(ran)})
        return
    show(answered, output, wide=wide)
    if not ran:
        output.say(NOTHING_RAN)
    output.say(f"record: {record}")


def find(question: Mapping[str, object]) -> tuple[Shown, Path] | None:
    """The answer kept for ``question`` and the record's path, if nothing has changed since."""
    from cook.report.document import Table

    def table(columns: list[list[str]], rows: list[list[str | None]], **more: Any) -> Table:
        return Table(tuple((t, align) for t, align in columns), tuple(map(tuple, rows)), **more)

    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        document = json.loads(own_bytes(_path(question)))
        if document["format"] != FORMAT or document["environment"] != _environment():
            return None
        if any(_name(_identity(Path(name))) != then for name, then in document["files"]):
            return None
        kept: dict[str, Any] = document["shown"]
        answers, warnings, notes = (tuple(kept[k]) for k in ("answers", "warnings", "notes"))
        answer = Shown(table(**kept["table"]), table(**kept["wide"]), answers, warnings, notes)
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
    own_code = (*sorted(package_dir().rglob("*.py")), config_file())
    identities = {path: _identity(path) for path in (*files, record, *own_code)}
    store = cook_home() / "store"
    for path, now in identities.items():
        stored = path.is_relative_to(store)
        if stored and now is None:
            return
        if not stored and path != record and now and now.changed_ns > (began - TICK_S) * 1e9:
            return
    document = {
        "format": FORMAT,
        "environment": _environment(),
        "files": [[str(path), _name(now)] for path, now in identities.items()],
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
    """The machine, and variables that change what a build means. Logins do not, and are never
    written down."""
    wanted = [(k, v) for k, v in os.environ.items() if k.startswith(("COOK_", "HF_"))]
    secret = ("TOKEN", "KEY", "SECRET", "PASSWORD")
    kept = [(k, v) for k, v in wanted if k != "COOK_HOME" and not k.endswith(secret)]
    settings = [*sorted(kept), *user_settings().items()]
    return [["machine", machine().digest], *([k, v] for k, v in settings)]


def _identity(path: Path) -> Identity | None:
    """None for a file that is not there; its absence is part of the answer, too."""
    try:
        return identity(path)
    except InputError:
        return None


def _name(identity: Identity | None) -> str | None:
    return str(identity) if identity is not None else None
