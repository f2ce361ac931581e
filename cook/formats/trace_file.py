"""The trace file: the replies of the target, token by token, once and for all drafts.

An append-only file: ``COOKTRAC``, then one block of header and one block per reply. A block is
u32 JSON bytes, u64 payload bytes, JSON, payload, u32 CRC-32 of JSON and payload; numbers are
little-endian. The header's JSON says under what conditions it was recorded, a reply's what it
answers. Each reply is flushed to the disk before the next is recorded, so a crash costs one
reply: a block cut short at the end is ignored by the reader and cut off by the writer.

The header's payload is the target's vocabulary, so that a draft can be refused with the differing
tokens although the target is not there: every token's text, packed as zlib over u32 length and
bytes of each token in order; 150,000 tokens take about 0.7 MB.

Per token (docs/internals/scoring.md#the-trace): id, log-probability raw and under the sampling
chain, log-sum-exp, top-1/top-2 margin, and the K largest: ids, and logits relative to the largest
in half precision; with K = 64 that is 408 bytes. Log-probabilities are natural logarithms.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO, Any, Final, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from cook.closing import Closing
from cook.errors import InputError
from cook.formats.arrays import Floats32, Ids
from cook.formats.cursor import read_range
from cook.formats.sampling import Sampling
from cook.formats.vocabulary import Vocabulary

# Layout and metrics in one number: raise it when a field or a number changes its meaning;
# readers refuse every other. 1: first. 2: the vocabulary inside, the sampling chain as it was
# really applied, unknown facts of a remote target as null.
TRACE_VERSION: Final = 2


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class TokenizerFacts(_Frozen):
    """The target's tokenizer without its ``size`` token texts, which follow the header."""

    kind: str = Field(max_length=100)
    bos: int | None
    eos: int | None
    add_bos: bool
    add_eos: bool
    size: int = Field(gt=0, le=1 << 24)

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> TokenizerFacts:
        """What a trace's header says of ``vocabulary``."""
        return cls.model_validate(vocabulary, from_attributes=True)


class TraceHeader(_Frozen):
    """Everything that makes two recordings comparable, and where this one came from.

    ``source``: ``worker``, ``server`` (token ids over HTTP) or ``text`` (tokenized text, which is
    read and no longer recorded). ``top``: K of the stored top-K. ``batch_width``:
    tokens of the batch that computed each token; more than 1 rounds as verifying a draft does
    (docs/internals/scoring.md#the-trace). ``extra_tokens``: recorded beyond an
    end-of-generation token. ``prompts_sha256`` covers the prompt set.

    ``template_sha256``: of the chat template that rendered the prompts; of the empty text where
    they were not rendered.

    None is "not known", which only HTTP recordings have: the target's file is not at hand
    (``target_sha256``, ``engine_digest``, ``device``, the KV types), or no GGUF with its tokenizer
    was given (``tokenizer``, ``tokenizer_sha256``).
    """

    version: Literal[2] = TRACE_VERSION
    target_name: str = Field(max_length=1000)
    target_sha256: str | None
    tokenizer_sha256: str | None
    tokenizer: TokenizerFacts | None = None
    template_sha256: str
    prompts_sha256: str
    vocabulary_size: int = Field(gt=0)
    eog: tuple[int, ...]
    flavour: str
    engine_build: str
    engine_digest: str | None
    device: str | None
    cache_type_k: str | None
    cache_type_v: str | None
    context: int = Field(gt=0)
    batch_width: int = Field(default=1, gt=0)
    n_predict: int = Field(gt=0)
    extra_tokens: int = Field(default=0, ge=0)
    top: int = Field(ge=0, le=1 << 16)
    sampler: Sampling
    source: Literal["worker", "server", "text"] = "worker"

    @field_validator("sampler")
    @classmethod
    def _as_applied(cls, sampler: Sampling) -> Sampling:
        if not sampler.is_whole:
            raise ValueError("leaves part of the chain to the engine")
        return sampler

    @property
    def chat(self) -> bool:
        """Whether a chat template rendered the prompts."""
        return self.template_sha256 != hashlib.sha256(b"").hexdigest()

    def conditions(self) -> dict[str, Any]:
        """The fields that must agree before a recording may go on: a file's bytes, whatever it is
        called, and of a server, whose bytes none knows, its model's name."""
        return self.model_dump(exclude={"target_name"} if self.target_sha256 is not None else None)


