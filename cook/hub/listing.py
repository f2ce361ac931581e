"""What a repository holds at one commit, asked of the Hub or read from the client's cache."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from cook.errors import InputError, PrerequisiteError
from cook.hub.client import BRIEF, Retry, api, offline
from cook.recipe.sources import HubRef

MAX_FILES = 20_000
COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_GIT_OID = re.compile(r"[0-9a-f]{40}")


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
    return retry.run(str(ref), lambda: _asked(ref))


def _asked(ref: HubRef) -> Listing:
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
        oid = entry.blob_id if _GIT_OID.fullmatch(entry.blob_id) else None
        files.append(HubFile(entry.path, large.size if large else entry.size, sha256, oid))
    return Listing(ref, commit, tuple(files))


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
                    blob if _GIT_OID.fullmatch(blob) else None,
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
