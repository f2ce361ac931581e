"""What a disk that fails says of the file that was read."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from cook.errors import InputError
from cook.formats.cursor import Cursor


class Broken:
    def read(self, _: int) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    "walk", [lambda cursor: cursor.take(4, "field"), lambda cursor: cursor.strings(2, "field")]
)
def test_a_disk_that_cannot_be_read_is_named(
    walk: Callable[[Cursor], bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(bytes(64))
    with Cursor(path, 64) as cursor:
        cursor._file.close()
        monkeypatch.setattr(cursor, "_file", Broken())
        with pytest.raises(InputError, match=r"model\.gguf: cannot be read: Input/output error"):
            walk(cursor)
