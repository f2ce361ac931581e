"""Upload a package: file by file, resumable, in one commit at the end, and compared afterwards.

Large files go to the Hub's storage first, one at a time; what is there already is not sent
again, so an interrupted upload goes on with the file it was at. Only then one commit names them
all: the repository never shows half of a publication. The client's own APIs do both.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from cook.errors import InputError, PrerequisiteError, StepError
from cook.hub.client import FIRST, PATIENT, Retry, api, offline, status_of, transient
from cook.hub.listing import HubFile, live_listing
from cook.hub.package import CARD, Item, Package
from cook.output import Column
from cook.recipe.sources import HubRef
from cook.report.card import MARK
from cook.units import plural, size

if TYPE_CHECKING:
    from huggingface_hub import CommitOperationAdd

    from cook.output import Output

_AGAIN = frozenset({409, 412, 422})
"""Another commit came in between; or storage got other bytes than it was promised."""


@dataclass(frozen=True)
class Published:
    """What the Hub has now. ``sent`` were not there before."""

    repo: str
    url: str
    commit: str
    private: bool
    files: tuple[str, ...]
    sent: tuple[str, ...]


def publish(
    package: Package,
    output: Output,
    *,
    public: bool = False,
    replace_card: bool = False,
    retry: Retry = PATIENT,
) -> Published:
    """Make the repository unless it exists (private unless ``public``) and upload everything.

    An existing repository keeps its visibility. Errors: PrerequisiteError without a login, or
    without the right or the way to write there; InputError when it has a card by someone else
    and ``replace_card`` is not set; StepError when uploading fails again and again, or what
    arrived is not what was sent.
    """
    require_login()
    retry, first = replace(retry, notice=output.say), replace(FIRST, notice=output.say)
    ref = HubRef(package.repo)
    what = f"hf://{package.repo}"
    client = api()
    first.run(what, lambda: client.create_repo(package.repo, private=not public, exist_ok=True))
    before = {f.path: f for f in live_listing(ref, retry).files}
    _respect_card(ref, before.get(CARD), replace_card, retry)
    wanted = [item for item in package.items if not _same(item, before.get(item.path))]
    with output.progress(len(wanted), f"upload to {package.repo}") as progress:
        for item in wanted:
            progress.state(f"{item.path} ({size(item.size_bytes)})")
            _send(package.repo, item, retry)
            progress.advance()
    commit = _commit(package, wanted, retry) if wanted else live_listing(ref, retry).commit
    _compare(package, commit, retry)
    info = retry.run(what, lambda: client.repo_info(package.repo, revision=commit))
    return Published(
        repo=package.repo,
        url=f"{client.endpoint}/{package.repo}",
        commit=commit,
        private=bool(info.private),
        files=tuple(item.path for item in package.items),
        sent=tuple(item.path for item in wanted),
    )


def require_login() -> None:
    """PrerequisiteError unless the client finds a login, and may use the network."""
    from huggingface_hub import get_token

    if offline():
        raise PrerequisiteError(
            "HF_HUB_OFFLINE forbids publishing", hint="unset it, or use --dry-run"
        )
    if get_token() is None:
        raise PrerequisiteError(
            "no login for the Hub", hint="run `hf auth login`, or set HF_TOKEN in the environment"
        )


def _respect_card(ref: HubRef, there: HubFile | None, replace: bool, retry: Retry) -> None:
    """InputError when the repository has a card that cook did not write."""
    if there is None or replace or there.size_bytes == 0:
        return
    from cook.hub.download import fetch

    known = live_listing(ref, retry)
    files = [f for f in known.files if f.path == CARD]
    text = fetch(known, files, retry=retry)[0].read_text(encoding="utf-8", errors="replace")
    if MARK not in text:
        raise InputError(
            f"hf://{ref.repo}: has a card that cook did not write",
            hint="--replace-card replaces it; or publish to another repository",
        )


def _operation(item: Item) -> CommitOperationAdd:
    from huggingface_hub import CommitOperationAdd

    content = str(item.content) if isinstance(item.content, Path) else item.content
    operation = CommitOperationAdd(path_in_repo=item.path, path_or_fileobj=content)
    # Known from the store; the client would read 100 GB once more to find it.
    operation.upload_info.sha256 = bytes.fromhex(item.sha256)
    return operation


def _again(error: BaseException) -> bool:
    return transient(error) or status_of(error) in _AGAIN


def _send(repo: str, item: Item, retry: Retry) -> None:
    """Have the bytes of a large file in the Hub's storage; small ones travel in the commit."""
    retry.run(
        f"hf://{repo}/{item.path}",
        lambda: api().preupload_lfs_files(repo, [_operation(item)], num_threads=1),
        again=_again,
    )


def _commit(package: Package, items: list[Item], retry: Retry) -> str:
    names = ", ".join(i.path for i in items if i.path.endswith(".gguf"))
    message = f"Add {names}" if names else f"Update {plural(len(items), 'file')}"

    def attempt() -> str:
        # New operations every time: the client asks again what is there, so that a commit whose
        # answer was lost is not made twice.
        made = api().create_commit(
            package.repo,
            [_operation(item) for item in items],
            commit_message=message[:200],
            commit_description="Uploaded with cook publish",
        )
        return str(made.oid)

    return retry.run(f"hf://{package.repo}", attempt, again=_again)


def _compare(package: Package, commit: str, retry: Retry) -> None:
    """Every file at ``commit`` has the bytes that were sent."""
    there = {f.path: f for f in live_listing(HubRef(package.repo, commit), retry).files}
    wrong = [item.path for item in package.items if not _same(item, there.get(item.path))]
    if wrong:
        raise StepError(
            f"hf://{package.repo}: {', '.join(wrong[:5])}: not on the Hub as it was sent",
            hint="the same command sends it again",
        )


def _same(item: Item, there: HubFile | None) -> bool:
    if there is None or there.size_bytes != item.size_bytes:
        return False
    if there.sha256 is not None:
        return there.sha256 == item.sha256
    data = item.content if isinstance(item.content, bytes) else item.content.read_bytes()
    digest = hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False)
    return digest.hexdigest() == there.git_oid


def show_package(package: Package, output: Output, public: bool) -> None:
    """Print what would be uploaded: the files with their sizes, then the card."""
    output.emit(
        {
            "repo": package.repo,
            "private": not public,
            "size_bytes": package.size_bytes,
            "files": [
                {"path": i.path, "size_bytes": i.size_bytes, "sha256": i.sha256}
                for i in package.items
            ],
            "card": package.card,
            "warnings": package.warnings,
        }
    )
    rows = [(i.path, size(i.size_bytes), i.sha256[:12]) for i in package.items]
    output.table(rows, ["file", Column("size", "right"), "sha256"])
    output.data("")
    output.block(package.card)
    output.say(
        f"dry run: {plural(len(package.items), 'file')}, {size(package.size_bytes)}, would go to "
        f"hf://{package.repo}; a new repository would be {'public' if public else 'private'}"
    )


def show_published(done: Published, output: Output) -> None:
    """Print where it is."""
    output.emit(done)
    output.data(done.url)
    visible = "private" if done.private else "public"
    output.say(
        f"{plural(len(done.sent), 'file')} sent, {len(done.files)} there and compared, "
        f"commit {done.commit[:12]}, {visible}"
    )
