"""Where a recipe's sources are on this disk: headers read now, contents by hash.

What the Hub has is fetched, or in a plan stood in for by its header; what was read is remembered.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from cook.demo.smollm2 import is_smollm2, smollm2
from cook.demo.unpack import is_unpacked, unpacked_target
from cook.errors import InputError, PrerequisiteError
from cook.formats.gguf import GgufFile, TensorInfo, header
from cook.formats.naming import shards_of
from cook.graph.step import Source, digest_of_all, source
from cook.hub.client import PATIENT, Retry, offline
from cook.hub.download import fetch, left_bytes, place, stand_in
from cook.hub.listing import ChosenFiles, choose, listing
from cook.hub.tensor_shards import ShardSource
from cook.output import Output
from cook.provenance import HubOrigin
from cook.recipe.rules import TensorsFrom
from cook.recipe.sources import HubRef
from cook.steps.convert import Converter, ConvertStep, convert, model_files, no_converter
from cook.steps.quantize import PublishedTensor
from cook.units import size

if TYPE_CHECKING:
    from cook.formats.imatrix_file import Imatrix

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
    ref: Path | HubRef, *, plan_only: bool = False, converter: Converter | None = None
) -> Located:
    """``ref`` on this disk; see :meth:`SourceReader.find`."""
    return SourceReader(plan_only, converter).find(ref, "model")


def local_path(source: Path | HubRef) -> Path:
    """The local file of ``source``."""
    return locate(source).path


@dataclass(frozen=True)
class ModelFile:
    """A model that a recipe names: its source in the graph and its header."""

    source: Source
    file: GgufFile


@dataclass(frozen=True)
class SourceReader:
    """``plan_only``: fetch and hash nothing that was not before. ``files``: everything read.

    ``converter`` turns a safetensors model, local or from the Hub, into a GGUF; ``output`` shows
    downloads and conversions. ``located`` keeps what each reference came to, so that a branch means
    one commit throughout.
    """

    plan_only: bool
    converter: Converter | None = None
    output: Output | None = None
    files: list[Path] = field(default_factory=list)
    located: dict[Path | HubRef, Located] = field(default_factory=dict)
    matrices: dict[Path, Imatrix] = field(default_factory=dict)
    publications: dict[TensorsFrom, ShardSource] = field(default_factory=dict)

    def model(self, ref: Path | HubRef, role: str = "model") -> ModelFile:
        """A GGUF (all its shards), fetched or converted where need be."""
        found = self.find(ref, role)
        return ModelFile(found.source, header(found.path))

    def text(self, ref: Path | HubRef, role: str) -> Source:
        """Any other file, whole."""
        return self.find(ref, role).source

    def published(
        self, asked: TensorsFrom, wanted: Iterable[tuple[TensorInfo, str]]
    ) -> tuple[PublishedTensor, ...]:
        """Tensors of the source as somebody published them, fetched unless this only plans."""
        if asked not in self.publications:
            self.publications[asked] = ShardSource(asked, self._retry)
        found = self.publications[asked].tensors(wanted, plan_only=self.plan_only)
        if not self.plan_only:
            self.files.extend(tensor.shard.path for tensor in found)
        return found

    def imatrix(self, ref: Path | HubRef) -> Imatrix | None:
        """A ready imatrix, read; None where a plan leaves it on the Hub, or it is not there."""
        from cook.formats.imatrix_file import read_imatrix

        if isinstance(ref, Path) and not ref.is_file():
            return None
        found = self.find(ref, IMATRIX_ROLE)
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

    def find(self, ref: Path | HubRef, role: str) -> Located:
        """``ref`` on this disk: fetched (and converted) unless this only plans. ``role`` is for the
        origin.

        Errors: InputError when a file is absent or a reference names nothing usable;
        PrerequisiteError when the Hub cannot be reached or refuses, the disk is too small, or a
        model has to be converted and cannot be.
        """
        if ref not in self.located:
            if isinstance(ref, HubRef):
                found = self._on_hub(ref, role)
            elif ref.is_dir() and any(ref.glob("*.safetensors")):
                found = self._converted(ref.name, model_files(ref))
            else:
                own = unpacked_target if is_unpacked(ref) else smollm2 if is_smollm2(ref) else None
                path = own() if own is not None else ref
                if not path.is_file():
                    raise InputError(f"{path}: no such file")
                shards = shards_of(path)
                found = self._here(shards if all(s.is_file() for s in shards) else (path,), path)
            self.located[ref] = found
            self.files.extend(found.files)
        return self.located[ref]

    @property
    def _retry(self) -> Retry:
        return replace(PATIENT, notice=self.output.say) if self.output is not None else PATIENT

    def _here(
        self, files: tuple[Path, ...], path: Path | None = None, origin: HubOrigin | None = None
    ) -> Located:
        return Located(
            path or files[0], source(files, plan_only=self.plan_only), files, origin=origin
        )

    def _on_hub(self, ref: HubRef, role: str) -> Located:
        chosen = choose(listing(ref))
        found, files = chosen.listing, chosen.files
        if found.cached and not offline() and self.output is not None:
            self.output.warn(
                f"{ref}: the Hub cannot be reached; commit {found.commit[:12]} from this disk is "
                "used"
            )
        digests = tuple((f.path, f.sha256) for f in files)
        origin = HubOrigin(role, str(ref), found.commit, digests, chosen.size_bytes)
        left = left_bytes(found, files)
        if chosen.kind == "safetensors":
            named = found.ref
            if self.plan_only and left:
                raise PrerequisiteError(
                    f"{named}: {size(left)} of safetensors to download and convert before there is "
                    "a header to plan with",
                    hint="`cook build` does both; or name a BF16 GGUF of this model as the source",
                )
            if self.converter is None:
                raise no_converter(str(named))
            made = self._converted(named.repo.rpartition("/")[2], self._fetched(chosen, left))
            return replace(made, origin=origin)
        # The digest that `cook.graph.step.source` will find, from the Hub's listing.
        hashes = [f"sha256:{f.sha256}" for f in files if f.sha256 is not None]
        digest = digest_of_all(hashes) if len(hashes) == len(files) else None
        small = chosen.kind == "file" and chosen.size_bytes <= SMALL_BYTES
        if not self.plan_only or not left or digest is None or small:
            return self._here(self._fetched(chosen, left), origin=origin)
        # What a plan needs of a source that is not here yet.
        if chosen.kind == "gguf":
            path = stand_in(found, files, self._retry)
        else:
            path = place(found, files[0])
        return Located(path, Source(path, digest, chosen.size_bytes), (), left, origin)

    def _fetched(self, chosen: ChosenFiles, left: int) -> tuple[Path, ...]:
        if self.output is None or not left or self.plan_only:
            return fetch(chosen.listing, chosen.files, retry=self._retry)
        label = f"fetch {chosen.listing.ref} ({size(left)})"
        # In MiB: a bar of more than 2^31 steps shows nothing useful.
        with self.output.progress(max(1, left >> 20), label) as progress:
            return fetch(
                chosen.listing,
                chosen.files,
                retry=self._retry,
                gained=lambda count: progress.to(max(0, count) >> 20),
            )

    def _converted(self, name: str, files: Sequence[Path]) -> Located:
        if self.converter is None:
            raise no_converter(str(files[0].parent))
        sources = tuple(source([f], plan_only=self.plan_only) for f in files)
        step = ConvertStep(name, sources, self.converter)
        path = convert(step, self.output, run=not self.plan_only)
        if path is None:
            raise PrerequisiteError(
                f"{files[0].parent}: not converted yet, so there is no header to plan with",
                hint="`cook build` converts it; or name a BF16 GGUF of this model as the source",
            )
        return Located(path, source([path], plan_only=self.plan_only), (*files, path))
