"""A model's header without the model, so that a plan needs a few MB of a terabyte.

The first bytes are fetched by range and stand in a sparse file of the true size: everything
that reads headers reads it, engines included, and it takes no more disk than the header.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from cook.errors import InputError
from cook.files import atomic_write
from cook.formats.cursor import MalformedFile
from cook.formats.gguf import MAX_HEADER_BYTES, read_gguf
from cook.hub.client import PATIENT, Retry
from cook.hub.download import address, missing, place
from cook.hub.listing import HubFile, Listing
from cook.paths import cook_home

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
            path.symlink_to(place(listing, file))
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
