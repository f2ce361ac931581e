"""What a disk that fails says of the file that was read."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace

import pytest

from cook.errors import InputError
from cook.formats.cursor import Cursor


def test_a_disk_that_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: int) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    path = tmp_path / "model.gguf"
    path.write_bytes(bytes(64))
    with Cursor(path, 64) as cursor:
        cursor.close()
        monkeypatch.setattr(cursor, "_file", SimpleNamespace(read=broken, close=lambda: None))
        with pytest.raises(InputError, match=r"model\.gguf: cannot be read: Input/output error"):
            cursor.take(4, "field")