class ReplyHead(_Frozen):
    """One reply: ``emitted`` of its ``tokens`` belong to the reply; ``weight`` and ``half`` are
    its prompt's (``half`` says whether it tunes a pick or reports on it)."""

    id: str = Field(min_length=1, max_length=1000)
    category: str = Field(max_length=1000)
    weight: float = Field(default=1.0, gt=0.0)
    half: Literal["pick", "report"] | None = None
    rendered_sha256: str = ""
    seed: int = Field(default=0, ge=0)
    stop: Literal["eog", "limit", "context", "word"]
    prompt_tokens: int = Field(gt=0, le=1 << 26)
    tokens: int = Field(gt=0, le=1 << 26)
    emitted: int = Field(gt=0, le=1 << 26)


ROUNDING = 1e-3
"""A log-probability may be above 0 by so much: engines compute in single precision."""


@dataclass(frozen=True, eq=False)
class Reply:
    """One recorded reply. Arrays have one entry per recorded token.

    The first ``head.emitted`` tokens are the reply, an end-of-generation token included; the
    others continue past it (ik counts drafts there). ``known``: False where a recording over
    HTTP had no probabilities (its numbers are then zero). ``top_ids``/``top_logp`` [n, K]: raw
    log-probabilities of the largest logits, falling; id -1 where absent.
    """

    head: ReplyHead
    prompt: Ids
    tokens: Ids
    known: npt.NDArray[np.bool_]
    logp: Floats32
    chain_logp: Floats32
    logsumexp: Floats32
    margin: Floats32
    top_ids: Ids
    top_logp: Floats32

    def __post_init__(self) -> None:
        head, n = self.head, len(self.tokens)
        k = self.top_ids.shape[1] if self.top_ids.ndim == 2 else -1
        columns = (self.known, self.logp, self.chain_logp, self.logsumexp, self.margin)
        fit = all(len(c) == n for c in columns) and len(self.prompt) == head.prompt_tokens
        alike = self.top_ids.shape == self.top_logp.shape == (n, k)
        if not (fit and alike and 0 < head.emitted <= n == head.tokens):
            raise InputError(f"reply {head.id!r}: its arrays differ in length")
        for values in (self.logp, self.chain_logp, self.top_logp):
            if not (values <= ROUNDING).all():  # NaN as well
                raise InputError(f"reply {head.id!r}: a probability is not between 0 and 1")


def _layout(head: ReplyHead, top: int) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Type and shape of each array, in the order of the file."""
    tokens = head.tokens
    numbers = ("logp", "chain_logp", "logsumexp", "margin", "top1_logp")
    return {
        "prompt": ("<i4", (head.prompt_tokens,)),
        "tokens": ("<i4", (tokens,)),
        **dict.fromkeys(numbers, ("<f4", (tokens,))),
        "top_ids": ("<i4", (tokens, top)),
        "top_relative": ("<f2", (tokens, top)),
        "known": ("u1", (tokens,)),
    }


def _packed(reply: Reply, top: int) -> bytes:
    """The arrays of ``reply``, one after another; InputError unless it has ``top`` candidates."""
    if reply.top_ids.shape[1] != top:
        raise InputError(f"reply {reply.head.id!r} has top-{reply.top_ids.shape[1]}, not {top}")
    best = reply.top_logp[:, :1] if top else np.zeros((len(reply.tokens), 1), np.float32)
    relative = np.maximum(reply.top_logp - best, -60000.0)
    values = vars(reply) | {"top1_logp": best[:, 0], "top_relative": relative}
    layout = _layout(reply.head, top)
    return b"".join(np.ascontiguousarray(values[n], t).tobytes() for n, (t, _) in layout.items())


def _unpacked(head: ReplyHead, top: int, payload: bytes) -> Reply:
    """The reply in ``payload``; InputError for bytes of another length."""
    arrays: dict[str, npt.NDArray[Any]] = {}
    end = 0
    for name, (kind, shape) in _layout(head, top).items():
        start, end = end, end + np.dtype(kind).itemsize * prod(shape)
        if end <= len(payload):
            arrays[name] = np.frombuffer(payload[start:end], kind).reshape(shape)
    if end != len(payload):
        raise InputError(f"reply {head.id!r} has {len(payload)} bytes, not {end}")
    best = arrays.pop("top1_logp")[:, None]
    arrays["top_logp"] = arrays.pop("top_relative").astype(np.float32) + best
    arrays["known"] = arrays["known"] != 0
    return Reply(head, **arrays)


_MAX_BYTES = 256 << 20
_LENGTH = struct.Struct("<I")


def pack_vocabulary(vocabulary: Vocabulary) -> bytes:
    """The token texts as the payload of a trace's header."""
    return zlib.compress(b"".join(_LENGTH.pack(len(t)) + t for t in vocabulary.tokens), 9)


