"""One line of a llama-server log, and what it says: the grammar of both engines.

The engine's own words count only where the engine writes them: at the beginning of a line,
after a prefix of journald, of a container, or of the engine; or in the text of a JSON log line.
What a user pasted into a prompt stands inside a JSON string and is never read. A line whose
figures contradict each other (a rate that is not tokens over time) is refused whole.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, NamedTuple

from cook.engines.server_api import DepthCount
from cook.engines.speculation import TOTALS
from cook.formats.naming import model_stem

MAX_NAME = 200
MAX_COUNT = 1 << 40


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
    by_depth: tuple[DepthCount, ...]


class Loading(NamedTuple):
    """A model that the process loads; ``draft`` None where the line does not say which it is."""

    where: Where
    name: str
    draft: bool | None
    file: bool


@dataclass(frozen=True)
class Drafting:
    """What one drafting ``method`` has counted since its server, ``process``, started."""

    process: str
    method: str
    drafts: int
    drafted: int
    accepted: int
    draft_ms: float | None
    """Time spent drafting, where the log tells it."""


@dataclass(frozen=True)
class SweepRow:
    """Speeds of one model after ``n_kv`` tokens of context, as llama-sweep-bench measured them."""

    n_kv: int
    prompt_tokens: int
    prompt_s: float
    prompt_tokens_per_s: float
    tokens: int
    decode_s: float
    decode_tokens_per_s: float


class Refused(NamedTuple):
    """A line that looks like figures and is none; ``why`` says what is wrong with it."""

    why: str


Event = Timing | Acceptance | Answer | Loading | Drafting | SweepRow | Refused


@lru_cache(maxsize=1024)
def file_name(path: str) -> str:
    """A model file's name without directory, shard number and ``.gguf``; readable."""
    windows = "\\" in path and "/" not in path
    last = PureWindowsPath(path).name if windows else PurePosixPath(path).name
    return readable(model_stem(Path(last or path)))


def readable(text: str) -> str:
    """``text`` without what could drive a terminal, cut at a name's length."""
    return "".join(c for c in text[: 2 * MAX_NAME] if c.isprintable()).strip()[:MAX_NAME]


_NESTING = 4
_MAX_MESSAGES = 10_000

# journalctl (short, iso, unix, with-unit), docker and compose, a quoted line of a forum post.
_DAY = (
    r"(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?:\.\d{1,9})?"
    r"|(?:[A-Z][a-z]{2} )?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S{0,16}(?: [A-Z]{2,5}(?= ))?"
    r"|\[? {0,8}\d{1,12}\.\d{1,9}\]?)"
)
_OUTER = re.compile(
    r"[`>\s]{0,8}(?:[\w.-]{1,64} {1,32}\| )?"
    rf"(?:{_DAY} (?:\S{{1,255}} [^\s\[\]:]{{1,128}}\[(?P<pid>\d{{1,10}})\]: )?)?"
    r"(?:data: )?"
)
_ENGINE = re.compile(
    r"(?:\d{1,9}\.\d\d\.\d{3}\.\d{3} )?(?:[IWED] )?"
    r"(?:(?:INFO|VERB|WARN|ERR) {1,4}\[ {0,24}\S{1,40}\] )?"
    r"(?:slot {1,12}\w{1,24}: id {1,4}(?P<slot>\d{1,9}) \| task (?P<task>-?\d{1,9}) \| )?"
    r"(?P<by>(?:srv|spec|llama_model_loader|llm_load_print_meta|print_info|load|load_model"
    r"|common_\w{1,60}|llama_\w{1,60}) {0,12}(?:\w{1,40})?: )? {0,16}(?P<what>prompt |generation )?"
)
_COLOUR = re.compile(r"\x1b\[[0-9;]{0,12}m")
_MAX_PREFIX = 512

