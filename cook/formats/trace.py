"""The trace file: what the target said, token by token, once and for all drafts.

An append-only file: ``COOKTRAC``, then one block of header and one block per reply. A block is
u32 JSON bytes, u64 payload bytes, JSON, payload, u32 CRC-32 of JSON and payload; numbers are
little-endian. The header's payload is the target's vocabulary (trace_vocabulary.py), so that a
draft can be refused with the differing tokens although the target is not there. Each reply is
flushed to the disk before the next is recorded, so a crash costs one reply: a block cut short
at the end is ignored by the reader and cut off by the writer.

Per token (docs/internals/scoring.md#the-trace): id, log-probability raw and under the sampling
chain, log-sum-exp, top-1/top-2 margin, and the K largest: ids, and logits relative to the largest
in half precision; with K = 64 that is 408 bytes. Log-probabilities are natural logarithms.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from pydantic import ValidationError

from cook.closing import Closing
from cook.errors import InputError
from cook.formats.trace_reply import Reply, pack_reply, unpack_reply
from cook.formats.trace_schema import TRACE_VERSION, ReplyHead, Sampler, TraceHeader
from cook.formats.trace_vocabulary import pack_vocabulary, unpack_vocabulary
from cook.vocabulary import Vocabulary

__all__ = ["Reply", "ReplyHead", "Sampler", "TraceFile", "TraceHeader", "TraceWriter"]

MAGIC = b"COOKTRAC"
_BLOCK = struct.Struct("<IQ")
_MAX_JSON, _MAX_PAYLOAD = 1 << 20, 1 << 30
_MAX_VOCABULARY = 64 << 20


def _block(text: bytes, payload: bytes) -> bytes:
    crc = zlib.crc32(payload, zlib.crc32(text))
    return _BLOCK.pack(len(text), len(payload)) + text + payload + struct.pack("<I", crc)


@dataclass(frozen=True)
class _Place:
    head: ReplyHead
    payload_at: int
    payload_bytes: int
    text_crc: int
    crc: int


class TraceFile:
    """A trace, read: its header, and its replies one at a time (memory does not grow with it).

    InputError, with file and offset, for anything that is not a whole trace of this version.
    ``cut_short``: the last block was incomplete (a crash while recording) and is ignored.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self._scan(file)
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror}") from None

    def _scan(self, file: IO[bytes]) -> None:
        size = os.fstat(file.fileno()).st_size
        if file.read(len(MAGIC)) != MAGIC:
            raise InputError(f"{self.path}: not a trace of cook")
        head = self._next(file, size)
        if head is None:
            raise InputError(f"{self.path}: the trace has no whole header", hint="record it anew")
        self.header = _header(self.path, head[0])
        text, at, n_payload, crc = head
        if n_payload > _MAX_VOCABULARY:
            raise InputError(f"{self.path}: impossible size of its vocabulary")
        after = file.tell()
        file.seek(at)
        self._vocabulary = file.read(n_payload)
        file.seek(after)
        if zlib.crc32(self._vocabulary, zlib.crc32(text)) != crc:
            raise InputError(f"{self.path}: its header is damaged", hint="record the trace anew")
        places: list[_Place] = []
        self.whole_bytes = file.tell()
        while (block := self._next(file, size)) is not None:
            text, at, n_payload, crc = block
            try:
                reply = ReplyHead.model_validate_json(text)
            except ValidationError as error:
                raise InputError(f"{self.path}: offset {self.whole_bytes}: {_why(error)}") from None
            places.append(_Place(reply, at, n_payload, zlib.crc32(text), crc))
            self.whole_bytes = file.tell()
        self.cut_short = self.whole_bytes != size
        self._places = {place.head.id: place for place in places}
        if len(self._places) != len(places):
            raise InputError(f"{self.path}: two replies have the same id")

    def _next(self, file: IO[bytes], size: int) -> tuple[bytes, int, int, int] | None:
        """(JSON, payload offset, payload bytes, CRC) of the next block; None if it is not whole."""
        start = file.tell()
        fixed = file.read(_BLOCK.size)
        if len(fixed) < _BLOCK.size:
            return None
        n_text, n_payload = _BLOCK.unpack(fixed)
        if n_text > _MAX_JSON or n_payload > _MAX_PAYLOAD:
            raise InputError(f"{self.path}: offset {start}: impossible block size")
        if start + _BLOCK.size + n_text + n_payload + 4 > size:
            return None
        text = file.read(n_text)
        at = file.tell()
        file.seek(n_payload, os.SEEK_CUR)
        return text, at, n_payload, struct.unpack("<I", file.read(4))[0]

    @property
    def vocabulary(self) -> Vocabulary | None:
        """The target's vocabulary; None where a recording over HTTP could not learn it."""
        facts = self.header.tokenizer
        return None if facts is None else unpack_vocabulary(facts, self._vocabulary, self.path)

    @property
    def heads(self) -> tuple[ReplyHead, ...]:
        """What is recorded, in order, without its arrays."""
        return tuple(place.head for place in self._places.values())

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Reply]:
        return (self.reply(name) for name in self._places)

    def reply(self, name: str) -> Reply:
        """The reply called ``name``; its checksum is verified here."""
        place = self._places.get(name)
        if place is None:
            raise InputError(f"{self.path}: no reply {name!r}")
        with self.path.open("rb") as file:
            file.seek(place.payload_at)
            payload = file.read(place.payload_bytes)
        if zlib.crc32(payload, place.text_crc) != place.crc:
            raise InputError(
                f"{self.path}: offset {place.payload_at}: reply {name!r} is damaged",
                hint="record the trace anew",
            )
        return unpack_reply(place.head, self.header.top, payload, str(self.path))

    def require(
        self,
        *,
        target_sha256: str | None = None,
        tokenizer_sha256: str | None = None,
        template_sha256: str | None = None,
    ) -> None:
        """InputError with the reason when the trace is of another target, tokenizer or template.

        None is not compared; neither is what the trace does not know (recorded over HTTP).
        """
        header = self.header
        for what, wanted, has in (
            ("tokenizer", tokenizer_sha256, header.tokenizer_sha256),
            ("chat template", template_sha256, header.template_sha256),
            ("target", target_sha256, header.target_sha256),
        ):
            if wanted is not None and has is not None and wanted != has:
                raise InputError(
                    f"{self.path}: recorded with another {what} "
                    f"({header.target_name}; {what} {_short(has)}, not {_short(wanted)})",
                    hint="record a trace with this target: cook trace",
                )


