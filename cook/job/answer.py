"""Answer a command that builds: by its receipt while nothing has changed, else by building.

Kept light: the receipt's way imports neither the recipe nor the engines.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from cook.files import believe_nothing_older
from cook.job import receipt
from cook.output import Mode, Output
from cook.record.find import make_newest
from cook.report.show import NOTHING_RAN, Shown, show, shown

if TYPE_CHECKING:
    from cook.job.run import Built


def answer(
    question: Mapping[str, object],
    build: Callable[[], Built],
    output: Output,
    *,
    fresh: bool = False,
    wide: bool = False,
) -> None:
    """Print the answer to ``question``; raises as ``raise_for`` where it is no good one.

    ``question`` is all of the command line that can change the answer; ``fresh`` ignores what
    was kept, hashes of sources included; ``wide``: print all there is of each candidate.
    """
    if fresh:
        believe_nothing_older()
    if not fresh and (kept := receipt.find(question)) is not None:
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
        receipt.keep(question, built.files, answered, built.path, began=began)
    _print(answered, built.path, built.ran, output, wide=wide)
    from cook.job.run import raise_for

    raise_for(built, fresh=fresh)


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
