"""llama-server logs of both engines, read as a stream: the requests they tell of.

Text logs, JSON lines (``--log-jsonl``, ik's ``--log-format json``), ``journalctl`` output,
verbose logs with the answers in them, saved answers, and tables of llama-sweep-bench. One
request may be told twice (its timings block, then the answer's JSON): it is counted once, with
what either of them knows. Memory is bounded by the requests found and the longest line read;
lines are never searched by a pattern that could look back.

From the events of a log to its requests: parts put together, two tellings made one.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import BinaryIO

from cook.errors import InputError
from cook.logs.lines import (
    HIT,
    HIT_BUT_MODELS,
    Acceptance,
    Answer,
    Drafter,
    Event,
    Loading,
    Refused,
    Sweep,
    Timing,
    Where,
    events_of,
    objects,
)

MAX_REQUESTS = 1_000_000
_MAX_PROCESSES = 1024
_MAX_PENDING = 256
_ANSWER_IDS = 4096
_MAX_SWEEP_ROWS = 100_000


@dataclass(slots=True)
class LoggedRequest:
    """One request; nobody changes it once it is read.

    ``line`` (from 1) is where it was first told; times are in ms. ``target`` and ``draft`` are
    the models' names where the log says them. None is what the log does not tell;
    ``told_tokens_per_s`` is the decode rate in the log's own words.
    """

    line: int
    target: str | None = None
    draft: str | None = None
    prompt_n: int | None = None
    prompt_ms: float | None = None
    predicted_n: int | None = None
    predicted_ms: float | None = None
    told_tokens_per_s: float | None = None
    drafted: int | None = None
    accepted: int | None = None
    by_depth: tuple[tuple[int, int, int], ...] = ()
    """(depth, drafted, accepted), depth from 1; ik tells it."""


@dataclass
class _Models:
    """The models of one server process, as far as its log has told them.

    Both engines load the target first; mainline says which is which, ik the file names only.
    A model loaded after a request belongs to a new server under the same name.
    """

    target: str | None = None
    draft: str | None = None
    files: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    served: bool = False

    def outdated_by(self, loading: Loading) -> bool:
        """Whether ``loading`` is of a new server: this one has served, or had another target."""
        return self.served or (loading.draft is False and self.target not in (None, loading.name))

    def load(self, loading: Loading) -> None:
        if loading.draft is not None:
            if loading.draft:
                self.draft = loading.name
            else:
                self.target = loading.name
            return
        seen = self.files if loading.file else self.names
        if loading.name and loading.name not in seen and len(seen) < 2:
            seen.append(loading.name)

    def pair(self) -> tuple[str | None, str | None]:
        target = self.target or _nth(self.files, 0) or _nth(self.names, 0)
        draft = self.draft or _nth(self.files, 1) or _nth(self.names, 1)
        return target, draft


def _nth(items: list[str], index: int) -> str | None:
    return items[index] if index < len(items) else None


class Requests:
    """Puts the lines of a request together, and the two tellings of one request."""

    def __init__(self) -> None:
        self.drafters: dict[tuple[str, str], Drafter] = {}
        self.sweeps: list[list[Sweep]] = []
        self._sweep_rows = 0
        self._found: list[LoggedRequest] = []
        self._by_times: dict[tuple[int | None, str, int | None, str], int] = {}
        self._by_id: OrderedDict[str, int] = OrderedDict()
        self._pending: OrderedDict[Where, LoggedRequest] = OrderedDict()
        self._models: OrderedDict[str, _Models] = OrderedDict()

    def take(self, event: Event, line: int) -> None:
        if isinstance(event, Timing):
            self._timing(event, line)
        elif isinstance(event, Acceptance):
            self._acceptance(event, line)
        elif isinstance(event, Answer):
            self._answer(event, line)
        elif isinstance(event, Loading):
            self._load(event)
        elif isinstance(event, Sweep):
            self._sweep(event)
        elif isinstance(event, Drafter) and len(self.drafters) < _MAX_PROCESSES:
            self.drafters[event.where.process, event.name] = event

    def _sweep(self, row: Sweep) -> None:
        self._sweep_rows += 1
        if self._sweep_rows > _MAX_SWEEP_ROWS:
            return
        if not self.sweeps or row.n_kv <= self.sweeps[-1][-1].n_kv:
            self.sweeps.append([])
        self.sweeps[-1].append(row)

    def _load(self, loading: Loading) -> None:
        process = loading.where.process
        if self._pending:
            for where in [w for w in self._pending if w.process == process]:
                self._add(self._pending.pop(where))
        if self._of(loading.where).outdated_by(loading):
            self._models[process] = _Models()
        self._models[process].load(loading)

    def all(self) -> tuple[LoggedRequest, ...]:
        """Every request, in the order in which the log first tells of them."""
        while self._pending:
            self._close_oldest()
        return tuple(sorted(self._found, key=lambda request: request.line))

    def _timing(self, timing: Timing, line: int) -> None:
        open_ = self._pending.get(timing.where)
        if open_ is not None and (timing.prompt or open_.predicted_n is not None):
            self._add(self._pending.pop(timing.where))
            open_ = None
        request = open_ or self._new(timing.where, line)
        if timing.prompt:
            request.prompt_n, request.prompt_ms = timing.n, timing.ms
        else:
            request.predicted_n, request.predicted_ms = timing.n, timing.ms
            request.told_tokens_per_s = timing.told
        self._pend(timing.where, request)

    def _acceptance(self, told: Acceptance, line: int) -> None:
        where = told.where
        if not where.slot:  # ik continues the block of the last slot without its prefix
            same = [w for w in self._pending if w.process == where.process]
            where = same[-1] if same else where
        request = self._pending.get(where)
        if request is not None and request.drafted is not None:
            self._add(self._pending.pop(where))
            request = None
        request = request or self._new(where, line)
        request.drafted, request.accepted = told.drafted, told.accepted
        self._pend(where, request)

    def _answer(self, answer: Answer, line: int) -> None:
        request = replace(
            self._new(answer.where, line),
            prompt_n=answer.prompt_n,
            prompt_ms=answer.prompt_ms,
            predicted_n=answer.predicted_n,
            predicted_ms=answer.predicted_ms,
            told_tokens_per_s=answer.told,
            drafted=answer.drafted,
            accepted=answer.accepted,
            by_depth=answer.by_depth,
        )
        request = replace(request, target=request.target or answer.model)
        earlier = self._by_id.get(answer.id) if answer.id else None
        if earlier is None:
            index = self._add(request)
        else:  # a later chunk of the same answer has the later totals
            index, before = earlier, self._found[earlier]
            if (request.predicted_n or 0) >= (before.predicted_n or 0):
                self._by_times.pop(_times(before), None)
                self._found[index] = _merged(request, before)
                self._by_times[_times(request)] = index
        if answer.id:
            self._by_id[answer.id] = index
            while len(self._by_id) > _ANSWER_IDS:
                self._by_id.popitem(last=False)

    def _new(self, where: Where, line: int) -> LoggedRequest:
        models = self._of(where)
        models.served = True
        target, draft = models.pair()
        return LoggedRequest(line, target, draft)

    def _of(self, where: Where) -> _Models:
        models = self._models.setdefault(where.process, _Models())
        self._models.move_to_end(where.process)
        while len(self._models) > _MAX_PROCESSES:
            self._models.popitem(last=False)
        return models

    def _pend(self, where: Where, request: LoggedRequest) -> None:
        self._pending[where] = request
        self._pending.move_to_end(where)
        while len(self._pending) > _MAX_PENDING:
            self._close_oldest()

    def _close_oldest(self) -> None:
        self._add(self._pending.popitem(last=False)[1])

    def _add(self, request: LoggedRequest) -> int:
        """Its index; one that was told before with the very same times is that one."""
        key = _times(request)
        known = self._by_times.get(key) if request.predicted_n is not None else None
        if known is not None:
            self._found[known] = _merged(self._found[known], request)
            return known
        if len(self._found) >= MAX_REQUESTS:
            raise InputError(f"more than {MAX_REQUESTS:,} requests in one log", hint="split it")
        self._found.append(request)
        if request.predicted_n is not None:
            self._by_times[key] = len(self._found) - 1
        return len(self._found) - 1


def _times(request: LoggedRequest) -> tuple[int | None, str, int | None, str]:
    """What text and JSON tell alike, to the hundredth of a millisecond."""
    prompt_ms, predicted_ms = request.prompt_ms, request.predicted_ms
    return (
        request.prompt_n,
        f"{prompt_ms:.2f}" if prompt_ms is not None else "",
        request.predicted_n,
        f"{predicted_ms:.2f}" if predicted_ms is not None else "",
    )


def _merged(first: LoggedRequest, second: LoggedRequest) -> LoggedRequest:
    """``first``, with what only ``second`` knows."""
    known = {
        name: getattr(second, name)
        for name in ("target", "draft", "prompt_n", "prompt_ms", "drafted", "accepted")
        if getattr(first, name) is None
    }
    return replace(
        first,
        **known,
        line=min(first.line, second.line),
        told_tokens_per_s=first.told_tokens_per_s or second.told_tokens_per_s,
        by_depth=first.by_depth or second.by_depth,
    )


MAX_LINE_BYTES = 4 << 20
MAX_DOCUMENT_BYTES = 64 << 20
_BLOCK_BYTES = 1 << 20
_MAX_REFUSED = 20

_MAX_LOADINGS = 50_000

_HIT = re.compile(HIT.encode())
_HIT_BUT_MODELS = re.compile(HIT_BUT_MODELS.encode())
_DOCUMENT_HEADS = (b"{", b"[", b"[{")


@dataclass(frozen=True)
class Suspect:
    """A line that looked like figures and was not used."""

    line: int
    why: str


@dataclass(frozen=True)
class ServerLog:
    """Everything one log says. ``refused`` counts lines, ``suspects`` are the first of them."""

    requests: tuple[LoggedRequest, ...]
    drafters: tuple[Drafter, ...]
    lines: int
    refused: int
    suspects: tuple[Suspect, ...]
    too_long: int
    """Lines of more than 4 MiB, not read."""
    sweeps: tuple[tuple[Sweep, ...], ...] = ()
    """Tables of llama-sweep-bench, each from its first row to its last."""


def read_server_log(stream: BinaryIO) -> ServerLog:
    """Read ``stream`` to its end. InputError with more than 1,000,000 requests in it."""
    reader = LogReader()
    head = _read(stream)
    # A saved answer, indented: one document over many lines.
    if head.lstrip().split(b"\n", 1)[0].rstrip() in _DOCUMENT_HEADS:
        body = head
        while len(body) < MAX_DOCUMENT_BYTES and (more := _read(stream)):
            body += more
        if reader.document(body):
            return reader.result()
        head = body
    while head:
        reader.feed(head)
        head = _read(stream)
    return reader.result()


def _read(stream: BinaryIO) -> bytes:
    return stream.read(_BLOCK_BYTES) or b""


class LogReader:
    """Takes a log in blocks of any size; :meth:`result` ends it."""

    def __init__(self) -> None:
        self._requests = Requests()
        self._rest = b""
        self._skipping = False
        self._hit = _HIT
        self._loadings = 0
        self._lines = self._refused = self._too_long = 0
        self._suspects: list[Suspect] = []

    def feed(self, data: bytes) -> None:
        """The next bytes of the log."""
        if self._skipping:
            end = data.find(b"\n")
            if end < 0:
                return
            data = data[end + 1 :]
            self._lines += 1
            self._skipping = False
        data = self._rest + data if self._rest else data
        end = data.rfind(b"\n") + 1
        self._rest = data[end:]
        self._block(data[:end])
        if len(self._rest) > MAX_LINE_BYTES:
            self._rest, self._skipping = b"", True
            self._too_long += 1

    def document(self, body: bytes) -> bool:
        """Read ``body`` as one or more JSON documents; False, and nothing read, if it is none."""
        found = list(_documents(body))
        if not found or found[-1] is None:
            return False
        self._lines = body.count(b"\n") + 1
        for document in found:
            for event in objects(document, Where()):
                self._take(event, 1)
        return True

    def result(self) -> ServerLog:
        """What was read; the last line needs no newline."""
        if self._rest or self._skipping:
            self._block(self._rest + b"\n")
            self._rest = b""
        return ServerLog(
            requests=self._requests.all(),
            drafters=tuple(self._requests.drafters.values()),
            lines=self._lines,
            refused=self._refused,
            suspects=tuple(self._suspects),
            too_long=self._too_long,
            sweeps=tuple(tuple(rows) for rows in self._requests.sweeps),
        )

    def _block(self, block: bytes) -> None:
        """Whole lines. Every byte is passed at most a few times, whatever stands in them."""
        start = counted = 0
        while found := self._hit.search(block, start):
            begin = block.rfind(b"\n", start, found.start()) + 1 or start
            end = block.find(b"\n", found.end())
            self._lines += block.count(b"\n", counted, begin)
            counted = begin
            if end - begin > MAX_LINE_BYTES:
                self._too_long += 1
            else:
                prefix = block[begin : found.start()].decode("utf-8", "replace")
                rest = block[found.start() : end].decode("utf-8", "replace")
                for event in events_of(prefix, rest):
                    self._take(event, self._lines + 1)
            start = end + 1
        self._lines += block.count(b"\n", counted)

    def _take(self, event: Event, line: int) -> None:
        if not isinstance(event, Refused):
            self._requests.take(event, line)
            if isinstance(event, Loading):
                self._loadings += 1
                if self._loadings == _MAX_LOADINGS:  # no server loads so often: noise
                    self._hit = _HIT_BUT_MODELS
            return
        self._refused += 1
        if len(self._suspects) < _MAX_REFUSED:
            self._suspects.append(Suspect(line, event.why))


def _documents(body: bytes) -> Iterator[object]:
    """The JSON documents one after the other in ``body``; None where it is not JSON."""
    import json

    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        yield None
        return
    decoder, at = json.JSONDecoder(), 0
    while True:
        while at < len(text) and text[at].isspace():
            at += 1
        if at >= len(text):
            return
        try:
            document, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            yield None
            return
        yield document
