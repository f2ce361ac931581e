"""Fetch files into the client's own cache, from where they stopped, each proven by its hash; or a
model's header alone.

huggingface-hub deletes what an interrupted download had (its temporary names are unique), so a
shard of 50 GB would start again. Here the partial file keeps its name; the bytes still come by the
client's own ``http_get``. What is complete is hashed, and only then gets its place in the cache
(blobs, snapshots, refs: the layout that the client documents), where every other program finds it
as well.

A plan needs a few MB of a terabyte: the first bytes are fetched by range and stand in a sparse file
of the true size. Everything that reads headers reads it, engines included, and it takes no more
disk than the header.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from cook.errors import InputError, PrerequisiteError, StepError
from cook.files import atomic_write, digest, fsync, remember
from cook.formats.cursor import MalformedFile
from cook.formats.gguf import MAX_HEADER_BYTES, read_gguf
from cook.graph.locks import file_lock
from cook.hub.client import PATIENT, Retry, api, hub_error
from cook.hub.listing import HubFile, Listing, repo_type, storage_folder
from cook.paths import cook_home
from cook.units import size

MISMATCHES = 4
"""So often a whole file may arrive wrong before cook gives up."""

SPARE_BYTES = 256 << 20
"""Left free on the disk of the cache."""


def place(listing: Listing, file: HubFile) -> Path:
    """Where ``file`` is, or will be, in the client's cache."""
    return storage_folder(listing.ref) / "snapshots" / listing.commit / file.path


def missing(listing: Listing, files: Sequence[HubFile]) -> tuple[HubFile, ...]:
    """Those of ``files`` whose bytes are not on this disk, from this commit or another."""
    return tuple(
        f for f in files if not _whole(place(listing, f), f) and not _whole(_blob(listing, f), f)
    )


def left_bytes(listing: Listing, files: Sequence[HubFile]) -> int:
    """Bytes that :func:`fetch` would still transfer: partial files count as far as they got."""
    return sum(
        f.size_bytes - min(_size(_partial(listing, f)), f.size_bytes)
        for f in missing(listing, files)
    )


def fetch(
    listing: Listing,
    files: Sequence[HubFile],
    *,
    retry: Retry = PATIENT,
    gained: Callable[[int], None] = lambda count: None,
) -> tuple[Path, ...]:
    """Have all ``files`` on this disk, whole and verified; their paths in order.

    ``gained`` gets how many bytes there are more than at first, whenever that changed.
    Errors: PrerequisiteError when the disk is too small (before anything is fetched) or the
    Hub out of reach; StepError when it fails again and again, or sends other bytes.
    """
    wanted = missing(listing, files)
    try:
        if wanted:
            require_room(listing, wanted)
            left = left_bytes(listing, wanted)
            for file in wanted:
                _fetch(listing, file, retry, lambda: gained(left - left_bytes(listing, wanted)))
        if not listing.cached:
            for file in files:
                _link(listing, file)
            # What the branch or tag meant, for when the Hub is out of reach.
            revision = listing.ref.revision or "main"
            note = storage_folder(listing.ref) / "refs" / revision
            if revision != listing.commit:
                with contextlib.suppress(OSError):
                    note.parent.mkdir(parents=True, exist_ok=True)
                    with atomic_write(note) as whole:
                        whole.write(listing.commit.encode("ascii"))
    except OSError as error:  # a cache that may not be written, say
        raise hub_error(str(listing.ref), error) from None
    paths = tuple(place(listing, f) for f in files)
    for path, file in zip(paths, files, strict=True):
        if file.sha256 is not None and digest(path) != f"sha256:{file.sha256}":
            raise StepError(
                f"{path}: holds other bytes than {listing.ref} at {listing.commit[:12]}",
                hint=f"delete it, and the same command fetches it again: rm '{path.resolve()}'",
            )
    return paths


def require_room(listing: Listing, files: Sequence[HubFile]) -> None:
    """PrerequisiteError unless the cache's disk holds what is left of ``files``."""
    free, needed = free_cache_bytes(), left_bytes(listing, files)
    if needed + SPARE_BYTES > free:
        raise PrerequisiteError(
            f"{listing.ref}: {size(needed)} to download, and the disk of "
            f"{storage_folder(listing.ref).parent} has {size(free)} free",
            hint="free some space (`hf cache ls` lists what is there), or set HF_HOME to a "
            "larger disk",
        )


