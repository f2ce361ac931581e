"""Where a recipe's sources are on this disk: headers read now, contents by hash.

What the Hub has is fetched, or in a plan stood in for by its header; what was read is remembered.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from cook.demo.smollm2 import is_smollm2, smollm2
from cook.demo.unpack import is_unpacked, unpacked
from cook.errors import InputError, PrerequisiteError
from cook.formats.gguf import GgufFile, TensorInfo, header
from cook.formats.naming import shards_of
from cook.graph.step import Source, source
from cook.hub.choice import ChosenFiles, DownloadKind, choose
from cook.hub.client import PATIENT, Retry, offline
from cook.hub.download import fetch, left_bytes, place
from cook.hub.header import stand_in
from cook.hub.listing import HubFile, listing
from cook.hub.published import Publication
from cook.output import Output
from cook.provenance import HubOrigin
from cook.recipe.rules import TensorsFrom
from cook.recipe.sources import HubRef
from cook.steps.convert import Converter, ConvertStep, convert, model_files, no_converter
from cook.steps.tensors import PublishedTensor
from cook.units import size

if TYPE_CHECKING:
    from cook.formats.imatrix_file import Imatrix
    from cook.output import Output

IMATRIX_ROLE = "imatrix.file"
SMALL_BYTES = 16 << 20
"""Texts up to this size are fetched even for a plan."""


@dataclass(frozen=True)
class Located:
    """A source on this disk.

    ``path`` is the file, or shard 1. In a plan it may be a stand-in: the true header and size
    without the data; ``source`` has the true digest even so, taken from the Hub's listing.
    ``left_bytes`` is what a build would still download. ``files``: all that it is, or was
    converted from; empty while something is left.
    """

    path: Path
    source: Source
    files: tuple[Path, ...] = ()
    left_bytes: int = 0
    origin: HubOrigin | None = None


def locate(
    ref: Path | HubRef,
    *,
    plan_only: bool = False,
    role: str = "model",
    output: Output | None = None,
    converter: Converter | None = None,
    retry: Retry = PATIENT,
) -> Located:
    """``ref`` on this disk: fetched (and converted) unless ``plan_only``.

    ``role`` is for the origin. ``converter`` turns a safetensors model, local or from the Hub,
    into a GGUF.
    Errors: InputError when a file is absent or a reference names nothing usable;
    PrerequisiteError when the Hub cannot be reached or refuses, the disk is too small, or a
    model has to be converted and cannot be.
    """
    if isinstance(ref, Path):
        return _local(ref, plan_only, output, converter)
    if output is not None:
        retry = replace(retry, notice=output.say)
    chosen = choose(listing(ref))
    if chosen.listing.cached and not offline() and output is not None:
        commit = chosen.listing.commit[:12]
        output.warn(f"{ref}: the Hub cannot be reached; commit {commit} from this disk is used")
    origin = _origin(role, ref, chosen)
    left = left_bytes(chosen.listing, chosen.files)
    if chosen.kind is DownloadKind.SAFETENSORS:
        return _to_convert(chosen, origin, left, plan_only, output, converter, retry)
    if plan_only and left:
        return _planned(chosen, origin, left, retry)
    paths = _fetched(chosen, left, output, retry)
    return Located(paths[0], source(paths, plan_only=plan_only), paths, 0, origin)


def local_path(source: Path | HubRef, *, fetch: bool = True) -> Path:
    """The local file of ``source``; with ``fetch=False`` a stand-in will do, see :func:`locate`."""
    return locate(source, plan_only=not fetch).path


def _local(
    path: Path, plan_only: bool, output: Output | None, converter: Converter | None
) -> Located:
    if path.is_dir() and any(path.glob("*.safetensors")):
        return _converted(path.name, model_files(path), plan_only, output, converter)
    if is_unpacked(path):
        path = unpacked()
    elif is_smollm2(path):
        path = smollm2()
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    files = _with_shards(path)
    return Located(path, source(files, plan_only=plan_only), files)


def _with_shards(path: Path) -> tuple[Path, ...]:
    shards = shards_of(path)
    return shards if all(s.is_file() for s in shards) else (path,)


def _planned(chosen: ChosenFiles, origin: HubOrigin, left: int, retry: Retry) -> Located:
    """A source that is not here yet, with what a plan needs of it."""
    digest = _listed_digest(chosen.files)
    if digest is None or (chosen.kind is DownloadKind.FILE and chosen.size_bytes <= SMALL_BYTES):
        paths = _fetched(chosen, left, None, retry)
        return Located(paths[0], source(paths, plan_only=True), paths, 0, origin)
    if chosen.kind is DownloadKind.GGUF:
        path = stand_in(chosen.listing, chosen.files, retry)
    else:
        path = place(chosen.listing, chosen.files[0])
    return Located(path, Source(path, digest, chosen.size_bytes), (), left, origin)


def _listed_digest(files: Sequence[HubFile]) -> str | None:
    """The digest that :func:`cook.graph.step.source` will find, from the Hub's listing."""
    digests = [f"sha256:{f.sha256}" for f in files if f.sha256 is not None]
    if len(digests) != len(files):
        return None
    if len(digests) == 1:
        return digests[0]
    return f"sha256:{hashlib.sha256(chr(10).join(digests).encode()).hexdigest()}"