_NUMBER = r"(?:\d{1,12}\.\d\d|-?inf|-?nan)"
_TIME = (
    r"eval time {0,8}= {0,12}(\d{1,12}\.\d\d) ms / {0,8}(\d{1,9}) (?:tokens|runs) {0,6}"
    rf"\( {{0,16}}{_NUMBER} ms per token, {{0,16}}({_NUMBER}) tokens per second\)"
)
_DRAFT = (
    r"draft acceptance(?: rate)? = (\d\.\d{5})"
    r" \( {0,8}(\d{1,9}) accepted / {0,8}(\d{1,9}) generated\)"
)
_QUOTE = r"\\{0,15}\""
_ANSWER = (
    rf"predicted_n{_QUOTE} ?: ?\d{{1,15}}, ?{_QUOTE}predicted_ms{_QUOTE} ?:"
    rf"|predicted_ms{_QUOTE} ?: ?[\d.eE+-]{{1,30}}, ?{_QUOTE}predicted_n{_QUOTE} ?:"
)
_MODEL = (
    r"loaded meta data with \d{1,9} key-value pairs and \d"
    r"|loading (?:draft )?model '[^'\n]{1,4096}'"
    r"|general\.name {1,12}= "
)
_STATISTICS = r"statistics {1,20}[\w-]{1,40}: #calls\(b,g,a\) = {0,8}\d"
_BYTES = r'"MESSAGE" ?: ?\[(?:\d{1,3}, ?){24}'
_SWEEP = (
    r"\| {0,12}(\d{1,9}) \| {0,12}(\d{1,9}) \| {0,12}(\d{1,9}) \| {0,12}(\d{1,9}\.\d{3}) \|"
    r" {0,12}(\d{1,9}\.\d\d) \| {0,12}(\d{1,9}\.\d{3}) \| {0,12}(\d{1,9}\.\d\d) \|"
)
# Alternatives that begin with letters and hold no groups: the engine of `re` skips to those
# letters, and no part can look back or run long, so that a hostile log costs no more than others.
_ALL = (_TIME, _DRAFT, _ANSWER, _STATISTICS, _BYTES, _SWEEP, _MODEL)


def _without_groups(*patterns: str) -> str:
    return re.sub(r"(?<!\\)\((?!\?)", "(?:", "|".join(patterns))


HIT = _without_groups(*_ALL)
"""Every line that could say something holds this, or begins to say it there."""
HIT_BUT_MODELS = _without_groups(*_ALL[:-1])
_HIT = re.compile(HIT)

_TIMES = re.compile(_TIME)
_SHARE = re.compile(_DRAFT)
_ROW = re.compile(_SWEEP)
_END = re.compile(r"(?:, mean len = {0,8}\d{1,9}\.\d\d)?[`\s]{0,4}(?:\||$)")
_TASK = re.compile(r" id_slot=(\d{1,9}) id_task=(-?\d{1,9})")
_LOADED = re.compile(r"loaded meta data with \d{1,9} key-value pairs and \d{1,9} tensors from ")
_LOADING = re.compile(r"loading (draft )?model '([^']{1,4096})'\s{0,4}$")
_GENERAL_NAME = re.compile(r"general\.name {1,12}= (.{1,400})$")
_DURATION = re.compile(r"dur\(b,g,a\) = \d{1,12}\.\d{3}, (\d{1,12}\.\d{3}), \d{1,12}\.\d{3} ms")
_SENT = (' to_send="', ' response="')


def events_of(prefix: str, rest: str) -> Iterable[Event]:
    """What a line says: ``rest`` begins with its first :data:`HIT`, ``prefix`` stands before."""
    return _events(prefix, rest, Where(), _NESTING)


def _line(line: str, where: Where, depth: int) -> Iterable[Event]:
    found = _HIT.search(line)
    if found is None:
        return ()
    return _events(line[: found.start()], line[found.start() :], where, depth)


class _Place(NamedTuple):
    """What a prefix is: the engine's own (``text``), or one that JSON begins in, at ``start``."""

    pid: str
    slot: str
    text: bool
    by_other: bool
    prompt: bool
    json: bool
    start: int


@lru_cache(maxsize=1024)
def _place(prefix: str) -> _Place:
    outer = _OUTER.match(prefix)
    start = outer.end() if outer else 0
    pid = (outer and outer["pid"]) or ""
    if prefix.startswith(("{", "["), start):
        return _Place(pid, "", False, False, False, True, start)
    engine = _ENGINE.match(prefix, start)
    if engine is None:
        return _Place(pid, "", False, False, False, False, start)
    slot = f"{engine['slot']}/{engine['task']}" if engine["slot"] else ""
    whole, prompt = engine.end() == len(prefix), engine["what"] == "prompt "
    return _Place(pid, slot, whole, engine["by"] is not None, prompt, False, start)


