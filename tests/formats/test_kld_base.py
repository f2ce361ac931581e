"""The base-logits file of llama-perplexity."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from cook.errors import InputError
from cook.formats.kld_base import base_bytes, read_base_header


def header(n_ctx: int, n_vocab: int, n_chunk: int) -> bytes:
    return b"_logits_" + struct.pack("<3i", n_ctx, n_vocab, n_chunk)


def test_sizes() -> None:
    # n_ctx - 1 - n_ctx / 2 = 255 rows of 2 * ((n_vocab + 1) / 2) + 4 numbers of 2 bytes.
    assert base_bytes(512, 1000, 1) == 20 + 4 * 512 + 255 * 1004 * 2
    assert base_bytes(512, 999, 1) == base_bytes(512, 1000, 1)
    assert base_bytes(513, 1000, 2) == 20 + 2 * 4 * 513 + 2 * 256 * 1004 * 2
    assert 76 < base_bytes(512, 150_000, 1) / 1e6 < 78


def test_header_of_complete_and_cut_files(tmp_path: Path) -> None:
    path = tmp_path / "base.kld"
    path.write_bytes(header(512, 1000, 3))
    found = read_base_header(path)
    assert (found.context, found.vocabulary, found.chunks) == (512, 1000, 3)
    assert not found.complete
    os.truncate(path, found.expected_bytes)
    assert read_base_header(path).complete


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"_logitz_" + bytes(12), "not a base-logits file"),
        (header(512, 1, 1)[:15], "n_vocab at byte 12: needs 4 bytes"),
        (header(1, 1, 1), "n_ctx at byte 8: 1 is not in 2"),
        (header(512, 0, 1), "n_vocab at byte 12: 0 is not in 1"),
        (header(512, 9, -1), "n_chunk at byte 16: -1 is not in 1"),
        (header(2**31 - 1, 9, 1), "n_ctx at byte 8: 2147483647 is not in 2"),
    ],
)
def test_broken_headers(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "base.kld"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_base_header(path)