def free_cache_bytes() -> int:
    """Free bytes on the disk of the client's cache."""
    from huggingface_hub import constants

    cache = Path(constants.HF_HUB_CACHE).expanduser()
    existing = next(p for p in (cache, *cache.parents) if p.exists())
    return shutil.disk_usage(existing).free


def _fetch(listing: Listing, file: HubFile, retry: Retry, arrived: Callable[[], None]) -> None:
    transfer = _Transfer(listing, file, arrived)
    if file.etag is None:
        raise StepError(f"{transfer.what}: the Hub gives no checksum for it")
    partial = transfer.partial
    partial.parent.mkdir(parents=True, exist_ok=True)
    lock = hashlib.sha256(str(partial).encode()).hexdigest()[:32]
    with file_lock(cook_home() / "locks" / f"hub-{lock}.lock"):
        if not missing(listing, [file]):  # another cook was faster
            return
        furthest = _size(partial)

        def got_further() -> bool:
            nonlocal furthest
            arrived()
            before, furthest = furthest, _size(partial)
            return furthest > before

        retry.run(transfer.what, transfer.attempt, gained=got_further)
        fsync(partial)
        partial.replace(_blob(listing, file))
        if file.sha256 is not None:
            remember(_blob(listing, file), f"sha256:{file.sha256}")
        arrived()


class _Watched(io.FileIO):
    """A file that says when it grew."""

    grew: Callable[[], None] = staticmethod(lambda: None)

    def write(self, data: Any) -> int:
        count = super().write(data)
        self.grew()
        return count


@dataclass
class _Transfer:
    """One file on its way to ``partial``; ``arrived`` is called as that grows."""

    listing: Listing
    file: HubFile
    arrived: Callable[[], None]
    mismatches: int = 0

    @property
    def what(self) -> str:
        return f"hf://{self.listing.ref.repo}/{self.file.path}"

    @property
    def partial(self) -> Path:
        return _partial(self.listing, self.file)

    def attempt(self) -> None:
        """Have the rest of the file; OSError without a number when its bytes are wrong."""
        from huggingface_hub import constants
        from huggingface_hub.file_download import http_get

        if _size(self.partial) > self.file.size_bytes:
            self.partial.unlink()
        if not _whole(self.partial, self.file):
            # The Hub serves nothing above 50 GB over plain HTTP.
            if self.file.size_bytes > constants.MAX_HTTP_DOWNLOAD_SIZE:
                self._by_xet()
            else:
                # The address of the commit: that of the storage behind it is signed, and expires.
                url, headers = address(self.listing, self.file)
                mode = "r+b" if self.partial.exists() else "w+b"
                with _Watched(self.partial, mode) as stream:
                    have, size = stream.seek(0, io.SEEK_END), self.file.size_bytes
                    stream.grew = self.arrived
                    http_get(url, stream, resume_size=have, headers=headers, expected_size=size)
        if _whole(self.partial, self.file):
            wanted, found = self.file.sha256, hashlib.sha256()
            if wanted is None:
                wanted, found = self.file.git_oid, hashlib.sha1(usedforsecurity=False)
                found.update(b"blob %d\0" % self.file.size_bytes)
            with self.partial.open("rb") as stream:
                if hashlib.file_digest(stream, lambda: found).hexdigest() == wanted:
                    return
        self.partial.unlink()
        self.mismatches += 1
        if self.mismatches >= MISMATCHES:
            raise StepError(
                f"{self.what}: {MISMATCHES} times in a row other bytes arrived than the Hub "
                "promised",
                hint="a proxy or a disk that damages data? `cook doctor` checks this machine",
            )
        raise OSError("checksum mismatch")

    def _by_xet(self) -> None:
        # No resuming inside the file; but it is the one way to it.
        from huggingface_hub import hf_hub_download

        folder = self.partial.with_suffix(".folder")
        try:
            got = hf_hub_download(
                self.listing.ref.repo,
                self.file.path,
                repo_type=repo_type(self.listing.ref),
                revision=self.listing.commit,
                local_dir=folder,
            )
            Path(got).replace(self.partial)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def address(listing: Listing, file: HubFile) -> tuple[str, dict[str, str]]:
    """URL and request headers (the login among them) of ``file`` at its commit."""
    from huggingface_hub import constants, hf_hub_url
    from huggingface_hub.utils._headers import build_hf_headers

    api()
    url = hf_hub_url(
        listing.ref.repo,
        file.path,
        repo_type=repo_type(listing.ref),
        revision=listing.commit,
        endpoint=constants.ENDPOINT,
    )
    headers: dict[str, str] = build_hf_headers(library_name="cook")
    # Compressed bytes could not be counted, nor continued.
    return url, {**headers, "Accept-Encoding": "identity"}


