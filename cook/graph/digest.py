"""Hashes of sources: a 1 TB model is read once, then remembered by (device, inode, size, mtime)."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

from cook.errors import InputError
from cook.formats.atomic import atomic_write
from cook.graph.step import Source
from cook.paths import cook_home

BLOCK = 8 << 20
SMALL_BYTES = 512 << 20
"""Files up to this size are hashed even for a plan: it takes about a second."""


def file_sha256(path: Path) -> str:
    """SHA-256 of the whole file, hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


def source(paths: Sequence[Path], *, plan_only: bool = False) -> Source:
    """The source made of ``paths`` in order (several: the shards of one split model).

    With ``plan_only`` a large file that was never hashed gets a provisional ``header:`` digest.
    """
    sizes = [_stat(path).st_size for path in paths]
    digests = [_digest(path, plan_only) for path in paths]
    provisional = [d for d in digests if d.startswith("header:")]
    if len(digests) == 1:
        digest = digests[0]
    else:
        joined = hashlib.sha256("\n".join(digests).encode()).hexdigest()
        digest = f"header:{joined}" if provisional else f"sha256:{joined}"
    # Links stay: what the Hub's client keeps is a link with the model's name to a blob without.
    return Source(path=paths[0].absolute(), digest=digest, size_bytes=sum(sizes))


def _digest(path: Path, plan_only: bool) -> str:
    stat = _stat(path)
    identity, memo = _memo(stat)
    with contextlib.suppress(OSError, ValueError, KeyError):
        known = json.loads(memo.read_text())
        if known["identity"] == identity:
            return str(known["digest"])
    if plan_only and stat.st_size > SMALL_BYTES:
        with path.open("rb") as stream:
            head = hashlib.sha256(stream.read(BLOCK)).hexdigest()
        return f"header:{head}-{stat.st_size}"
    digest = f"sha256:{file_sha256(path)}"
    remember(path, digest)
    return digest


def remember(path: Path, digest: str) -> None:
    """Note the digest of a file that was just hashed, ``sha256:`` and all."""
    identity, memo = _memo(_stat(path))
    memo.parent.mkdir(parents=True, exist_ok=True)
    noted = {"identity": identity, "digest": digest, "path": str(path)}
    with atomic_write(memo) as file:
        file.write(json.dumps(noted).encode())


def _memo(stat: os.stat_result) -> tuple[str, Path]:
    """What identifies a file as it is now, and where its digest is noted."""
    identity = f"{stat.st_dev}:{stat.st_ino}:{stat.st_size}:{stat.st_mtime_ns}"
    name = hashlib.sha256(identity.encode()).hexdigest()[:32]
    return identity, cook_home() / "cache" / "digests" / name


def _stat(path: Path) -> os.stat_result:
    try:
        return path.stat()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
