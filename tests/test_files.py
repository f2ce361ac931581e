"""Hashes that are true of the file they are remembered for, and files that are whole or absent."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from cook import files
from cook.errors import InputError
from cook.files import FileRange


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COOK_HOME", str(tmp_path / "home"))


def settled(path: Path, content: bytes) -> Path:
    """``path`` with ``content``, and old enough to be remembered."""
    path.write_bytes(content)
    while not files.identity(path).settled(time.time()):
        time.sleep(0.05)
    return path


def sha256(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


@pytest.fixture
def known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that was hashed and is remembered, as others soon are."""
    monkeypatch.setattr(files, "SETTLED_S", 0.1)
    file = settled(tmp_path / "a", b"model")
    assert files.digest(file) == sha256(b"model")
    return file


@pytest.fixture
def memo(known: Path) -> Path:
    """Where that file's digest is noted."""
    (found,) = memos()
    return found


def memos() -> list[Path]:
    return [*(Path(os.environ["COOK_HOME"]) / "cache" / "digests").iterdir()]


def test_second_look_reads_nothing(known: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "file_sha256", refuse)
    assert files.digest(known) == sha256(b"model")
    assert files.remembered_digest(known) == sha256(b"model")


def refuse(path: Path) -> str:
    raise AssertionError(f"{path} was read")


