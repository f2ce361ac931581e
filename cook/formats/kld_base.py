"""The base-logits file of ``llama-perplexity --kl-divergence-base``; both engines' are the same.

``"_logits_"``, i32 n_ctx, n_vocab, n_chunk, i32 tokens[n_chunk * n_ctx], then a chunk at a time
n_ctx - 1 - n_ctx / 2 rows of 2 * ((n_vocab + 1) / 2) + 4 uint16 (tools/perplexity/perplexity.cpp:
a scale and a minimum of 4 bytes each, then log-probabilities in 16 bits).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cook.formats.cursor import Cursor

MAGIC = b"_logits_"
HEADER_BYTES = 20
_LIMIT = 1 << 24


@dataclass(frozen=True)
class KldBase:
    """Header of a base file: ``context`` tokens in each of ``chunks``, over ``vocabulary``.

    ``complete``: the file has the ``expected_bytes`` of that many chunks; the engine does not
    check.
    """

    kind: Literal["base logits"]
    path: Path
    context: int
    vocabulary: int
    chunks: int
    file_bytes: int
    expected_bytes: int
    complete: bool


def base_bytes(n_ctx: int, n_vocab: int, n_chunk: int) -> int:
    """Exact size in bytes of a base file."""
    row = 2 * ((n_vocab + 1) // 2) + 4
    return HEADER_BYTES + 4 * n_chunk * n_ctx + 2 * n_chunk * (n_ctx - 1 - n_ctx // 2) * row


def read_base_header(path: Path | str) -> KldBase:
    """The header of a base file; InputError if it is none. An incomplete file is no error here."""
    path = Path(path)
    with Cursor(path, HEADER_BYTES) as cursor:
        if cursor.take(len(MAGIC), "magic") != MAGIC:
            cursor.fail("magic", "is not '_logits_': not a base-logits file", at=0)
        sizes = []
        for field, least in (("n_ctx", 2), ("n_vocab", 1), ("n_chunk", 1)):
            at = cursor.position
            sizes.append(cursor.i32(field))
            if not least <= sizes[-1] <= _LIMIT:
                cursor.fail(field, f"{sizes[-1]} is not in {least} to {_LIMIT}", at=at)
        context, vocabulary, chunks = sizes
        found, expected = cursor.file_bytes, base_bytes(context, vocabulary, chunks)
        return KldBase(
            kind="base logits",
            path=path,
            context=context,
            vocabulary=vocabulary,
            chunks=chunks,
            file_bytes=found,
            expected_bytes=expected,
            complete=found == expected,
        )