class TraceWriter(Closing):
    """Records replies into a new trace, or goes on with one that was cut short.

    A trace of other conditions is refused with the differing fields. One writer at a time.
    """

    def __init__(
        self, path: Path, header: TraceHeader, vocabulary: Vocabulary | None = None
    ) -> None:
        self.path, self.header = path, header
        self._first = MAGIC + _block(
            header.model_dump_json().encode(), pack_vocabulary(vocabulary) if vocabulary else b""
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab+")
        try:
            self._lock()
            self.done = self._resume()
        except BaseException:
            self._file.close()
            raise

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError(f"{self.path}: another cook is recording this trace") from None

    def _resume(self) -> set[str]:
        # a crash may have cut even the header short
        if self._headless():
            os.ftruncate(self._file.fileno(), 0)
            self._write(self._first)
            return set()
        trace = TraceFile(self.path)
        _same(self.path, trace.header, self.header)
        os.ftruncate(self._file.fileno(), trace.whole_bytes)
        self._file.seek(0, os.SEEK_END)
        return set(trace.ids)

    def _headless(self) -> bool:
        """Whether the file is new, or ends within the header (of any recording)."""
        size = os.fstat(self._file.fileno()).st_size
        self._file.seek(0)
        start = self._file.read(len(MAGIC) + _BLOCK.size)
        if not (start.startswith(MAGIC) or MAGIC.startswith(start)):
            return False
        if len(start) < len(MAGIC) + _BLOCK.size:
            return True
        text, payload = _BLOCK.unpack_from(start, len(MAGIC))
        possible: bool = text <= _MAX_JSON and payload <= _MAX_PAYLOAD
        return possible and size < len(start) + text + payload + 4

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        self._file.flush()
        os.fsync(self._file.fileno())

    def append(self, reply: Reply) -> None:
        """Add one reply; it is on the disk when this returns."""
        if reply.head.id in self.done:
            raise InputError(f"{self.path}: reply {reply.head.id!r} is recorded already")
        payload = pack_reply(reply, self.header.top)
        head = reply.head
        if head.prompt_tokens != len(reply.prompt) or head.tokens != len(reply.tokens):
            raise InputError(f"reply {head.id!r}: its head does not fit its arrays")
        self._write(_block(head.model_dump_json().encode(), payload))
        self.done.add(head.id)

    def close(self) -> None:
        self._file.close()


def _header(path: Path, text: bytes) -> TraceHeader:
    version = None
    with contextlib.suppress(ValueError, AttributeError, RecursionError):
        version = json.loads(text).get("version")
    if version != TRACE_VERSION:
        raise InputError(
            f"{path}: trace version {version}, this cook reads version {TRACE_VERSION}",
            hint="record the trace anew: cook trace",
        )
    try:
        return TraceHeader.model_validate_json(text)
    except ValidationError as error:
        raise InputError(f"{path}: bad trace header: {_why(error)}") from None


def _short(digest: str) -> str:
    return digest.removeprefix("sha256:")[:12]


def _why(error: ValidationError) -> str:
    first = error.errors()[0]
    return f"{'.'.join(str(p) for p in first['loc'])}: {first['msg']}"


def _same(path: Path, has: TraceHeader, wanted: TraceHeader) -> None:
    old, new = has.conditions(), wanted.conditions()
    differing = [name for name in new if old[name] != new[name]]
    if differing:
        lines = [f"{n}: {str(old[n])[:60]} there, {str(new[n])[:60]} now" for n in differing]
        raise InputError(
            f"{path}: was recorded under other conditions: " + "; ".join(lines),
            hint="give another file name, or remove the old trace",
        )
