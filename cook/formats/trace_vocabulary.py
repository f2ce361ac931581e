"""The vocabulary inside a trace: every token's text, so that a draft is compared token by token.

Packed as zlib over u32 length and bytes of each token in order; 150,000 tokens take about 0.7 MB.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

from cook.errors import InputError
from cook.formats.trace_schema import TokenizerFacts
from cook.vocabulary import Vocabulary

_MAX_BYTES = 256 << 20
_LENGTH = struct.Struct("<I")


def tokenizer_facts(vocabulary: Vocabulary) -> TokenizerFacts:
    """What a trace's header says of ``vocabulary``."""
    return TokenizerFacts(
        kind=vocabulary.kind,
        bos=vocabulary.bos,
        eos=vocabulary.eos,
        add_bos=vocabulary.add_bos,
        add_eos=vocabulary.add_eos,
        size=vocabulary.size,
    )


def pack_vocabulary(vocabulary: Vocabulary) -> bytes:
    """The token texts as the payload of a trace's header."""
    return zlib.compress(b"".join(_LENGTH.pack(len(t)) + t for t in vocabulary.tokens), 9)


def unpack_vocabulary(facts: TokenizerFacts, payload: bytes, path: Path) -> Vocabulary:
    """The vocabulary of the header of ``path``; InputError when the payload is not one."""
    inflate = zlib.decompressobj()
    try:
        data = inflate.decompress(payload, _MAX_BYTES)
    except zlib.error as error:
        raise _damaged(path, str(error)) from None
    if inflate.unconsumed_tail or not inflate.eof:
        raise _damaged(path, "it does not end")
    tokens: list[bytes] = []
    at = 0
    while at + _LENGTH.size <= len(data) and len(tokens) < facts.size:
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        tokens.append(data[at : at + length])
        at += length
    if len(tokens) != facts.size or at != len(data):
        raise _damaged(path, f"it holds no {facts.size} tokens")
    return Vocabulary(
        kind=facts.kind,
        bos=facts.bos,
        eos=facts.eos,
        add_bos=facts.add_bos,
        add_eos=facts.add_eos,
        tokens=tuple(tokens),
    )


def _damaged(path: Path, why: str) -> InputError:
    return InputError(f"{path}: its vocabulary is damaged: {why}", hint="record the trace anew")
