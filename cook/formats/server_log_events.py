"""What server logs say, line by line: the events that a log is made of."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import NamedTuple

from cook.formats.naming import model_stem

MAX_NAME = 200


class Where(NamedTuple):
    """Whose line it is: the process (its id as journald tells it) and the server's slot."""

    process: str = ""
    slot: str = ""


class Timing(NamedTuple):
    """``prompt eval time`` or ``eval time`` of one request. ``told`` is the rate as printed."""

    where: Where
    prompt: bool
    n: int
    ms: float
    told: float | None


class Acceptance(NamedTuple):
    """``draft acceptance``: the draft counts of one request."""

    where: Where
    drafted: int
    accepted: int


class Answer(NamedTuple):
    """The ``timings`` of an answer's JSON. ``id`` names the answer that a chunk belongs to."""

    where: Where
    id: str | None
    model: str | None
    prompt_n: int | None
    prompt_ms: float | None
    predicted_n: int
    predicted_ms: float
    told: float | None
    drafted: int | None
    accepted: int | None
    by_depth: tuple[tuple[int, int, int], ...]
    """(depth, drafted, accepted), depth from 1."""


class Loading(NamedTuple):
    """A model that the process loads; ``draft`` None where the line does not say which it is."""

    where: Where
    name: str
    draft: bool | None
    file: bool


class Drafter(NamedTuple):
    """What one drafting method has counted since the server started."""

    where: Where
    name: str
    drafts: int
    drafted: int
    accepted: int
    draft_ms: float | None
    """Time spent drafting, where the engine tells it."""


class Sweep(NamedTuple):
    """A row of llama-sweep-bench: ``pp`` and ``tg`` tokens after ``n_kv`` tokens of context."""

    pp: int
    tg: int
    n_kv: int
    pp_s: float
    pp_per_s: float
    tg_s: float
    tg_per_s: float


class Refused(NamedTuple):
    """A line that looks like figures and is none; ``why`` says what is wrong with it."""

    why: str


Event = Timing | Acceptance | Answer | Loading | Drafter | Sweep | Refused


@lru_cache(maxsize=1024)
def file_name(path: str) -> str:
    """A model file's name without directory, shard number and ``.gguf``; readable."""
    windows = "\\" in path and "/" not in path
    last = PureWindowsPath(path).name if windows else PurePosixPath(path).name
    return readable(model_stem(Path(last or path)))


def readable(text: str) -> str:
    """``text`` without what could drive a terminal, cut at a name's length."""
    return "".join(c for c in text[: 2 * MAX_NAME] if c.isprintable()).strip()[:MAX_NAME]
