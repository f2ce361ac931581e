"""What a repository holds at one commit, asked of the Hub or read from the client's cache, and
which of its files a reference means."""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Literal

from cook.errors import InputError, PrerequisiteError
from cook.formats.naming import shard_path, split_name
from cook.hub.client import BRIEF, Retry, api, offline
from cook.recipe.sources import HubRef
from cook.units import size

MAX_FILES = 20_000
COMMIT = re.compile(r"[0-9a-f]{40}")
"""As the SHA-1 of a git blob looks."""
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class HubFile:
    """One file at a commit. ``path`` is inside the repository.

    ``sha256`` is known for what lies in large-file storage, which every model does;
    ``git_oid`` is the SHA-1 of its git blob.
    """

    path: str
    size_bytes: int
    sha256: str | None
    git_oid: str | None

    @property
    def etag(self) -> str | None:
        """The name of its bytes in the client's cache."""
        return self.sha256 or self.git_oid


@dataclass(frozen=True)
class Listing:
    """``ref`` resolved: the commit it means now, and all files there.

    ``cached``: the Hub was not asked; these are the files on this disk.
    """

    ref: HubRef
    commit: str
    files: tuple[HubFile, ...]
    cached: bool = False


def listing(ref: HubRef, retry: Retry = BRIEF) -> Listing:
    """The files of ``ref``'s repository at the commit that its revision means.

    Without a network (or with ``HF_HUB_OFFLINE``) the client's cache answers, as far as it
    can. Errors: InputError for a repository or revision that is not there; PrerequisiteError
    for a gated one, and for one that is neither reachable nor cached.
    """
    if offline():
        known = cached_listing(ref)
        if known is None:
            raise PrerequisiteError(
                f"{ref}: not on this disk, and HF_HUB_OFFLINE forbids fetching it",
                hint="unset HF_HUB_OFFLINE, or fetch it before with `hf download`",
            )
        return known
    try:
        return live_listing(ref, retry)
    except PrerequisiteError:
        known = cached_listing(ref)
        if known is None:
            raise
        return known


def live_listing(ref: HubRef, retry: Retry = BRIEF) -> Listing:
    """As :func:`listing`, from the Hub itself or not at all."""

    def ask() -> Listing:
        from huggingface_hub.hf_api import RepoFile

        client = api()
        kind = repo_type(ref)
        commit = ref.revision if ref.revision and COMMIT.fullmatch(ref.revision) else None
        if commit is None:
            commit = client.repo_info(ref.repo, revision=ref.revision, repo_type=kind).sha or ""
            if not COMMIT.fullmatch(commit):
                raise InputError(f"{ref}: the Hub names no commit for it")
        tree = client.list_repo_tree(ref.repo, recursive=True, revision=commit, repo_type=kind)
        entries = list(islice(tree, MAX_FILES + 1))
        if len(entries) > MAX_FILES:
            raise InputError(f"{ref}: holds more than {MAX_FILES} files", hint="name a smaller one")
        files = []
        for entry in entries:
            if not isinstance(entry, RepoFile) or not safe(entry.path):  # a name no disk should get
                continue
            large = entry.lfs
            sha256 = large.sha256 if large and _SHA256.fullmatch(large.sha256) else None
            oid = entry.blob_id if COMMIT.fullmatch(entry.blob_id) else None
            files.append(HubFile(entry.path, large.size if large else entry.size, sha256, oid))
        return Listing(ref, commit, tuple(files))

    return retry.run(str(ref), ask)


def cached_listing(ref: HubRef) -> Listing | None:
    """What the client's cache holds of ``ref``, at the commit that its revision meant last."""
    storage = storage_folder(ref)
    revision = ref.revision or "main"
    commit = revision if COMMIT.fullmatch(revision) else None
    if commit is None:
        try:
            commit = (storage / "refs" / revision).read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            return None
    root = storage / "snapshots" / commit
    if not COMMIT.fullmatch(commit) or not root.is_dir():
        return None
    files = []
    for path in sorted(root.rglob("*")):
        if path.is_file():
            blob = path.resolve().name
            files.append(
                HubFile(
                    path.relative_to(root).as_posix(),
                    path.stat().st_size,
                    blob if _SHA256.fullmatch(blob) else None,
                    blob if COMMIT.fullmatch(blob) else None,
                )
            )
    return Listing(ref, commit, tuple(files), cached=True)


def storage_folder(ref: HubRef) -> Path:
    """The folder of ``ref``'s repository in the client's cache (``HF_HOME``, ``HF_HUB_CACHE``)."""
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    name = repo_folder_name(repo_id=ref.repo, repo_type=repo_type(ref))
    return Path(constants.HF_HUB_CACHE).expanduser() / name


def repo_type(ref: HubRef) -> str:
    """The client's word for the kind of repository."""
    return "dataset" if ref.dataset else "model"


def safe(path: str) -> bool:
    """Whether ``path`` may be a path below a folder of ours."""
    parts = path.split("/")
    return len(path) <= 1024 and all(
        0 < len(p) <= 255 and p not in (".", "..") and p.isprintable() and "\\" not in p
        for p in parts
    )


@dataclass(frozen=True)
class ChosenFiles:
    """A GGUF (or all shards of one), a safetensors model, or one other file.

    ``files`` are in order: of a GGUF shard 1 first, of another model its weights first.
    """

    kind: Literal["gguf", "safetensors", "file"]
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
                return ChosenFiles("gguf", listing, _shards(listing, file))
            return ChosenFiles("file", listing, (file,))
    inside = (f"{wanted}/", wanted) if wanted is not None else ""
    below = [f for f in listing.files if f.path.startswith(inside)]
    names = {f.path: PurePosixPath(f.path).name.lower() for f in below if f.path.endswith(".gguf")}
    models = [
        f for f in below if f.path in names and not any(w in names[f.path] for w in _NO_MODEL)
    ]
    heads = [f for f in models if (s := split_name(Path(f.path))) is None or s.number == 1]
    if len(heads) == 1:
        return ChosenFiles("gguf", listing, _shards(listing, heads[0]))
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
        return ChosenFiles("safetensors", listing, tensors)
    where = "on this disk" if listing.cached else f"at commit {listing.commit[:12]}"
    close = get_close_matches(wanted or "", [f.path for f in listing.files], n=3, cutoff=0.4)
    raise InputError(
        f"{listing.ref}: holds no GGUF and no safetensors {where}",
        hint=f"it has {', '.join(close)}" if close else None,
    )


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