def _fetched(
    chosen: ChosenFiles, left: int, output: Output | None, retry: Retry
) -> tuple[Path, ...]:
    if output is None or not left:
        return fetch(chosen.listing, chosen.files, retry=retry)
    label = f"fetch {chosen.listing.ref} ({size(left)})"
    # In MiB: a bar of more than 2^31 steps shows nothing useful.
    with output.progress(max(1, left >> 20), label) as progress:
        return fetch(
            chosen.listing,
            chosen.files,
            retry=retry,
            gained=lambda count: progress.to(max(0, count) >> 20),
        )


def _origin(role: str, ref: HubRef, chosen: ChosenFiles) -> HubOrigin:
    files = tuple((f.path, f.sha256) for f in chosen.files)
    return HubOrigin(role, str(ref), chosen.listing.commit, files, chosen.size_bytes)


def _to_convert(
    chosen: ChosenFiles,
    origin: HubOrigin,
    left: int,
    plan_only: bool,
    output: Output | None,
    converter: Converter | None,
    retry: Retry,
) -> Located:
    if plan_only and left:
        raise PrerequisiteError(
            f"{chosen.listing.ref}: {size(left)} of safetensors to download and convert before "
            "there is a header to plan with",
            hint="`cook build` does both; or name a BF16 GGUF of this model as the source",
        )
    if converter is None:
        raise no_converter(str(chosen.listing.ref))
    paths = _fetched(chosen, left, output, retry)
    name = chosen.listing.ref.repo.rpartition("/")[2]
    made = _converted(name, paths, plan_only, output, converter)
    return replace(made, origin=origin)


def _converted(
    name: str,
    files: Sequence[Path],
    plan_only: bool,
    output: Output | None,
    converter: Converter | None,
) -> Located:
    if converter is None:
        raise no_converter(str(files[0].parent))
    step = ConvertStep(name, tuple(source([f], plan_only=plan_only) for f in files), converter)
    path = convert(step, output, run=not plan_only)
    if path is None:
        raise PrerequisiteError(
            f"{files[0].parent}: not converted yet, so there is no header to plan with",
            hint="`cook build` converts it; or name a BF16 GGUF of this model as the source",
        )
    return Located(path, source([path], plan_only=plan_only), (*files, path))


@dataclass(frozen=True)
class ModelFile:
    """A model that a recipe names: its source in the graph and its header."""

    source: Source
    file: GgufFile


@dataclass(frozen=True)
class SourceReader:
    """``plan_only``: fetch and hash nothing that was not before. ``files``: everything read.

    ``converter`` is for safetensors models; ``output`` shows downloads and conversions.
    ``located`` keeps what each reference came to, so that a branch means one commit throughout.
    """

    plan_only: bool
    converter: Converter | None = None
    output: Output | None = None
    files: list[Path] = field(default_factory=list)
    located: dict[Path | HubRef, Located] = field(default_factory=dict)
    matrices: dict[Path, Imatrix] = field(default_factory=dict)
    publications: dict[TensorsFrom, Publication] = field(default_factory=dict)

    def model(self, ref: Path | HubRef, role: str = "model") -> ModelFile:
        """A GGUF (all its shards), fetched or converted where need be."""
        found = self._find(ref, role)
        return ModelFile(found.source, header(found.path))

    def text(self, ref: Path | HubRef, role: str) -> Source:
        """Any other file, whole."""
        return self._find(ref, role).source

    def published(
        self, asked: TensorsFrom, wanted: Iterable[tuple[TensorInfo, str]]
    ) -> tuple[PublishedTensor, ...]:
        """Tensors of the source as somebody published them, fetched unless this only plans."""
        if asked not in self.publications:
            notice = self.output.say if self.output is not None else PATIENT.notice
            self.publications[asked] = Publication(asked, replace(PATIENT, notice=notice))
        found = self.publications[asked].tensors(wanted, plan_only=self.plan_only)
        if not self.plan_only:
            self.files.extend(tensor.shard.path for tensor in found)
        return found

    def imatrix(self, ref: Path | HubRef) -> Imatrix | None:
        """A ready imatrix, read; None where a plan leaves it on the Hub, or it is not there."""
        from cook.formats.imatrix_file import read_imatrix

        if isinstance(ref, Path) and not ref.is_file():
            return None
        found = self._find(ref, IMATRIX_ROLE)
        if found.left_bytes:
            return None
        if found.path not in self.matrices:
            self.matrices[found.path] = read_imatrix(found.path)
        return self.matrices[found.path]

    @property
    def origins(self) -> tuple[HubOrigin, ...]:
        """What every ``hf://`` reference meant."""
        located = (f.origin for f in self.located.values() if f.origin is not None)
        return (*located, *(o for p in self.publications.values() for o in p.origins))

    @property
    def left_bytes(self) -> int:
        """What a build would download."""
        shards = sum(publication.left_bytes for publication in self.publications.values())
        return sum(f.left_bytes for f in self.located.values()) + shards

    def _find(self, ref: Path | HubRef, role: str) -> Located:
        if ref not in self.located:
            self.located[ref] = locate(
                ref,
                plan_only=self.plan_only,
                role=role,
                output=self.output,
                converter=self.converter,
            )
            self.files.extend(self.located[ref].files)
        return self.located[ref]
