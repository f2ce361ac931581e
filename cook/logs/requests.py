"""llama-server logs of both engines, read as a stream: the requests in them.

Text logs, JSON lines (``--log-jsonl``, ik's ``--log-format json``), ``journalctl`` and container
output, verbose logs with the answers in them, saved answers, and tables of llama-sweep-bench. One
request may stand there twice (its timings block, then the answer's JSON): it is counted once, with
what either of them holds. Memory is bounded by the requests found and the longest line read;
lines are never searched by a pattern that could look back.
"""

from __future__ import annotations

import codecs
import re
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import BinaryIO

from cook.engines.server_api import DepthCount
from cook.errors import InputError
from cook.logs.lines import (
    HIT,
    HIT_BUT_MODELS,
    Acceptance,
    Answer,
    Drafting,
    Event,
    Loading,
    Refused,
    SweepRow,
    Timing,
    Unread,
    Where,
    document_events,
    events_of,
)

MAX_REQUESTS = 1_000_000
_MAX_PROCESSES = 1024
_MAX_PENDING = 256
_ANSWER_IDS = 4096
_MAX_SWEEP_ROWS = 100_000
MAX_LINE_BYTES = 4 << 20
MAX_DOCUMENT_BYTES = 64 << 20
_BLOCK_BYTES = 1 << 20
_MAX_REFUSED = 20
_MAX_LOADINGS = 50_000

_HIT = re.compile(HIT.encode())
_HIT_BUT_MODELS = re.compile(HIT_BUT_MODELS.encode())
_DOCUMENT_HEADS = (b"{", b"[", b"[{")


@dataclass(slots=True)
class LoggedRequest:
    """One request; not changed once it is read.

    ``line`` (from 1) is where it first stands; times are in ms. ``target`` and ``draft`` are the
    models' names where the log has them. None is what the log does not have;
    ``logged_tokens_per_s`` is the decode rate as printed.
    """

    line: int
    target: str | None = None
    draft: str | None = None
    prompt_n: int | None = None
    prompt_ms: float | None = None
    predicted_n: int | None = None
    predicted_ms: float | None = None
    logged_tokens_per_s: float | None = None
    drafted: int | None = None
    accepted: int | None = None
    by_depth: tuple[DepthCount, ...] = ()
    file: str = ""

    @property
    def acceptance(self) -> float | None:
        """accepted / drafted; None where nothing was drafted."""
        if not self.drafted or self.accepted is None:
            return None
        return self.accepted / self.drafted

    @property
    def decode_tokens_per_s(self) -> float | None:
        """Tokens after the first / decode time."""
        n, ms = self.predicted_n, self.predicted_ms
        return 1000 * (n - 1) / ms if n is not None and n > 1 and ms else None


@dataclass(frozen=True)
class Suspect:
    """A line with the engine's words whose figures were not used."""

    line: int
    why: str


@dataclass(frozen=True)
class ServerLog:
    """Everything read from one log. ``refused`` counts lines whose figures contradict each other,
    ``suspects`` are the first of them; ``unread`` those with the engine's words that could not be
    read, ``first_unread`` is the first."""

    requests: tuple[LoggedRequest, ...]
    drafting: tuple[Drafting, ...]
    lines: int
    refused: int
    suspects: tuple[Suspect, ...]
    too_long: int
    """Lines of more than 4 MiB, not read."""
    unread: int = 0
    first_unread: Suspect | None = None
    sweeps: tuple[tuple[SweepRow, ...], ...] = ()
    """Tables of llama-sweep-bench, each from its first row to its last."""


def read_server_log(stream: BinaryIO) -> ServerLog:
    """Read ``stream`` to its end, in UTF-8 or in UTF-16 (PowerShell's ``>``), by its mark or its
    zero bytes. InputError with more than 1,000,000 requests in it."""
    reader = LogReader()
    raw = stream.read(_BLOCK_BYTES) or b""
    decoder = _utf16(raw)

    def text(data: bytes) -> bytes:
        return decoder.decode(data).encode("utf-8", "replace") if decoder else data

    head = text(raw.removeprefix(codecs.BOM_UTF8))
    # A saved answer, indented: one document over many lines.
    if head.lstrip().split(b"\n", 1)[0].rstrip() in _DOCUMENT_HEADS:
        body = head
        while len(body) < MAX_DOCUMENT_BYTES and (more := stream.read(_BLOCK_BYTES)):
            body += text(more)
        if reader.document(body):
            return reader.result()
        head = body
    reader.feed(head)
    while more := stream.read(_BLOCK_BYTES):
        reader.feed(text(more))
    return reader.result()


