"""One line of a llama-server log, and the figures in it: the grammar of both engines.

The engine's own words count wherever a log collector put them: behind the prefix of a router's
child, journald, a container, syslog or ``grep -n``, in a quoted field, or in the text of a JSON log
line. What a user pasted into a prompt stands inside a JSON string and is never read. Figures that
contradict each other (a rate that is not tokens over time) are refused whole, and a line with the
engine's words that cannot be read is :class:`Unread`, so that it is counted.
"""

from __future__ import annotations

import contextlib
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
    """The server that wrote a line (its process, router child or container, as the prefix names
    it), and the slot and task of the request."""

    server: str = ""
    slot: str = ""


class Timing(NamedTuple):
    """``prompt eval time`` or ``eval time`` of one request. ``rate`` is tokens/s as printed."""

    where: Where
    prompt: bool
    n: int
    ms: float
    rate: float | None


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
    rate: float | None
    drafted: int | None
    accepted: int | None
    by_depth: tuple[DepthCount, ...]


class Loading(NamedTuple):
    """A model that the server loads; ``draft`` None where the line does not say which it is."""

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
    """Time spent drafting, where the log has it."""


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
    """A line whose figures contradict each other; ``why`` says how."""

    why: str


class Unread(NamedTuple):
    """A line with the engine's words for a request's figures that could not be read."""

    text: str


Event = Timing | Acceptance | Answer | Loading | Drafting | SweepRow | Refused | Unread


@lru_cache(maxsize=1024)
def file_name(path: str) -> str:
    """A model file's name without directory, shard number and ``.gguf``; readable."""
    windows = "\\" in path and "/" not in path
    last = PureWindowsPath(path).name if windows else PurePosixPath(path).name
    return readable(model_stem(Path(last or path)))


def readable(text: str) -> str:
    """``text`` without what could drive a terminal, cut at a name's length."""
    return "".join(c for c in text[: 2 * MAX_NAME] if c.isprintable()).strip()[:MAX_NAME]


_NESTING = 5
_MAX_MESSAGES = 10_000
_MAX_PREFIX = 512
_TEXT_KEYS = ("to_send", "response", "MESSAGE", "msg", "message", "log", "line", "textPayload")
"""Fields of JSON log lines that hold a line's text: ik's, journald's, docker's, and collectors'."""
_INNER_KEYS = ("jsonPayload", "fields", "attributes", "body")

# What the engine itself writes in front of its words, from the end of the prefix backwards.
_OWN = re.compile(
    r"(?:(?<![\w.])\d{1,9}\.\d\d\.\d{3}\.\d{3} )?(?:[IWED] )?"
    r"(?:(?:INFO|VERB|WARN|ERR) {1,4}\[ {0,24}\S{1,40}\] )?"
    r"(?:slot {1,12}\w{1,24}: id {1,4}(?P<slot>\d{1,9}) \| task (?P<task>-?\d{1,9}) \| )?"
    r"(?:\b(?P<by>srv|spec|print_timings|print_info|load|load_model|(?:llama|llm|common)_\w{1,60})"
    r" {0,12}(?:\w{1,40})?: )? {0,16}(?P<what>\bprompt |\bgeneration )?\Z"
)
_SERVER_WORDS = (None, "print_timings")
_TIME_LIKE = re.compile(
    r"[\[(<]?\d{0,12}(?:\d[:.,/T+-]|[:.,/T+-]\d)[\d:.,/TZ+-]{0,40}[\])>]?[:|]?"
    r"|\d{1,20}[:|]?|[\])]|Z|[IWED]|[A-Z][a-z]{2}|(?:UTC|GMT|[A-Z]{1,4}T)[\])>]?|std(?:out|err)|INFO|WARN|ERROR|DEBUG"
)
_LINE_NUMBER = re.compile(r"^((?:\S{0,255}?[A-Za-z_\])])?)(?:^|[:-])\d{1,12}[:-](?=\S|\Z)")
"""What ``grep -n`` writes; a name in front of it stays."""
_COLOUR = re.compile(r"\x1b\[[0-9;]{0,12}m")
_FIELD = re.compile(r"(?:(?:^|[\s,;{])(?:msg|message|log|line|MESSAGE)=|(?:^|[,;\t])\s{0,4})\Z")

