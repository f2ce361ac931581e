"""Which files of a repository a reference means."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PurePosixPath

from cook.errors import InputError
from cook.formats.naming import shard_path, split_name
from cook.hub.listing import HubFile, Listing
from cook.units import size


class DownloadKind(StrEnum):
    """What was chosen: a GGUF (or all shards of one), a safetensors model, or one other file."""

    GGUF = "gguf"
    SAFETENSORS = "safetensors"
    FILE = "file"


@dataclass(frozen=True)
class ChosenFiles:
    """``files`` in order; of a GGUF shard 1 first, of another model its weights first."""

    kind: DownloadKind
    listing: Listing
    files: tuple[HubFile, ...]

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


# No Python: a converter would run it.
_OTHER_FILES = (".json", ".model", ".txt", ".jinja", ".tiktoken")
_NO_MODEL = ("mmproj", "imatrix")
_MAX_OTHER_BYTES = 64 << 20


def choose(listing: Listing) -> ChosenFiles:
    """The file that the reference's path names, else the one model below it.

    A path may be a file, any shard of a split one, a folder, or the stem of file names.
    InputError when nothing or more than one model fits, naming what there is.
    """
    wanted = listing.ref.path
    for file in listing.files:
        if file.path == wanted:
            if file.path.endswith(".gguf"):
                return ChosenFiles(DownloadKind.GGUF, listing, _shards(listing, file))
            return ChosenFiles(DownloadKind.FILE, listing, (file,))
    below = [f for f in listing.files if _inside(f.path, wanted)]
    models = [f for f in below if f.path.endswith(".gguf") and not _is_extra(f.path)]
    heads = [f for f in models if (s := split_name(Path(f.path))) is None or s.number == 1]
    if len(heads) == 1:
        return ChosenFiles(DownloadKind.GGUF, listing, _shards(listing, heads[0]))
    if heads:
        listed = ", ".join(f"{f.path} ({size(f.size_bytes)})" for f in heads[:6])
        more = f" and {len(heads) - 6} more" if len(heads) > 6 else ""
        raise InputError(
            f"{listing.ref}: holds several models: {listed}{more}",
            hint=f"add the file's path: hf://{listing.ref.repo}/{heads[0].path}",
        )
    if models:
        raise InputError(f"{listing.ref}: {models[0].path}: shard 1 is not there")
    tensors = _safetensors(below, wanted)
    if tensors:
        return ChosenFiles(DownloadKind.SAFETENSORS, listing, tensors)
    where = "on this disk" if listing.cached else f"at commit {listing.commit[:12]}"
    raise InputError(
        f"{listing.ref}: holds no GGUF and no safetensors {where}",
        hint=_nearest(listing),
    )


def _inside(path: str, wanted: str | None) -> bool:
    return wanted is None or path.startswith((f"{wanted}/", wanted))


def _is_extra(path: str) -> bool:
    return any(word in PurePosixPath(path).name.lower() for word in _NO_MODEL)


def _shards(listing: Listing, file: HubFile) -> tuple[HubFile, ...]:
    """Every shard of the model that ``file`` is of, in order."""
    split = split_name(Path(file.path))
    if split is None:
        return (file,)
    by_path = {f.path: f for f in listing.files}
    shards = []
    for number in range(1, split.count + 1):
        name = shard_path(Path(file.path), number, split.count).as_posix()
        if name not in by_path:
            raise InputError(
                f"{listing.ref}: {name}: this shard of {split.count} is not "
                + ("on this disk" if listing.cached else "in the repository"),
                hint="connect, and the same command fetches it" if listing.cached else None,
            )
        shards.append(by_path[name])
    return tuple(shards)


def _safetensors(below: list[HubFile], wanted: str | None) -> tuple[HubFile, ...]:
    """The weights of one folder and what a converter reads with them."""
    folder = PurePosixPath(wanted or ".")
    here = [f for f in below if PurePosixPath(f.path).parent == folder]
    weights = [f for f in here if f.path.endswith(".safetensors")]
    # Mistral's repositories hold the same weights twice.
    own = [f for f in weights if not PurePosixPath(f.path).name.startswith("consolidated")]
    weights = own or weights
    if not weights or not any(PurePosixPath(f.path).name == "config.json" for f in here):
        return ()
    other = [f for f in here if f.path.endswith(_OTHER_FILES) and f.size_bytes <= _MAX_OTHER_BYTES]
    return (*weights, *other)


def _nearest(listing: Listing) -> str | None:
    import difflib

    names = [f.path for f in listing.files]
    close = difflib.get_close_matches(listing.ref.path or "", names, n=3, cutoff=0.4)
    return f"it has {', '.join(close)}" if close else None