def _events(prefix: str, rest: str, where: Where, depth: int) -> Iterable[Event]:
    if "\x1b" in prefix or "\x1b" in rest:
        prefix, rest = _COLOUR.sub("", prefix), _COLOUR.sub("", rest)
    place = _place(prefix[:_MAX_PREFIX])
    if place.pid or place.slot:
        where = Where(place.pid or where.process, place.slot or where.slot)
    if place.text and len(prefix) <= _MAX_PREFIX:
        return _text(rest, where, place)
    if place.json:
        return _document(prefix + rest, place.start, where, depth)
    if not rest.startswith("predicted"):
        return ()
    line = prefix + rest
    for key in _SENT:
        if (found := line.find(key, place.start)) >= 0:
            return _message(_json_at(line, found + len(key) - 1), where, depth)
    if '"timings"' in line and (brace := line.find("{", place.start)) >= 0:
        return _document(line, brace, where, depth)
    return ()


def _document(line: str, start: int, where: Where, depth: int) -> Iterable[Event]:
    document = _json_at(line, start)
    if document is None:
        return (Refused("its JSON is broken"),) if '"timings"' in line else ()
    return objects(document, where, depth)


def objects(document: Any, where: Where, depth: int = _NESTING) -> Iterator[Event]:
    """What a JSON document says: an answer, a log line of JSON, or a list of either."""
    if depth <= 0:
        return
    if isinstance(document, list):
        for item in document[:_MAX_MESSAGES]:
            yield from objects(item, where, depth - 1)
        return
    if not isinstance(document, dict):
        return
    if isinstance(document.get("timings"), dict):
        answer = answer_of(document, document["timings"], where)
        if answer is not None:
            yield answer
    elif "MESSAGE" in document:
        process = document.get("_PID")
        inner = Where(process[:10] if isinstance(process, str) else "", where.slot)
        yield from _message(_journal_text(document["MESSAGE"]), inner, depth)
    elif isinstance(document.get("msg"), str):
        slot, task = document.get("id_slot"), document.get("id_task")
        if isinstance(slot, int) and isinstance(task, int):
            where = Where(where.process, f"{slot}/{task}")
        for key in ("to_send", "response", "msg"):
            if isinstance(document.get(key), str):
                yield from _message(document[key], where, depth)
                break
    elif isinstance(document.get("log"), str):
        yield from _message(document["log"], where, depth)


def _message(text: Any, where: Where, depth: int) -> Iterator[Event]:
    """The lines that a log entry holds."""
    if not isinstance(text, str) or depth <= 1:
        return
    for line in text.split("\n", _MAX_MESSAGES):
        yield from _line(line, where, depth - 1)


def _journal_text(message: Any) -> str | None:
    """journald's text, also where it is a list of bytes (text with control characters)."""
    if isinstance(message, list):
        try:
            return bytes(message).decode("utf-8", "replace")
        except (TypeError, ValueError):
            return None
    return message if isinstance(message, str) else None


def _text(rest: str, where: Where, place: _Place) -> Iterable[Event]:
    first = rest[:3]
    # Programs that are no server, and the server at its end, print totals in the same words.
    if place.by_other and first in ("eva", "dra"):
        return ()
    if first == "eva" and (told := _TIMES.match(rest)) and _END.match(rest, told.end()):
        return (_timing(rest, told, where, place.prompt),)
    if first == "dra" and (told := _SHARE.match(rest)) and _END.match(rest, told.end()):
        return (_acceptance(told, where),)
    if first == "loa" and (told := _LOADED.match(rest)):
        path = rest[told.end() : told.end() + 4200].rpartition(" (version ")[0]
        return (Loading(where, file_name(path), None, True),) if path else ()
    if first == "loa" and (told := _LOADING.match(rest)):
        return (Loading(where, file_name(told[2]), told[1] is not None, True),)
    if first == "gen" and (told := _GENERAL_NAME.match(rest)):
        return (Loading(where, readable(told[1]), None, False),)
    if first[:1] == "|" and (told := _ROW.match(rest)) and not rest[told.end() :].strip():
        return (_sweep(told),)
    if first == "sta" and (told := TOTALS.match(rest)):
        return (_drafter(rest, told, where),)
    return ()


def _sweep(told: re.Match[str]) -> Event:
    pp, tg, n_kv = (int(told[i]) for i in (1, 2, 3))
    pp_s, pp_rate, tg_s, tg_rate = (float(told[i]) for i in (4, 5, 6, 7))
    for n, s, rate in ((pp, pp_s, pp_rate), (tg, tg_s, tg_rate)):
        if not agrees(n, 1000 * s, rate, first_is_free=False, digits=0.6):
            return Refused(f"{n} tokens in {s:g} s are not {rate:g} t/s")
    return SweepRow(n_kv, pp, pp_s, pp_rate, tg, tg_s, tg_rate)