_NUMBER = r"(?:\d{1,12}\.\d{1,6}|-?inf|-?nan)"
_TIME = "eval time {0,8}= {0,12}"
_DRAFT = "draft acceptance"
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
_ALL = (_TIME, _DRAFT, _ANSWER, _STATISTICS, _BYTES, re.sub(r"(?<!\\)\(", "(?:", _SWEEP), _MODEL)
HIT = "|".join(_ALL)
"""Every line that could hold figures has this, or begins to hold them there."""
HIT_BUT_MODELS = "|".join(_ALL[:-1])
_HIT = re.compile(HIT)

_TIMES = re.compile(
    rf"{_TIME}(\d{{1,12}}\.\d{{1,6}}) ms / {{0,8}}(\d{{1,9}}) (?:tokens?|runs) {{0,8}}"
    rf"\( {{0,16}}{_NUMBER} ms per token, {{0,16}}({_NUMBER}) tokens per second\)"
)
_SHARE = re.compile(
    rf"{_DRAFT}(?: rate)? {{0,4}}= {{0,8}}(\d(?:\.\d{{1,8}})?) {{0,2}}"
    r"\( {0,8}(\d{1,9}) accepted {0,2}/ {0,8}(\d{1,9}) (?:generated|drafted)\)"
)
_ROW = re.compile(_SWEEP)
_TASK = re.compile(r" id_slot=(\d{1,9}) id_task=(-?\d{1,9})")
_LOADED = re.compile(r"loaded meta data with \d{1,9} key-value pairs and \d{1,9} tensors from ")
_LOADING = re.compile(r"loading (draft )?model '([^']{1,4096})'\s{0,4}[\x22`]?$")
_GENERAL_NAME = re.compile(r"general\.name {1,12}= (.{1,400})$")
_DURATION = re.compile(r"dur\(b,g,a\) = \d{1,12}\.\d{3}, (\d{1,12}\.\d{3}), \d{1,12}\.\d{3} ms")
_SENT = (' to_send="', ' response="')
_JSON_START = re.compile(r'\[?\{\s{0,4}"')


def events_of(prefix: str, rest: str) -> Iterable[Event]:
    """The figures of a line: ``rest`` begins with its first :data:`HIT`, ``prefix`` stands
    before."""
    return _events(prefix, rest, Where(), _NESTING)


class _Prefix(NamedTuple):
    """What stands before the engine's words: the server and slot it names, whether the words
    count as the engine's (``readable``), whether another program of the engine wrote them
    (``other``), whether they are inside somebody's string (``quoted``)."""

    server: str = ""
    slot: str = ""
    prompt: bool = False
    readable: bool = False
    other: bool = False
    quoted: bool = False


@lru_cache(maxsize=1024)
def _prefix(text: str) -> _Prefix:
    if len(text) > _MAX_PREFIX:
        return _Prefix(quoted=True)
    own = _OWN.search(text)
    assert own is not None, "it matches nothing at the end"
    outer, slot = text[: own.start()], ""
    if own["slot"]:
        slot = f"{own['slot']}/{own['task']}"
    before, _, after = outer.rpartition('"')
    quoted = outer.count('"') % 2 == 1
    if quoted and not after.strip() and _FIELD.search(before):  # a collector's field
        quoted, outer = False, before
    # Somebody's sentence has no slot, no time, no mark and no number; what a collector writes has.
    marked = any(c.isdigit() or c in "[]|<>(){}=" for c in outer)
    known = bool(own["slot"]) or marked or not outer.strip("`> \t")
    words = _LINE_NUMBER.sub(r"\1 ", outer).split()
    server = " ".join(word for word in words if not _TIME_LIKE.fullmatch(word))[:MAX_NAME]
    return _Prefix(
        server.strip("`> "),
        slot,
        own["what"] == "prompt ",
        known and not quoted,
        own["by"] not in _SERVER_WORDS,
        quoted,
    )