def _link(listing: Listing, file: HubFile) -> None:
    """Have the file's name at this commit point at its bytes."""
    pointer, blob = place(listing, file), _blob(listing, file)
    if _whole(pointer, file):
        return
    pointer.parent.mkdir(parents=True, exist_ok=True)
    pointer.unlink(missing_ok=True)
    try:
        pointer.symlink_to(os.path.relpath(blob, pointer.parent))
    except OSError:  # a file system without links: the file itself, as the client does it
        blob.replace(pointer)


def _blob(listing: Listing, file: HubFile) -> Path:
    return storage_folder(listing.ref) / "blobs" / f"{file.etag}"


def _partial(listing: Listing, file: HubFile) -> Path:
    return storage_folder(listing.ref) / "blobs" / f"{file.etag}.cook.incomplete"


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _whole(path: Path, file: HubFile) -> bool:
    return path.is_file() and _size(path) == file.size_bytes


FIRST_BYTES = 8 << 20
"""Of shard 1, which has the vocabulary."""
OTHER_BYTES = 1 << 18
_GROWTH = 4


def stand_in(listing: Listing, files: Sequence[HubFile], retry: Retry = PATIENT) -> Path:
    """A GGUF (shard 1) with the true header and size of ``files``, all of its shards.

    What is on this disk stands in for itself. Errors as for a download; InputError when the
    header is not one of a GGUF.
    """
    folder = cook_home() / "cache" / "hub-headers" / listing.ref.repo / listing.commit
    paths = [folder / file.path for file in files]
    absent = missing(listing, files)
    for path, file in zip(paths, files, strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        if file not in absent:
            path.unlink(missing_ok=True)
            there = place(listing, file)
            path.symlink_to(there if _whole(there, file) else _blob(listing, file))
    counts = [
        min(FIRST_BYTES if i == 0 else OTHER_BYTES, f.size_bytes) for i, f in enumerate(files)
    ]
    sizes = [path.stat().st_size if path.is_file() else None for path in paths]
    if sizes != [file.size_bytes for file in files]:
        _read(listing, files, paths, counts, retry)
    return paths[0]


def _read(
    listing: Listing,
    files: Sequence[HubFile],
    paths: Sequence[Path],
    counts: list[int],
    retry: Retry,
) -> None:
    """Fetch as much of each file as its header takes, then give each its true size."""
    while True:
        for path, file, count in zip(paths, files, counts, strict=True):
            if not path.is_symlink() and (not path.exists() or path.stat().st_size < count):
                what = f"hf://{listing.ref.repo}/{file.path}"
                data = retry.run(what, partial(_first_bytes, listing, file, count))
                with atomic_write(path) as whole:
                    whole.write(data)
        try:
            read_gguf(paths[0], complete=False)
            break
        except MalformedFile as error:
            short = paths.index(error.path)
            most = min(MAX_HEADER_BYTES, files[short].size_bytes)
            if counts[short] >= most:
                raise InputError(f"{listing.ref}: {files[short].path}: {error.reason}") from None
            counts[short] = min(counts[short] * _GROWTH, most)
    for path, file in zip(paths, files, strict=True):
        if not path.is_symlink():
            with path.open("r+b") as stream:
                stream.truncate(file.size_bytes)


def _first_bytes(listing: Listing, file: HubFile, count: int) -> bytes:
    from huggingface_hub import get_session
    from huggingface_hub.utils._http import hf_raise_for_status

    url, headers = address(listing, file)
    data = bytearray()
    wanted = {**headers, "Range": f"bytes=0-{count - 1}"}
    with get_session().stream("GET", url, headers=wanted, timeout=30) as response:
        hf_raise_for_status(response)
        # A server that ignores the range sends everything: enough is enough.
        for block in response.iter_bytes(1 << 16):
            data += block
            if len(data) >= count:
                break
    if len(data) < count:
        raise OSError("cut short")
    return bytes(data[:count])
