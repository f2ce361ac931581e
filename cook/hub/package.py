"""What a publication consists of: the quants, their recipe, their record, and the card."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cook import files
from cook.errors import InputError
from cook.formats.naming import shard_path, shards_of
from cook.graph.store import MEND, recorded_sha256
from cook.recipe.sources import HubRef
from cook.record.record import Draft, Record, to_json
from cook.report.card import CardFacts, card, published
from cook.report.commands import making_steps, quantize_command, quantize_step

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
    models = {draft.quant: _model(draft, f"{title}-{_in_a_name(draft.quant)}") for draft in drafts}
    items = [item for shards in models.values() for item in shards]
    matrix = _imatrix(record, drafts, title)
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


def _in_a_name(quant: str) -> str:
    """``IQ1_KT experts=4`` as a part of a file's name: ``IQ1_KT-experts-4``."""
    return re.sub("[ =,]", "-", quant)


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


def _imatrix(record: Record, drafts: Sequence[Draft], title: str) -> Item | None:
    """The importance matrix of the published quants, while it is on this disk."""
    for draft in drafts:
        for step in making_steps(record, draft):
            made = quantize_command(step)
            path = Path(made.imatrix) if made and made.imatrix else None
            if path is not None and path.is_file():
                return _file(f"imatrix-{title}{path.suffix}", path)
    return None


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