def unpack_vocabulary(facts: TokenizerFacts, payload: bytes, path: Path) -> Vocabulary:
    """The vocabulary of the header of ``path``; InputError when the payload is not one."""
    inflate, data = zlib.decompressobj(), b""
    with contextlib.suppress(zlib.error):
        data = inflate.decompress(payload, _MAX_BYTES)
    tokens: list[bytes] = []
    at = 0
    while at + _LENGTH.size <= len(data) and len(tokens) < facts.size:
        start = at + _LENGTH.size
        at = start + _LENGTH.unpack_from(data, at)[0]
        tokens.append(data[start:at])
    if not inflate.eof or len(tokens) != facts.size or at != len(data):
        raise _damaged(path, f"its vocabulary is damaged: it holds no {facts.size} tokens")
    return Vocabulary(**facts.model_dump(exclude={"size"}), tokens=tuple(tokens))


def _damaged(path: Path, reason: str) -> InputError:
    return InputError(f"{path}: {reason}", hint="record the trace again")


MAGIC = b"COOKTRAC"
_BLOCK = struct.Struct("<IQ")
_CRC = struct.Struct("<I")
_MAX_JSON, _MAX_PAYLOAD = 1 << 20, 1 << 30
_MAX_VOCABULARY = 64 << 20


def _block(text: bytes, payload: bytes) -> bytes:
    crc = zlib.crc32(payload, zlib.crc32(text))
    return _BLOCK.pack(len(text), len(payload)) + text + payload + _CRC.pack(crc)


@dataclass(frozen=True)
class _Block:
    """A whole block: its JSON, and where its payload lies."""

    text: bytes
    payload_at: int
    payload_bytes: int

    @property
    def end(self) -> int:
        return self.payload_at + self.payload_bytes + _CRC.size


class HeadlessTrace(InputError):
    """A trace that ends within its header, as a crash leaves one; an empty file is one, too."""