def _events(prefix: str, rest: str, where: Where, depth: int) -> Iterable[Event]:
    if "\x1b" in prefix or "\x1b" in rest:
        prefix, rest = _COLOUR.sub("", prefix), _COLOUR.sub("", rest)
    answer = rest.startswith("predicted")
    line = prefix + rest
    for key in _SENT if answer else ():
        if (at := line.find(key)) >= 0:
            return _message(_json_at(line, at + len(key) - 1), where, depth)
    json_only = answer or rest[:1] == '"'
    if start := _JSON_START.search(line if json_only else prefix):
        document = _json_at(line, start.start())
        if document is not None:
            server = _prefix(prefix[: start.start()]).server or where.server
            return document_events(document, Where(server, where.slot), depth)
    if json_only:
        broken = start is not None and '"timings"' in line
        return (Refused("its JSON is broken"),) if broken else ()
    known = _prefix(prefix)
    where = Where(known.server or where.server, known.slot or where.slot)
    return _text(rest, where, known, prefix)


def _text(rest: str, where: Where, prefix: _Prefix, before: str) -> Iterable[Event]:
    first = rest[:3]
    if first in ("eva", "dra"):
        # Programs that are no server, and the server at its end, print totals in the same words.
        if prefix.quoted or prefix.other:
            return ()
        match = (_TIMES if first == "eva" else _SHARE).match(rest)
        if match is None or not prefix.readable:
            return (Unread(readable(before + rest)),)
        if first == "eva":
            return (_timing(rest, match, where, prefix.prompt),)
        return (_acceptance(match, where),)
    if not prefix.readable:
        return ()
    if first == "loa" and (match := _LOADED.match(rest)):
        path = rest[match.end() : match.end() + 4200].rpartition(" (version ")[0]
        return (Loading(where, file_name(path), None, True),) if path else ()
    if first == "loa" and (match := _LOADING.match(rest)):
        return (Loading(where, file_name(match[2]), match[1] is not None, True),)
    if first == "gen" and (match := _GENERAL_NAME.match(rest)):
        return (Loading(where, readable(match[1]), None, False),)
    if first[:1] == "|" and (match := _ROW.match(rest)) and not rest[match.end() :].strip():
        return (_sweep(match),)
    if first == "sta" and (match := TOTALS.match(rest)):
        drafted, accepted = int(match["drafted"]), int(match["accepted"])
        if accepted > drafted:
            return (Refused(_too_many(accepted, drafted)),)
        duration = _DURATION.search(rest, match.end(), match.end() + 4096)
        draft_ms = float(duration[1]) if duration else None
        counts = int(match["drafts"]), drafted, accepted
        return (Drafting(where.server, match["name"], *counts, draft_ms),)
    return ()


def _too_many(accepted: int, drafted: int) -> str:
    return f"{accepted} tokens accepted of {drafted} drafted"


def document_events(document: Any, where: Where, depth: int = _NESTING) -> Iterator[Event]:
    """The figures of a JSON document: an answer, bare timings, a log line of JSON, or a list."""
    if depth <= 0:
        return
    if isinstance(document, list):
        for item in document[:_MAX_MESSAGES]:
            yield from document_events(item, where, depth - 1)
        return
    if not isinstance(document, dict):
        return
    timings = document.get("timings", document if "predicted_ms" in document else None)
    if isinstance(timings, dict):
        answer = answer_of(document, timings, where)
        if answer is not None:
            yield answer
        return
    process, slot, task = (document.get(key) for key in ("_PID", "id_slot", "id_task"))
    if isinstance(process, str):
        where = Where(process[:10], where.slot)
    if isinstance(slot, int) and isinstance(task, int):
        where = Where(where.server, f"{slot}/{task}")
    for key in _TEXT_KEYS:
        text = document.get(key)
        if isinstance(text, list):  # journald's, of control characters
            with contextlib.suppress(TypeError, ValueError):
                text = bytes(text).decode("utf-8", "replace")
        if isinstance(text, str):
            yield from _message(text, where, depth)
            return
    for key in _INNER_KEYS:
        if isinstance(document.get(key), dict):
            yield from document_events(document[key], where, depth - 1)


