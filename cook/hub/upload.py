"""A publication: what it consists of (the quants, their recipe, their record, and the card), and
its upload, file by file, resumable, in one commit at the end, and compared afterwards.

Large files go to the Hub's storage first, one at a time; what is there already is not sent again,
so an interrupted upload goes on with the file it was at. Only then one commit names them all: the
repository never shows half of a publication. The client's own APIs do both.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from cook import files
from cook.errors import InputError, PrerequisiteError, StepError
from cook.formats.naming import shard_path, shards_of
from cook.graph.store import MEND, recorded_sha256
from cook.hub.client import FIRST, PATIENT, Retry, api, offline, status_of, transient
from cook.hub.listing import HubFile, live_listing
from cook.output import Column
from cook.recipe.sources import HubRef
from cook.record.record import Draft, Record, to_json
from cook.report.card import MARK, CardFacts, card, published
from cook.report.commands import making_steps, quantize_command, quantize_step
from cook.units import plural, size

if TYPE_CHECKING:
    from huggingface_hub import CommitOperationAdd

    from cook.output import Output


CARD = "README.md"
BIG_BYTES = 50 * 1000**3
"""The Hub advises against files above this size; they have to go over Xet."""
_NAME = re.compile(r"[A-Za-z0-9][\w.+-]{0,95}", re.ASCII)
_TOKEN = re.compile(r"\bhf_[A-Za-z0-9]{30,}\b")


@dataclass(frozen=True)
class Item:
    """One file to upload: ``content`` is a path, or the bytes themselves."""

    path: str
    content: Path | bytes
    size_bytes: int
    sha256: str


@dataclass(frozen=True)
class Package:
    """Everything that goes into one commit of ``repo``."""

    repo: str
    items: tuple[Item, ...]
    card: str
    warnings: tuple[str, ...]

    @property
    def size_bytes(self) -> int:
        return sum(item.size_bytes for item in self.items)


@dataclass(frozen=True)
class PublishRequest:
    """What the publisher asks for; ``quants`` empty means all that cook made."""

    repo: str
    quants: tuple[str, ...] = ()
    title: str | None = None
    base_model: str | None = None
    license: str | None = None


def pack(record: Record, wanted: PublishRequest) -> Package:
    """The publication of ``record``. Reads and hashes the files, sends no request.

    Errors: InputError for a name the Hub does not allow, a quant that is not there, a file that
    is gone or was changed, and a text that holds a login.
    """
    name = repository(wanted.repo)
    drafts = _drafts(record, wanted.quants)
    title = wanted.title or re.sub(r"[-_]GGUF$", "", name.repo.partition("/")[2], flags=re.I)
    if not _NAME.fullmatch(title):
        raise InputError(f"{title!r}: cannot be part of a file name", hint="give another --name")
    base = wanted.base_model or base_model(record)
    # ``IQ1_KT experts=4`` is ``IQ1_KT-experts-4`` in a file's name.
    stems = {draft.quant: f"{title}-{re.sub('[ =,]', '-', draft.quant)}" for draft in drafts}
    models = {draft.quant: _model(draft, stems[draft.quant]) for draft in drafts}
    items = [item for shards in models.values() for item in shards]
    # The importance matrix of the published quants, while it is on this disk.
    made = (quantize_command(step) for draft in drafts for step in making_steps(record, draft))
    paths = (Path(command.imatrix) for command in made if command and command.imatrix)
    file = next((path for path in paths if path.is_file()), None)
    matrix = _file(f"imatrix-{title}{file.suffix}", file) if file else None
    items += [matrix] if matrix else []
    facts = CardFacts(
        title=title,
        files={quant: tuple(item.path for item in shards) for quant, shards in models.items()},
        base_model=base,
        license=wanted.license,
        imatrix=matrix.path if matrix else None,
        quantized_by=name.repo.partition("/")[0],
    )
    text = card(record, facts)
    shown = published(record, facts)
    document = json.dumps(to_json(shown), indent=1, ensure_ascii=False, allow_nan=False)
    for path, content in (
        ("recipe.yaml", shown.recipe_text),
        ("record.json", document),
        (CARD, text),
    ):
        items.append(_text(path, content))
    return Package(name.repo, tuple(items), text, tuple(_warnings(items, base, wanted)))


def repository(text: str) -> HubRef:
    """``text`` as the name of a repository; InputError for anything else."""
    try:
        ref = HubRef.parse(f"hf://{text.removeprefix('hf://')}")
    except ValueError as error:
        raise InputError(str(error)) from None
    if ref.path or ref.revision or ref.dataset:
        raise InputError(f"{text}: name a repository only: org/name")
    return ref


def base_model(record: Record) -> str | None:
    """The Hub name of the unquantized model, if the record says where that came from."""
    import yaml

    for origin in record.sources:
        if origin.role == "model":
            return HubRef.parse(origin.reference).repo
    try:
        named = yaml.safe_load(record.recipe_text)["model"]["source"]
        return HubRef.parse(named).repo
    except (yaml.YAMLError, KeyError, TypeError, ValueError, RecursionError):
        return None


def _drafts(record: Record, quants: Sequence[str]) -> list[Draft]:
    made = [d for d in record.drafts if quantize_step(record, d) is not None]
    if not quants:
        if not made:
            raise InputError(
                f"{record.recipe}: this record has no quant that cook made",
                hint="`cook build RECIPE` makes them",
            )
        # Once, where several drafts are of one file.
        return list({draft.key: draft for draft in reversed(made)}.values())[::-1]
    found = []
    for name in dict.fromkeys(quants):
        draft = record.draft(name)
        if draft is None:
            known = ", ".join(d.quant for d in record.drafts)
            raise InputError(f"{name}: no such quant in this record", hint=f"it has {known}")
        found.append(draft)
    return found


def _model(draft: Draft, name: str) -> tuple[Item, ...]:
    """The file of ``draft``, or its shards, to be called after ``name``."""
    paths = shards_of(Path(draft.path)) if draft.path else ()
    gone = next((path for path in paths if not path.is_file()), None)
    if not paths or gone is not None:
        raise InputError(
            f"{draft.quant}: its file is not there any more: {gone or 'it was never made'}",
            hint="`cook build` with the record's recipe makes it again",
        )
    found = sum(path.stat().st_size for path in paths)
    if found != draft.file_bytes:
        raise InputError(
            f"{paths[0]}: has {found} bytes, and the record says {draft.file_bytes}", hint=MEND
        )
    count = len(paths)
    if count == 1:
        return (_file(f"{name}.gguf", paths[0]),)
    called = [shard_path(Path(name), number, count).name for number in range(1, count + 1)]
    return tuple(_file(new, path) for new, path in zip(called, paths, strict=True))


def _file(name: str, path: Path) -> Item:
    digest = files.digest(path).removeprefix("sha256:")
    recorded = recorded_sha256(path)
    if recorded is not None and recorded != digest:
        raise InputError(
            f"{path}: has other content than was measured",
            hint=MEND,
        )
    return Item(name, path, path.stat().st_size, digest)


def _text(path: str, content: str) -> Item:
    from hashlib import sha256

    from huggingface_hub import get_token

    token = get_token()
    if _TOKEN.search(content) or (token and token in content):
        raise InputError(
            f"{path}: holds a login of the Hub; it is not published",
            hint="take it out of the recipe, and revoke it on the Hub's settings page",
        )
    data = content.encode()
    return Item(path, data, len(data), sha256(data).hexdigest())


def _warnings(items: Sequence[Item], base: str | None, wanted: PublishRequest) -> list[str]:
    found = [
        f"{item.path}: above 50 GB, which the Hub advises against: `split: {{max_size: 45G}}` in "
        "its quant makes several files of it"
        for item in items
        if item.size_bytes > BIG_BYTES
    ]
    if base is None:
        found.append("the base model is not known: give --base-model, or no one finds these quants")
    if wanted.license is None:
        found.append("the licence is not known: give --license as the base model's card has it")
    return found


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
) -> Published:
    """Make the repository unless it exists (private unless ``public``) and upload everything.

    An existing repository keeps its visibility. Errors: PrerequisiteError without a login, or
    without the right or the way to write there; InputError when it has a card by someone else
    and ``replace_card`` is not set; StepError when uploading fails again and again, or what
    arrived is not what was sent.
    """
    require_login()
    retry, first = (replace(each, notice=output.say) for each in (PATIENT, FIRST))
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
    there = {f.path: f for f in live_listing(HubRef(package.repo, commit), retry).files}
    wrong = [item.path for item in package.items if not _same(item, there.get(item.path))]
    if wrong:
        raise StepError(
            f"{what}: {', '.join(wrong[:5])}: not on the Hub as it was sent",
            hint="the same command sends it again",
        )
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