def test_change_in_place_with_size_and_time_kept_is_seen(known: Path) -> None:
    """What rsync --inplace -t and a restored backup do."""
    stat = known.stat()
    with known.open("r+b") as stream:
        stream.write(b"MODEL")
    os.utime(known, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    after = known.stat()
    assert (after.st_ino, after.st_size) == (stat.st_ino, stat.st_size)
    assert after.st_mtime_ns == stat.st_mtime_ns
    assert files.digest(known) == sha256(b"MODEL")


def test_file_that_is_being_written_is_refused(tmp_path: Path) -> None:
    """A download that runs on while the file is hashed: no digest of it is true."""
    file = tmp_path / "download.gguf"
    file.write_bytes(bytes(64 << 20))
    stop = threading.Event()

    def write() -> None:
        with file.open("r+b") as stream:
            while not stop.is_set():
                stream.seek(0)
                stream.write(os.urandom(8))
                stream.flush()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        with pytest.raises(InputError, match="changed while it was hashed"):
            files.digest(file)
    finally:
        stop.set()
        writer.join()
    assert files.remembered_digest(file) is None
    assert files.digest(file) == sha256(file.read_bytes())


def test_what_changed_a_moment_ago_is_not_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its next change might fall into the same tick of the file system's clock."""
    file = tmp_path / "a"
    file.write_bytes(b"model")
    assert files.digest(file) == sha256(b"model")
    assert files.remembered_digest(file) is None


def test_nothing_from_before_is_believed_after_forgetting(
    known: Path, memo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever an older cook wrote of when: the clock may have been set back since."""
    monkeypatch.setattr(files, "_own", None)
    noted = json.loads(memo.read_text())
    memo.write_text(json.dumps({**noted, "digest": sha256(b"rotten"), "noted_ns": 1 << 62}))
    assert files.digest(known) == sha256(b"rotten")
    files.distrust_older_digests()
    assert files.digest(known) == sha256(b"model")
    monkeypatch.setattr(files, "file_sha256", refuse)
    assert files.digest(known) == sha256(b"model")


@pytest.mark.parametrize("jump_s", [-86400.0, 86400.0])
def test_a_clock_that_jumps_makes_no_digest_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump_s: float
) -> None:
    """What is written later than it is now may change again at that time: it is not remembered."""
    monkeypatch.setattr(files, "SETTLED_S", 0.1)
    file = settled(tmp_path / "a", b"model")
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + jump_s)
    assert files.digest(file) == sha256(b"model")
    assert (files.remembered_digest(file) is None) == (jump_s < 0)
    file.write_bytes(b"other")
    assert files.digest(file) == sha256(b"other")


def test_damaged_memory_is_no_memory(known: Path, memo: Path) -> None:
    for damaged in (b"", b"[]", b'{"digest": 1}', b"\xff"):
        memo.write_bytes(damaged)
        assert files.digest(known) == sha256(b"model")
    memo.unlink()
    os.mkfifo(memo)  # which is not waited for
    assert files.digest(known) == sha256(b"model")


def test_all_memories_are_hashed_again_and_stale_ones_dropped(known: Path) -> None:
    wrong = settled(known.with_name("wrong"), b"right")
    gone = settled(known.with_name("gone"), b"gone")
    files.hash_files([wrong, gone])
    files.remember(wrong, sha256(b"wrong"))
    gone.unlink()
    assert list(files.verify_memory()) == [
        files.WrongMemory(wrong, remembered=sha256(b"wrong"), found=sha256(b"right"))
    ]
    assert files.remembered_digest(known) == sha256(b"model")
    assert files.remembered_digest(wrong) is None
    assert len(memos()) == 1


def test_many_files_are_hashed_side_by_side_in_their_order(tmp_path: Path) -> None:
    paths = [tmp_path / f"{index}.bin" for index in range(9)]
    for index, path in enumerate(paths):
        path.write_bytes(bytes([index]) * (9 - index) * 4096)
    found = files.hash_files(paths)
    assert [h.path for h in found] == paths
    assert [h.digest for h in found] == [files.digest(path) for path in paths]
    with pytest.raises(InputError, match=r"9\.bin"):
        files.hash_files([*paths, tmp_path / "9.bin"])


def test_absent_file_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        files.digest(tmp_path / "absent")


def test_home_that_may_not_be_written_only_costs_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    monkeypatch.setenv("COOK_HOME", str(blocked / "home"))
    monkeypatch.setattr(files, "SETTLED_S", -1.0)
    assert files.digest(blocked) == sha256(b"")


def test_written_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "a"
    target.write_bytes(b"before")
    with suppress(RuntimeError), files.atomic_write(target) as stream:
        stream.write(b"half")
        raise RuntimeError
    assert target.read_bytes() == b"before"
    with files.atomic_write(target) as stream:
        stream.write(b"after")
    assert target.read_bytes() == b"after"
    assert list(tmp_path.iterdir()) == [target]


def test_what_a_tool_wrote_is_published_or_gone(tmp_path: Path) -> None:
    target = tmp_path / "folder" / "a.gguf"
    with files.temporary_beside(target) as partial:
        assert partial.suffix == ".gguf"
        partial.write_bytes(b"half")
    assert list(target.parent.iterdir()) == []
    with files.temporary_beside(target) as partial:
        partial.write_bytes(b"whole")
        files.publish(partial, target)
    assert target.read_bytes() == b"whole"
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize("in_kernel", [True, False])
def test_a_range_is_appended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_kernel: bool
) -> None:
    if not in_kernel:

        def refused(*_: object) -> int:
            raise OSError(errno.EXDEV, "another file system")

        monkeypatch.setattr(os, "copy_file_range", refused)
    source = tmp_path / "source"
    source.write_bytes(bytes(range(256)))
    with (tmp_path / "out").open("wb") as out:
        out.write(b"head")
        FileRange(source, 10, 20).append_to(out)
        out.write(b"tail")
    assert (tmp_path / "out").read_bytes() == b"head" + bytes(range(10, 30)) + b"tail"


@pytest.mark.parametrize(
    ("path", "message"),
    [("short", "ends at byte 3, expected 9"), ("absent", "cannot be read: No such file")],
)
def test_a_range_that_is_not_there(tmp_path: Path, path: str, message: str) -> None:
    (tmp_path / "short").write_bytes(b"abc")
    with (tmp_path / "out").open("wb") as out, pytest.raises(InputError, match=message):
        FileRange(tmp_path / path, 1, 8).append_to(out)


def test_a_block_that_the_disk_does_not_give(tmp_path: Path) -> None:
    """Of a process's memory nothing can be read where nothing is mapped: the same error."""
    message = "cannot be read at byte 4096: Input/output error"
    with (tmp_path / "out").open("wb") as out, pytest.raises(InputError, match=message):
        FileRange(Path("/proc/self/mem"), 4096, 8).append_to(out)
