"""llama-server logs of both engines, read as a stream: the requests they tell of.

Text logs, JSON lines (``--log-jsonl``, ik's ``--log-format json``), ``journalctl`` output,
verbose logs with the answers in them, saved answers, and tables of llama-sweep-bench. One
request may be told twice (its timings block, then the answer's JSON): it is counted once, with
what either of them knows. Memory is bounded by the requests found and the longest line read;
lines are never searched by a pattern that could look back.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from cook.formats.server_log_events import Drafter, Event, Loading, Refused, Sweep, Where
from cook.formats.server_log_lines import HIT, HIT_BUT_MODELS, events_of, objects
from cook.formats.server_log_requests import LoggedRequest, Requests

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
    reader = Reader()
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


class Reader:
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