def _message(text: Any, where: Where, depth: int) -> Iterator[Event]:
    """The lines that a log entry holds."""
    if not isinstance(text, str) or depth <= 1:
        return
    for line in text.split("\n", _MAX_MESSAGES):
        if found := _HIT.search(line):
            yield from _events(line[: found.start()], line[found.start() :], where, depth - 1)


def _sweep(row: re.Match[str]) -> Event:
    pp, tg, n_kv = (int(row[i]) for i in (1, 2, 3))
    pp_s, pp_rate, tg_s, tg_rate = (float(row[i]) for i in (4, 5, 6, 7))
    for n, s, rate in ((pp, pp_s, pp_rate), (tg, tg_s, tg_rate)):
        if not agrees(n, 1000 * s, rate, first_is_free=False, digits=0.6):
            return Refused(f"{n} tokens in {s:g} s are not {rate:g} t/s")
    return SweepRow(n_kv, pp, pp_s, pp_rate, tg, tg_s, tg_rate)


def _timing(rest: str, match: re.Match[str], where: Where, prompt: bool) -> Event:
    ms_text, n_text, rate_text = match.groups()
    n, ms, rate = int(n_text), float(ms_text), float(rate_text)
    if not where.slot and (task := _TASK.search(rest, match.end())):
        where = Where(where.server, f"{task[1]}/{task[2]}")
    if not math.isfinite(rate):
        return Timing(where, prompt, n, ms, None)
    if not agrees(n, ms, rate, first_is_free=not prompt, digits=0.006):
        return Refused(f"{n} tokens in {ms_text} ms are not {rate_text} t/s")
    return Timing(where, prompt, n, ms, rate)


def _acceptance(match: re.Match[str], where: Where) -> Event:
    share, accepted, drafted = match[1], int(match[2]), int(match[3])
    if accepted > drafted or drafted == 0:
        return Refused(_too_many(accepted, drafted))
    if abs(accepted / drafted - float(share)) > 1.1 * 10.0 ** -len(share.partition(".")[2]):
        return Refused(f"{accepted} of {drafted} is not {share}")
    return Acceptance(where, drafted, accepted)


def answer_of(document: dict[str, Any], timings: dict[str, Any], where: Where) -> Event | None:
    """The answer in ``document``; None for a chunk whose totals are yet to come."""
    if document.get("stop") is False:  # a chunk of /completion: the last one has the totals
        return None
    n, ms = _count(timings.get("predicted_n")), _time(timings.get("predicted_ms"))
    rate = _time(timings.get("predicted_per_second"))
    if n is None or ms is None:
        return Refused("its timings have no predicted_n and predicted_ms")
    if rate is not None and not agrees(n, ms, rate, first_is_free=True, digits=1e-3):
        return Refused(f"{n} tokens in {ms:g} ms are not {rate:g} t/s")
    drafted = _count(timings.get("draft_n"))
    accepted = _count(timings.get("draft_n_accepted"))
    if drafted is None or accepted is None:
        drafted = accepted = None
    elif accepted > drafted:
        return Refused(_too_many(accepted, drafted))
    name, model = document.get("id"), document.get("model")
    return Answer(
        where=where,
        id=name[:MAX_NAME] if isinstance(name, str) else None,
        model=file_name(model) if isinstance(model, str) and model else None,
        prompt_n=_count(timings.get("prompt_n")),
        prompt_ms=_time(timings.get("prompt_ms")),
        predicted_n=n,
        predicted_ms=ms,
        rate=rate,
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