def _drafter(rest: str, told: re.Match[str], where: Where) -> Event:
    drafted, accepted = int(told["drafted"]), int(told["accepted"])
    if accepted > drafted:
        return Refused(f"{accepted} tokens accepted of {drafted} drafted")
    duration = _DURATION.search(rest, told.end(), told.end() + 4096)
    draft_ms = float(duration[1]) if duration else None
    return Drafting(where.process, told["name"], int(told["drafts"]), drafted, accepted, draft_ms)


def _timing(rest: str, told: re.Match[str], where: Where, prompt: bool) -> Event:
    ms_text, n_text, rate_text = told.groups()
    n, ms, rate = int(n_text), float(ms_text), float(rate_text)
    if not where.slot and (task := _TASK.search(rest, told.end())):
        where = Where(where.process, f"{task[1]}/{task[2]}")
    if not math.isfinite(rate):
        return Timing(where, prompt, n, ms, None)
    if not agrees(n, ms, rate, first_is_free=not prompt, digits=0.006):
        return Refused(f"{n} tokens in {ms_text} ms are not {rate_text} t/s")
    return Timing(where, prompt, n, ms, rate)


def _acceptance(told: re.Match[str], where: Where) -> Event:
    accepted, drafted = int(told[2]), int(told[3])
    if accepted > drafted or drafted == 0:
        return Refused(f"{accepted} tokens accepted of {drafted} drafted")
    if abs(accepted / drafted - float(told[1])) > 1.1e-5:
        return Refused(f"{accepted} of {drafted} is not {told[1]}")
    return Acceptance(where, drafted, accepted)


def answer_of(document: dict[str, Any], timings: dict[str, Any], where: Where) -> Event | None:
    """The answer in ``document``; None for a chunk whose totals are yet to come."""
    if document.get("stop") is False:  # a chunk of /completion: the last one has the totals
        return None
    n, ms = _count(timings.get("predicted_n")), _time(timings.get("predicted_ms"))
    told = _time(timings.get("predicted_per_second"))
    if n is None or ms is None:
        return Refused("its timings have no predicted_n and predicted_ms")
    if told is not None and not agrees(n, ms, told, first_is_free=True, digits=1e-3):
        return Refused(f"{n} tokens in {ms:g} ms are not {told:g} t/s")
    drafted = _count(timings.get("draft_n"))
    accepted = _count(timings.get("draft_n_accepted"))
    if drafted is None or accepted is None:
        drafted = accepted = None
    elif accepted > drafted:
        return Refused(f"{accepted} tokens accepted of {drafted} drafted")
    name, model = document.get("id"), document.get("model")
    return Answer(
        where=where,
        id=name[:MAX_NAME] if isinstance(name, str) else None,
        model=file_name(model) if isinstance(model, str) and model else None,
        prompt_n=_count(timings.get("prompt_n")),
        prompt_ms=_time(timings.get("prompt_ms")),
        predicted_n=n,
        predicted_ms=ms,
        told=told,
        drafted=drafted,
        accepted=accepted,
        by_depth=_by_depth(timings.get("draft_by_depth")),
    )


def _by_depth(value: Any) -> tuple[DepthCount, ...]:
    rows: list[DepthCount] = []
    for row in value[:1024] if isinstance(value, list) else ():
        if not isinstance(row, dict):
            return ()
        depth, drafted = _count(row.get("depth")), _count(row.get("draft_n"))
        accepted = _count(row.get("draft_n_accepted"))
        if depth is None or drafted is None or accepted is None or accepted > drafted:
            return ()
        rows.append(DepthCount(depth, drafted, accepted))
    return tuple(rows)


def agrees(n: int, ms: float, rate: float, *, first_is_free: bool, digits: float) -> bool:
    """Whether ``rate`` is ``n`` tokens over ``ms``, rounded to ``digits``.

    Mainline leaves the first token out of the rate, ik and older builds do not.
    """
    if ms <= 0:
        return True
    slack = digits + rate * (digits / ms + 1e-6)
    counted = (n, n - 1) if first_is_free else (n,)
    return any(abs(1000 * tokens / ms - rate) <= slack for tokens in counted)


def _count(value: Any) -> int | None:
    good = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MAX_COUNT
    return value if good else None


def _time(value: Any) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    good = 0 <= value < 1e15  # false for NaN as well
    return float(value) if good else None


def _json_at(line: str, start: int) -> Any:
    try:
        return _DECODER.raw_decode(line, start)[0]
    except (ValueError, RecursionError):
        return None


_DECODER = json.JSONDecoder()