def _utf16(head: bytes) -> codecs.IncrementalDecoder | None:
    """A decoder for a log that begins like ``head``; None where it is not UTF-16."""
    sample = head[:2000]
    zeros = [sample[i::2].count(0) for i in (0, 1)]
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        name = "utf-16"
    elif max(zeros) > 0.4 * len(sample) / 2 and min(zeros) < 0.1 * max(zeros):
        name = "utf-16-le" if zeros[1] > zeros[0] else "utf-16-be"
    else:
        return None
    return codecs.getincrementaldecoder(name)("replace")


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
        self._unread = 0
        self._first_unread: Suspect | None = None

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
            for event in document_events(document, Where()):
                self._take(event, 1)
        return True

    def result(self) -> ServerLog:
        """What was read; the last line needs no newline."""
        if self._rest or self._skipping:
            self._block(self._rest + b"\n")
            self._rest = b""
        return ServerLog(
            requests=self._requests.all(),
            drafting=tuple(self._requests.drafters.values()),
            lines=self._lines,
            refused=self._refused,
            suspects=tuple(self._suspects),
            too_long=self._too_long,
            unread=self._unread,
            first_unread=self._first_unread,
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
        if isinstance(event, Unread):
            self._unread += 1
            self._first_unread = self._first_unread or Suspect(line, event.text)
        elif isinstance(event, Refused):
            self._refused += 1
            if len(self._suspects) < _MAX_REFUSED:
                self._suspects.append(Suspect(line, event.why))
        else:
            self._requests.take(event, line)
            if isinstance(event, Loading):
                self._loadings += 1
                if self._loadings == _MAX_LOADINGS:  # no server loads so often: noise
                    self._hit = _HIT_BUT_MODELS


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


class Requests:
    """Puts the lines of a request together, and the two forms in which a log may have it."""

    def __init__(self) -> None:
        self.drafters: dict[tuple[str, str], Drafting] = {}
        self.sweeps: list[list[SweepRow]] = []
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
            server = event.where.server
            for where in [w for w in self._pending if w.server == server]:
                self._add(self._pending.pop(where))
            if self._of(event.where).outdated_by(event):
                self._models[server] = _Models()
            self._models[server].load(event)
        elif isinstance(event, SweepRow):
            self._sweep_rows += 1
            if self._sweep_rows <= _MAX_SWEEP_ROWS:
                if not self.sweeps or event.n_kv <= self.sweeps[-1][-1].n_kv:
                    self.sweeps.append([])
                self.sweeps[-1].append(event)
        elif isinstance(event, Drafting) and len(self.drafters) < _MAX_PROCESSES:
            self.drafters[event.process, event.method] = event

    def all(self) -> tuple[LoggedRequest, ...]:
        """Every request, in the order in which they first stand in the log."""
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
            request.logged_tokens_per_s = timing.rate
        self._pend(timing.where, request)

    def _acceptance(self, counts: Acceptance, line: int) -> None:
        where = counts.where
        if not where.slot:  # ik continues the block of the last slot without its prefix
            same = [w for w in self._pending if w.server == where.server]
            where = same[-1] if same else where
        request = self._pending.get(where)
        if request is not None and request.drafted is not None:
            self._add(self._pending.pop(where))
            request = None
        request = request or self._new(where, line)
        request.drafted, request.accepted = counts.drafted, counts.accepted
        self._pend(where, request)

    def _answer(self, answer: Answer, line: int) -> None:
        request = replace(
            self._new(answer.where, line),
            prompt_n=answer.prompt_n,
            prompt_ms=answer.prompt_ms,
            predicted_n=answer.predicted_n,
            predicted_ms=answer.predicted_ms,
            logged_tokens_per_s=answer.rate,
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
        models = self._models.setdefault(where.server, _Models())
        self._models.move_to_end(where.server)
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
        """Its index; one that was printed before with the very same times is that one."""
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
        logged_tokens_per_s=first.logged_tokens_per_s or second.logged_tokens_per_s,
        by_depth=first.by_depth or second.by_depth,
    )


@dataclass
class _Models:
    """The models of one server process, as far as its log has named them.

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
        files, names = ([*known, None, None] for known in (self.files, self.names))
        return self.target or files[0] or names[0], self.draft or files[1] or names[1]
