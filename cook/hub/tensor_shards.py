"""One-tensor shards of a publisher on the Hub, to take tensors from instead of quantizing them.

A repository holds a model in one type: a shard for each tensor, and ``tensors.map``, which says
what each shard is and hashes to (:mod:`cook.formats.tensors_map`). The map is read first. It is
compared with the source's own header, then with what the Hub says of the files; only then is
anything fetched, and what was fetched is hashed and its header compared again. Who signed the map
is asked of gpg and the keys that this user trusts; cook imports no key, since one that lies next to
what it signs proves nothing.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from cook.engines.process.supervisor import ask
from cook.errors import InputError, PrerequisiteError, StepError
from cook.formats.gguf import MAX_HEADER_BYTES, TensorInfo
from cook.formats.naming import ShardNames
from cook.formats.tensors_map import MAX_MAP_BYTES, PACKED, MapEntry, TensorsMap, read_tensors_map
from cook.graph.step import Source, source
from cook.hub.client import PATIENT, Retry
from cook.hub.download import fetch, left_bytes, place
from cook.hub.listing import HubFile, Listing, listing
from cook.provenance import HubOrigin
from cook.recipe.rules import TensorsFrom
from cook.recipe.sources import HubRef
from cook.steps.quantize import PublishedTensor

MAP, MAP_SIGNATURE = "tensors.map", "tensors.map.sig"
_MAX_SIGNATURE_BYTES = 1 << 16
UNSIGNED = "unsigned"
NOT_CHECKED = "signature not checked"
_VALID = re.compile(r"\[GNUPG:\] VALIDSIG (.+)")
_NO_KEY = re.compile(r"\[GNUPG:\] NO_PUBKEY (\w{8,40})")
_REFUSED = re.compile(r"\[GNUPG:\] (BADSIG|REVKEYSIG|EXPSIG)\b")


@dataclass(frozen=True)
class Repository:
    """One type of a published model: its files, its map, and who signed that, in words."""

    listing: Listing
    map: TensorsMap
    signature: str

    @cached_property
    def _files(self) -> Mapping[str, HubFile]:
        return {file.path: file for file in self.listing.files}

    def file(self, entry: MapEntry) -> HubFile:
        """The shard as the Hub lists it. InputError where it is not there, or not what the map
        says, naming it."""
        found = self._files.get(entry.file)
        where = f"hf://{self.listing.ref.repo}/{entry.file}"
        if found is None:
            if entry.file + PACKED in self._files:
                raise InputError(f"{where}: is there packed only ({PACKED}), which cook reads not")
            at = "on this disk" if self.listing.cached else "in the repository"
            raise InputError(
                f"{where}: is in the map and not {at}",
                hint="connect, and the same command fetches it" if self.listing.cached else None,
            )
        if found.sha256 is not None and found.sha256 != entry.sha256:
            raise InputError(
                f"{where}: the Hub has other bytes than {self.map.path}:{entry.line} says",
                hint="the publisher replaced one of the two: name a `revision` where they agree",
            )
        if not entry.size_bytes <= found.size_bytes <= entry.size_bytes + MAX_HEADER_BYTES:
            raise InputError(
                f"{where}: has {found.size_bytes} bytes, its tensor {entry.size_bytes}"
            )
        return found


def open_repository(ref: HubRef, key: str | None, retry: Retry = PATIENT) -> Repository:
    """The repository of ``ref``, its map fetched, read, and its signature looked at.

    Errors: InputError where there is no map, or it or its signature is bad; PrerequisiteError as
    for any download, and as :func:`signature_of` for ``key``.
    """
    known = listing(ref)
    files = {f.path: f for f in known.files}
    if MAP not in files:
        where = "on this disk" if known.cached else "in the repository"
        raise InputError(
            f"{ref}: no {MAP} {where}",
            hint="connect, and the same command fetches it" if known.cached else None,
        )
    wanted = [files[name] for name in (MAP, MAP_SIGNATURE) if name in files]
    for file, most in zip(wanted, (MAX_MAP_BYTES, _MAX_SIGNATURE_BYTES), strict=False):
        if file.size_bytes > most:
            raise InputError(
                f"{ref}: {file.path}: {file.size_bytes} bytes, at most {most} are read"
            )
    paths = fetch(known, wanted, retry=retry)
    signature = paths[1] if len(paths) > 1 else None
    return Repository(known, read_tensors_map(paths[0]), signature_of(paths[0], signature, key))


def signature_of(file: Path, signature: Path | None, key: str | None = None) -> str:
    """Who signed ``file``, or why that is not known, for people.

    ``key`` is the fingerprint of the one key that will do. Errors: InputError for a signature that
    is of other bytes, revoked, or by another key than ``key``; PrerequisiteError where ``key`` is
    asked for and gpg or the key is not at hand.
    """
    if signature is None:
        if key is not None:
            raise InputError(f"{file}: is not signed, and the key {key} is asked for")
        return UNSIGNED
    program = shutil.which("gpg")
    if program is None:
        return _unchecked(file, key, "gpg is not installed", "install gnupg")
    argv = (program, "--batch", "--no-tty", "--no-auto-key-retrieve", "--status-fd", "1")
    # What gpg says for people is in their language; its status lines are for programs.
    status = ask(*argv, "--verify", str(signature), str(file)).stdout_tail
    if refused := _REFUSED.search(status):
        why = {"BADSIG": "is of other bytes", "REVKEYSIG": "is by a revoked key"}
        reason = why.get(refused[1], "has expired")
        raise InputError(f"{file}: its signature {reason} ({signature.name})")
    if valid := _VALID.search(status):
        fields = valid[1].split()  # the key that signed, and at the end the one that it belongs to
        if key is not None and key.upper() not in (fields[0], fields[-1]):
            raise InputError(f"{file}: is signed by {fields[-1]}, not by the key {key}")
        return f"signed by {fields[-1]}"
    if missing := _NO_KEY.search(status):
        why_not = f"the key {missing[1]} is not in this user's keyring"
        return _unchecked(file, key, why_not, "import the publisher's key with `gpg --import`")
    return _unchecked(file, key, "gpg cannot read it", f"gpg --verify '{signature}' '{file}'")


def _unchecked(file: Path, key: str | None, reason: str, hint: str) -> str:
    if key is not None:
        raise PrerequisiteError(f"{file}: {NOT_CHECKED}: {reason}", hint=hint)
    return f"{NOT_CHECKED}: {reason}"


@dataclass(frozen=True)
class _Shard:
    """A shard as it is listed, and the tensor that it holds."""

    repository: Repository
    file: HubFile
    tensor: PublishedTensor


@dataclass
class ShardSource:
    """Every repository of one publisher's model that was asked for, and what was taken of it."""

    asked: TensorsFrom
    retry: Retry = PATIENT
    _repositories: dict[str, Repository] = field(default_factory=dict)
    _taken: dict[str, _Shard] = field(default_factory=dict)

    def tensors(
        self, wanted: Iterable[tuple[TensorInfo, str]], *, plan_only: bool
    ) -> tuple[PublishedTensor, ...]:
        """Each (tensor of the source, type) as the publisher made it.

        ``plan_only``: by the maps alone; else every shard is on this disk afterwards, hashed and
        looked into. Errors: InputError for what is not in the map, or of another shape or type
        than the source and the recipe; StepError, naming the shard, for one that is not what the
        map says; and those of a download.
        """
        by_repository: dict[str, list[_Shard]] = {}
        for tensor, type_name in wanted:
            if type_name not in self._repositories:
                names = ShardNames(self.asked.publisher, self.asked.model)
                ref = HubRef(names.repository(type_name), self.asked.revision)
                opened = open_repository(ref, self.asked.key, self.retry)
                self._repositories[type_name] = opened
            repository = self._repositories[type_name]
            entry = _entry(repository, tensor, type_name)
            file = repository.file(entry)
            published = PublishedTensor(
                tensor=tensor.name,
                shape=tensor.shape,
                type=type_name,
                shard=Source(
                    place(repository.listing, file), f"sha256:{entry.sha256}", file.size_bytes
                ),
                publisher=f"{self.asked.publisher}/{self.asked.model}",
                imatrix=entry.imatrix,
            )
            shard = self._taken[entry.sha256] = _Shard(repository, file, published)
            by_repository.setdefault(repository.listing.ref.repo, []).append(shard)
        if plan_only:
            return tuple(shard.tensor for group in by_repository.values() for shard in group)
        return tuple(tensor for group in by_repository.values() for tensor in self._fetched(group))

    def _fetched(self, shards: Sequence[_Shard]) -> list[PublishedTensor]:
        repository = shards[0].repository
        paths = fetch(repository.listing, [s.file for s in shards], retry=self.retry)
        found = []
        for published, path in zip((s.tensor for s in shards), paths, strict=True):
            shard = source([path])
            if shard.digest != published.shard.digest:
                raise StepError(
                    f"{path}: hashes to {shard.digest.removeprefix('sha256:')}, and "
                    f"{repository.map.path} says {published.shard.digest.removeprefix('sha256:')}",
                    hint="nothing of it was taken; name a `revision` where the two agree",
                )
            whole = replace(published, shard=shard)
            whole.data()  # what the header says, before anything is made of it
            found.append(whole)
        return found

    @property
    def left_bytes(self) -> int:
        """What a build would still download of the shards that were asked for."""
        return sum(left_bytes(s.repository.listing, [s.file]) for s in self._taken.values())

    @property
    def origins(self) -> tuple[HubOrigin, ...]:
        """Where each type came from, at which commit, and who signed for it."""
        found = []
        for name, repository in self._repositories.items():
            taken = [(d, s.file) for d, s in self._taken.items() if s.repository is repository]
            known = repository.listing
            origin = HubOrigin(
                role=f"tensors as {name}",
                reference=str(known.ref),
                commit=known.commit,
                files=tuple((file.path, digest) for digest, file in taken),
                size_bytes=sum(file.size_bytes for _, file in taken),
                signature=repository.signature,
            )
            found.append(origin)
        return tuple(found)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Repositories whose signature proves nothing, and why."""
        return tuple(
            f"{r.listing.ref}: {MAP}: {r.signature}; shards are checked against it all the same"
            for r in self._repositories.values()
            if not r.signature.startswith("signed")
        )


def _entry(repository: Repository, tensor: TensorInfo, type_name: str) -> MapEntry:
    """The map's line for a tensor of the source; InputError, with its place, where it differs."""
    entry = repository.map.entries.get(tensor.name)
    if entry is None:
        raise InputError(
            f"{repository.map.path}: has no {tensor.name}",
            hint=f"is {repository.listing.ref} of the recipe's model?",
        )
    at = f"{repository.map.path}:{entry.line}: {tensor.name}"
    if entry.shape != tensor.shape:
        raise InputError(f"{at}: has the shape {entry.shape}, in the source {tensor.shape}")
    if entry.type != type_name:
        raise InputError(
            f"{at}: is {entry.type} in the repository of {type_name}",
            hint=f"write a rule that gives it {entry.type} and is published as such, or leave out "
            "`tensors_from`",
        )
    return entry