class TraceFile:
    """A trace, read: its header, and its replies one at a time (memory does not grow with it).

    InputError, with file and offset, for anything that is not a whole trace of this version.
    ``cut_short``: the last block was incomplete (a crash while recording) and is ignored.
    ``categories``: those of prompts (by id) that have another than was recorded.
    """

    def __init__(self, path: Path, categories: Mapping[str, str] | None = None) -> None:
        self.path, self._categories = path, categories or {}
        try:
            with path.open("rb") as file:
                self._scan(file)
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror}") from None

    def _scan(self, file: IO[bytes]) -> None:
        if (magic := file.read(len(MAGIC))) != MAGIC:
            error = HeadlessTrace if MAGIC.startswith(magic) else InputError
            raise error(f"{self.path}: not a trace of cook")
        blocks = self._blocks(file)
        if (first := next(blocks, None)) is None:
            raise HeadlessTrace(f"{self.path}: no whole header", hint="record the trace again")
        version = None
        with contextlib.suppress(ValueError, AttributeError, RecursionError):
            version = json.loads(first.text).get("version")
        if version != TRACE_VERSION:
            raise InputError(
                f"{self.path}: trace version {version}, this cook reads version {TRACE_VERSION}",
                hint="record the trace again: cook trace",
            )
        try:
            self.header = TraceHeader.model_validate_json(first.text)
        except ValidationError as error:
            raise InputError(f"{self.path}: bad trace header: {_why(error)}") from None
        if first.payload_bytes > _MAX_VOCABULARY:
            raise InputError(f"{self.path}: impossible size of its vocabulary")
        self._vocabulary = self._payload(first, "its header")
        self._replies: dict[str, tuple[ReplyHead, _Block]] = {}
        self.whole_bytes = first.end
        for block in blocks:
            try:
                head = ReplyHead.model_validate_json(block.text)
            except ValidationError as error:
                raise InputError(f"{self.path}: offset {self.whole_bytes}: {_why(error)}") from None
            if head.id in self._replies:
                raise InputError(f"{self.path}: two replies have the same id")
            if (category := self._categories.get(head.id, head.category)) != head.category:
                head = head.model_copy(update={"category": category})
            self._replies[head.id] = head, block
            self.whole_bytes = block.end
        self.cut_short = self.whole_bytes != os.fstat(file.fileno()).st_size

    def _blocks(self, file: IO[bytes]) -> Iterator[_Block]:
        """The blocks after the magic, as far as they are whole."""
        size, start = os.fstat(file.fileno()).st_size, len(MAGIC)
        while start + _BLOCK.size <= size:
            file.seek(start)
            text_bytes, payload_bytes = _BLOCK.unpack(file.read(_BLOCK.size))
            if text_bytes > _MAX_JSON or payload_bytes > _MAX_PAYLOAD:
                raise InputError(f"{self.path}: offset {start}: impossible block size")
            block = _Block(file.read(text_bytes), file.tell(), payload_bytes)
            if block.end > size:
                return
            yield block
            start = block.end

    def _payload(self, block: _Block, what: str) -> bytes:
        raw = read_range(self.path, block.payload_at, block.payload_bytes + _CRC.size)
        payload, crc = raw[: -_CRC.size], raw[-_CRC.size :]
        if _CRC.pack(zlib.crc32(payload, zlib.crc32(block.text))) != crc:
            raise _damaged(self.path, f"offset {block.payload_at}: {what} is damaged")
        return payload

    @property
    def vocabulary(self) -> Vocabulary | None:
        """The target's vocabulary; None where a recording over HTTP could not learn it."""
        facts = self.header.tokenizer
        return None if facts is None else unpack_vocabulary(facts, self._vocabulary, self.path)

    @property
    def heads(self) -> tuple[ReplyHead, ...]:
        """The head of each reply, in order, without its arrays."""
        return tuple(head for head, _ in self._replies.values())

    @property
    def ids(self) -> tuple[str, ...]:
        """The prompts that are answered, in order."""
        return tuple(self._replies)

    def __len__(self) -> int:
        return len(self._replies)

    def __iter__(self) -> Iterator[Reply]:
        return (self.reply(name) for name in self._replies)

    def reply(self, name: str) -> Reply:
        """The reply to one prompt; InputError if there is none or its bytes are damaged."""
        if name not in self._replies:
            raise InputError(f"{self.path}: no reply {name!r}")
        head, block = self._replies[name]
        payload = self._payload(block, f"reply {name!r}")
        try:
            return _unpacked(head, self.header.top, payload)
        except InputError as error:
            raise InputError(f"{self.path}: {error.message}") from None


class TraceWriter(Closing):
    """Records replies into a new trace, or goes on with one that was cut short.

    A trace of other conditions is refused with the differing fields. One writer at a time.
    """

    def __init__(
        self, path: Path, header: TraceHeader, vocabulary: Vocabulary | None = None
    ) -> None:
        self.path, self.header = path, header
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab+")
        try:
            self.done = self._resume(pack_vocabulary(vocabulary) if vocabulary else b"")
        except BaseException:
            self._file.close()
            raise

    def _resume(self, vocabulary: bytes) -> set[str]:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError(f"{self.path}: another cook is recording this trace") from None
        try:
            trace = TraceFile(self.path)
        except HeadlessTrace:
            os.ftruncate(self._file.fileno(), 0)
            self._write(MAGIC + _block(self.header.model_dump_json().encode(), vocabulary))
            return set()
        old, new = trace.header.conditions(), self.header.conditions()
        differing = [name for name in new if old.get(name) != new[name]]
        if differing:
            lines = [
                f"{n}: {str(old.get(n))[:60]} there, {str(new[n])[:60]} now" for n in differing
            ]
            raise InputError(
                f"{self.path}: was recorded under other conditions: " + "; ".join(lines),
                hint="give another file name, or remove the old trace",
            )
        os.ftruncate(self._file.fileno(), trace.whole_bytes)
        self._file.seek(0, os.SEEK_END)
        return set(trace.ids)

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        self._file.flush()
        os.fsync(self._file.fileno())

    def append(self, reply: Reply) -> None:
        """Add one reply; it is on the disk when this returns."""
        if reply.head.id in self.done:
            raise InputError(f"{self.path}: reply {reply.head.id!r} is recorded already")
        payload = _packed(reply, self.header.top)
        self._write(_block(reply.head.model_dump_json().encode(), payload))
        self.done.add(reply.head.id)

    def close(self) -> None:
        self._file.close()


def _why(error: ValidationError) -> str:
    first = error.errors()[0]
    return f"{'.'.join(str(p) for p in first['loc'])}: {first['msg']}"
