"""Step: make one candidate's GGUF, of tensors that each are quantized once.

The engine's library quantizes, asked through the worker, tensor by tensor and rows at a time, so
that no model is ever in memory. What a quantized tensor is follows from the source's tensor, the
type, the importance of its columns, and the library that quantizes: it is a piece named by these,
made once, that candidates share (:mod:`cook.graph.piece`).
The file is what llama-quantize would write, except for paths and cook's own keys
(:mod:`cook.formats.quantized_file`). Where the library cannot be asked (an engine without headers,
or a base type that does not decide every tensor), llama-quantize itself runs on the whole file.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, ClassVar, Literal

from cook.config import memory_bytes
from cook.engines import tool_runs
from cook.engines.base import Engine, QuantizeJob, QuantizeResult, TypeRule
from cook.engines.process.system import memory_limit_bytes, peak_rss_bytes
from cook.errors import InputError, PrerequisiteError, StepError
from cook.files import FileRange
from cook.formats.gguf import GgufFile, TensorInfo, header_if_there, read_gguf, read_shard
from cook.formats.gguf_writer import SplitLimit, copy_of, encode, tensor_at, write_copy, write_split
from cook.formats.heads import head_alone
from cook.formats.imatrix_file import Imatrix, entry_for, read_imatrix
from cook.formats.quant_types import (
    Flavour,
    QuantType,
    by_id,
    by_name,
    bytes_as,
    ftype_by_name,
    needs_imatrix,
)
from cook.formats.quantized_file import engine_order, quantized_metadata, without_paths
from cook.graph.piece import FILE, Piece
from cook.graph.step import Cost, Input, JsonValue, Source, Workbench
from cook.provenance import cook_version
from cook.steps.imatrix import HeadImatrixStep, ImatrixStep
from cook.steps.work import MODEL_FILE, ModelStep, written_model

if TYPE_CHECKING:
    from cook.engines.worker.worker import Worker
    from cook.formats.arrays import Floats32


TENSOR_KIND = "tensor"
MEMORY_SHARE = 0.25
"""Of the machine's memory, what quantizing may use by default."""
SECONDS_A_WEIGHT = (
    ("iq1", 10e-6),
    ("iq2", 1e-6),
    ("iq3", 0.4e-6),
    ("iq4", 0.3e-6),
    ("_kt", 1.5e-6),
)
"""To quantize with importance on the reference machine: types whose values are searched for, by a
part of their names."""
OTHER_SECONDS_A_WEIGHT = 0.05e-6
_QUANTIZERS = ("libggml-base.", "libggml.")
"""The library that has ggml_quantize_chunk: mainline's, and ik's."""


def tensor_piece(
    source: Source, tensor: TensorInfo, type: QuantType, importance: str | None, quantizer: str
) -> Piece:
    """``tensor`` of ``source`` as ``type``; its file is the bare data, as it lies in a GGUF.

    ``importance``: SHA-256 of the float32 values of every column of every matrix, None without.
    ``quantizer`` names whatever made it of these: :func:`quantizer_of`, or a publisher.
    """
    return Piece(
        kind=TENSOR_KIND,
        label=f"{tensor.name} {type.name}",
        params={
            "tensor": tensor.name,
            "shape": list(tensor.shape),
            "type": type.name,
            "importance": importance,
            "quantizer": quantizer,
        },
        sources={"source": source.digest},
        size_bytes=type.tensor_bytes(tensor.shape),
        made_from={"source": {h.path.name: h.digest.removeprefix("sha256:") for h in source.files}},
    )


@dataclass(frozen=True)
class PublishedTensor:
    """A quantized tensor that another publisher made, in place of quantizing: ``tensor`` as
    ``type``, in the file ``shard``, whose digest is in the publisher's map.

    ``publisher`` is the repository's owner and model, ``imatrix`` the SHA-256 of the matrix that
    it was quantized with, None where the map has none.
    """

    tensor: str
    shape: tuple[int, ...]
    type: str
    shard: Source
    publisher: str
    imatrix: str | None

    def data(self) -> FileRange:
        """Where its data lies. StepError where the shard holds anything but what it should."""
        path = self.shard.path
        file = read_shard(path)
        found = [(t.name, t.shape, t.type_name.lower()) for t in file.tensors]
        if found != [(self.tensor, self.shape, self.type.lower())]:
            held = "; ".join(f"{n} {s} {t}" for n, s, t in found[:2]) or "no tensor"
            if len(found) > 2:
                held += f" and {len(found) - 2} more"
            raise StepError(
                f"{path}: holds {held}, and its map says {self.tensor} {self.shape} {self.type}",
                hint="leave out `tensors_from` to quantize this tensor here, and report it to "
                f"{self.publisher.partition('/')[0]}",
            )
        return file.place(self.tensor)


def quantizer_of(engine: Engine) -> str:
    """SHA-256 of the library that quantizes; PrerequisiteError for an engine without one."""
    files = engine.facts.files
    for stem in _QUANTIZERS:
        if found := sorted(digest for name, digest in files.items() if name.startswith(stem)):
            return found[0]
    raise PrerequisiteError(f"engine {engine.name} has no library to quantize with")


@cache
def seconds_a_weight(tensor_type: str) -> float:
    """To quantize to ``tensor_type``, on the reference machine."""
    name = tensor_type.lower()
    known = (seconds for part, seconds in SECONDS_A_WEIGHT if part in name)
    return next(known, OTHER_SECONDS_A_WEIGHT)


@dataclass(frozen=True, eq=False)
class Importance:
    """The importance that ``flavour`` gives the tensors of a model, by an imatrix; none without."""

    imatrix: Imatrix | None
    path: Path | None
    flavour: Flavour

    @classmethod
    def read(cls, path: Path | None, flavour: Flavour) -> Importance:
        """InputError for an imatrix that cannot be read."""
        return cls(read_imatrix(path) if path is not None else None, path, flavour)

    def of(self, tensor: TensorInfo) -> Floats32 | None:
        """Of every column of every matrix, one after another; None where there is none.

        InputError where the imatrix is of another model.
        """
        if self.imatrix is None:
            return None
        entry = entry_for(self.imatrix, tensor.name, self.flavour)
        needed = tensor.shape[0] * (tensor.shape[2] if len(tensor.shape) > 2 else 1)
        if entry is not None and entry.sums.size == needed:
            return entry.mean().ravel()
        if entry is None or tensor.name == "token_embd.weight":  # the engines go on without
            return None
        raise InputError(
            f"{self.path}: {tensor.name} has {entry.sums.size} values, needs {needed}",
            hint="is it of another model?",
        )

    def digest(self, tensor: TensorInfo) -> str | None:
        """SHA-256 of :meth:`of`."""
        found = self.of(tensor)
        return None if found is None else hashlib.sha256(found.astype("<f4").tobytes()).hexdigest()

    @cached_property
    def whole(self) -> str | None:
        """SHA-256 over all of it, whatever the file's name and the paths in it."""
        if self.imatrix is None:
            return None
        digest = hashlib.sha256()
        for name, entry in sorted(self.imatrix.entries.items()):
            digest.update(name.encode() + b"\0" + entry.mean().astype("<f4").tobytes())
        return digest.hexdigest()


def make_tensors(
    engine: Engine,
    source: Source,
    file: GgufFile,
    types: Mapping[str, QuantType],
    bench: Workbench,
    *,
    importance: Importance | None = None,
    published: Mapping[str, PublishedTensor] | None = None,
) -> tuple[dict[str, FileRange], int | None]:
    """Where each tensor in ``types`` lies as that type, and the peak memory of the worker that
    quantized (None where none had to).

    They are tensors of ``file``, the header of ``source``, and are taken from the store or made
    now: copied where ``published``, else quantized by the library of ``engine``. PrerequisiteError
    for an engine without one.
    """
    theirs = published or {}
    pieces: dict[str, Piece] = {}
    for name, wanted in types.items():
        tensor = file.tensor(name)
        if (other := theirs.get(name)) is not None:
            digest, maker = other.imatrix, f"published:{other.publisher}:{other.shard.digest}"
        else:
            digest = importance.digest(tensor) if importance is not None else None
            maker = quantizer_of(engine)
        pieces[name] = tensor_piece(source, tensor, wanted, digest, maker)
    names = {piece.key: name for name, piece in pieces.items()}
    total_bytes = sum(file.place(name).size_bytes for name in types)
    done_bytes = 0
    held = ExitStack()
    workers: list[Worker] = []

    def advance(more_bytes: int) -> None:
        nonlocal done_bytes
        done_bytes += more_bytes
        bench.advance(min(1.0, done_bytes / total_bytes))

    def make(piece: Piece, path: Path) -> None:
        from cook.engines.worker.messages import RowsOfTensor

        name = names[piece.key]
        if name in theirs:
            with path.open("wb") as out:
                theirs[name].data().append_to(out)
            return
        tensor = file.tensor(name)
        source_type = by_id(tensor.type_id)
        assert source_type is not None, "its size is known"
        rows = RowsOfTensor(
            source=file.place(name),
            source_type=source_type,
            type=types[name],
            shape=tensor.shape,
            importance=importance.of(tensor) if importance is not None else None,
        )
        if not workers:  # where all are stored, none is needed
            workers.append(held.enter_context(bench.workers.unloaded(engine)))
        workers[0].quantize(
            rows,
            path,
            threads=bench.threads,
            memory_bytes=memory_bytes() or int(MEMORY_SHARE * memory_limit_bytes()),
            advance=advance,
        )

    with held:
        made = bench.pieces(pieces.values(), make)
        peak_bytes = peak_rss_bytes(workers[0].pid) if workers else None
    places = {
        name: FileRange(made[piece.key].file(FILE), 0, piece.size_bytes)
        for name, piece in pieces.items()
    }
    return places, peak_bytes


IK_SHARDS = 60
"""It has room for 64 contexts unless built for more, and each shard takes one: 63 load, 64 fail."""
_PLAIN = frozenset({"f32", "f16", "bf16"})


@dataclass(frozen=True)
class QuantizeStep(ModelStep):
    """``source`` with base type ``ftype`` and ``rules``; artifact ``model.gguf``, or shards of it.

    ``expected`` (tensor, type) pairs are what the rules resolved to; the engine's log and the
    written file are compared with them. The number of threads stays out of the key:
    llama-quantize works row by row and its bytes do not depend on it.
    """

    engine: Engine
    quant: str
    source: Source
    imatrix: ImatrixStep | HeadImatrixStep | Source | None
    ftype: str
    rules: tuple[TypeRule, ...]
    expected: tuple[tuple[str, str], ...]
    predicted_tensor_bytes: int | None
    pure: bool = False
    allow_requantize: bool = False
    published: tuple[PublishedTensor, ...] = ()
    """Tensors that another publisher quantized; the rest is quantized here."""
    split: SplitLimit | None = None
    """None for one file, however large."""
    part: Literal["head"] | None = None
    """What of ``source`` it is made of; None for all."""

    kind: ClassVar[str] = "quantize"
    version: ClassVar[int] = 2
    """2: the file says no path of the machine, and what it was made of and by."""

    @property
    def label(self) -> str:
        return f"quantize {self.quant} ({self.engine.name})"

    def inputs(self) -> Mapping[str, Input]:
        shards = {f"published {p.tensor}": p.shard for p in self.published}
        return {**super().inputs(), **shards}

    def params(self) -> Mapping[str, JsonValue]:
        params: dict[str, JsonValue] = {
            "ftype": self.ftype,
            "rules": [[rule.pattern, rule.type] for rule in self.rules],
            "pure": self.pure,
            "allow_requantize": self.allow_requantize,
        }
        if self.published:
            params["published"] = [
                # Next to the shard's digest, what decides a file's bytes.
                [p.tensor, p.type, p.publisher, p.imatrix]
                for p in self.published
            ]
        if self.split is not None:
            params["split"] = asdict(self.split)
        if self.part is not None:
            params["part"] = self.part
        return params

    @property
    def origin(self) -> Input:
        return self.source

    def cost(self) -> Cost:
        model = header_if_there(self.source.path)
        published = {p.tensor for p in self.published}
        seconds = sum(
            tensor.elements * seconds_a_weight(type_name)
            for name, type_name in self.expected
            if model is not None
            and name not in published
            and (tensor := model.find(name)) is not None
        )
        return Cost(arithmetic_s=seconds, copied_bytes=float(self.source.size_bytes))

    def predicted_bytes(self) -> int | None:
        return self.predicted_tensor_bytes

    def shared_bytes(self) -> Mapping[Hashable, int]:
        here = self.imatrix.key if self.imatrix is not None else None, self.engine.identity.digest
        shards = {published.tensor: published.shard.digest for published in self.published}
        if (model := header_if_there(self.source.path)) is None:
            return {}
        return {
            (self.source.key, shards.get(name, here), name, type_name): bytes_as(
                type_name, tensor.shape
            )
            for name, type_name in self.expected
            if (tensor := model.find(name)) is not None and tensor.type_name != type_name
        }

    def job(self, output: Path, imatrix: Path | None, threads: int) -> QuantizeJob:
        """The engine's job, also used to print the exact command."""
        return QuantizeJob(
            source=self.source.path,
            output=output,
            ftype=self.ftype,
            rules=self.rules,
            imatrix=imatrix,
            threads=threads,
            expected=dict(self.expected),
            allow_requantize=self.allow_requantize,
            pure=self.pure,
        )

    def run(self, bench: Workbench) -> QuantizeResult:
        imatrix = None
        if self.imatrix is not None and not isinstance(self.imatrix, Source):
            imatrix = bench.file(self.imatrix, self.imatrix.file_name)
        elif self.imatrix is not None:
            imatrix = self.imatrix.path
        job = self.job(bench.directory / MODEL_FILE, imatrix, bench.threads)
        tool_runs.check_job(self.engine, job)
        importance = Importance.read(imatrix, self.engine.flavour)
        source = read_gguf(job.source)
        file = source if self.part is None else head_alone(source)
        types = self._types(file, importance)
        no_worker = ""
        if types is not None:
            try:
                # Where cook's worker cannot be built with the library, the tool quantizes.
                from cook.engines.worker.compile import build_worker, locate, quantization_version

                files = locate(self.engine)
                build_worker(files)
                quantizer_of(self.engine)
                version = quantization_version(files)
            except (PrerequisiteError, StepError) as error:
                types, no_worker = None, error.message
        if types is not None:
            result = self._by_tensor(job, file, types, importance, version, bench)
        elif self.published:
            raise StepError(
                f"{self.label}: published tensors need cook's worker for this engine"
                + (f": {no_worker}" if no_worker else ""),
                hint="cook doctor",
            )
        else:
            result = self._by_tool(job, file, importance, bench)
        if len(file.tensors) < len(source.tensors):
            result = replace(result, command=())  # no tool makes a part of a file
        again = f"llama-quantize made every tensor again, shared with no other: {no_worker}"
        # No imatrix ever covers the embeddings, nor the output unless asked: no news.
        usual = ("token_embd.weight: ", "output.weight: ")
        news = (w for w in result.warnings if not w.startswith(usual) or "imatrix" not in w)
        return replace(result, warnings=(*([again] if no_worker else ()), *news))

    def _types(self, file: GgufFile, importance: Importance) -> dict[str, QuantType] | None:
        """The type of every tensor; None where only llama-quantize knows, or would refuse, which
        it is left to say in its own words."""
        if self.ftype.upper() == "COPY":
            return None
        flavour, ids = self.engine.flavour, set(self.engine.facts.types.values())
        bare = self.imatrix is None and not self.published
        if bare and flavour in ftype_by_name(self.ftype).imatrix:
            return None
        expected, published = dict(self.expected), {p.tensor for p in self.published}
        types: dict[str, QuantType] = {}
        for tensor in file.tensors:
            source = by_id(tensor.type_id, flavour)
            if source is None or tensor.name not in expected:
                return None
            wanted = types[tensor.name] = by_name(expected[tensor.name])
            if wanted.id == source.id or tensor.name in published:
                continue
            if wanted.id not in ids or (source.name not in _PLAIN and not self.allow_requantize):
                return None
            needs = needs_imatrix(tensor.name, wanted, self.ftype, flavour)
            if needs and importance.of(tensor) is None:
                return None
        return types

    def _by_tensor(
        self,
        job: QuantizeJob,
        file: GgufFile,
        types: Mapping[str, QuantType],
        importance: Importance,
        quantization_version: int,
        bench: Workbench,
    ) -> QuantizeResult:
        started, flavour = monotonic(), self.engine.flavour
        changed = [t for t in file.tensors if types[t.name].id != t.type_id]
        published = {p.tensor: p for p in self.published}
        places, peak_bytes = make_tensors(
            self.engine,
            self.source,
            file,
            {t.name: types[t.name] for t in changed},
            bench,
            importance=importance,
            published=published,
        )
        tensors = [
            tensor_at(t.name, t.shape, types[t.name].id, places.get(t.name) or file.place(t.name))
            for t in engine_order(file.tensors, flavour)
        ]
        metadata = quantized_metadata(
            file,
            flavour,
            file_type=ftype_by_name(self.ftype).file_type,
            quantization_version=quantization_version,
            imatrix=importance.imatrix,
            imatrix_file=job.imatrix.name if job.imatrix is not None else "",
        )
        metadata |= self._provenance(importance, quantizer_of(self.engine))
        paths = write_split(
            job.output, metadata, tensors, self.split, flavour, alignment=file.alignment
        )
        command = self.engine.quantize_command(job)
        result = written_model(paths[0], started, command, peak_bytes)
        if differences := tool_runs.compare(job.expected, result.types, result.types):
            raise StepError(f"{self.label}: {differences[0]}")
        uncovered = tuple(
            f"{t.name}: no imatrix data"
            for t in changed
            if job.imatrix is not None and t.name not in published and importance.of(t) is None
        )
        return replace(result, warnings=(*uncovered, *self._too_many(paths)))

    def _by_tool(
        self, job: QuantizeJob, of: GgufFile, importance: Importance, bench: Workbench
    ) -> QuantizeResult:
        """With llama-quantize; then the machine's paths are taken out of its file's metadata."""
        whole, part = (bench.directory / f"{job.output.stem}-{n}.gguf" for n in ("whole", "part"))
        source = job.source
        if self.part is not None:
            source = write_copy(of, part)
        wanted = replace(job, source=source, output=whole)
        result = tool_runs.quantize(self.engine, wanted, bench.supervisor)
        file = read_gguf(whole)
        metadata = without_paths(file) | self._provenance(importance, self.engine.identity.digest)
        tensors = [copy_of(file, t.name) for t in file.tensors]
        paths = write_split(
            job.output,
            metadata,
            tensors,
            self.split,
            self.engine.flavour,
            alignment=file.alignment,
        )
        whole.unlink()
        part.unlink(missing_ok=True)
        warnings = (*result.warnings, *self._too_many(paths))
        return replace(result, command=self.engine.quantize_command(job), warnings=warnings)

    def _too_many(self, shards: Sequence[Path]) -> tuple[str, ...]:
        """A warning where an engine as it is usually built cannot load so many."""
        if self.engine.flavour is not Flavour.IK_LLAMA_CPP or len(shards) <= IK_SHARDS:
            return ()
        return (
            f"{len(shards)} shards: ik_llama.cpp loads {IK_SHARDS}, and more only where it is "
            "built with -DGGML_MAX_CONTEXTS=2048",
        )

    def _provenance(self, importance: Importance, quantizer: str) -> dict[str, bytes]:
        """What a quantized file says of its making: the same wherever and whenever that is."""
        counts = Counter(p.publisher for p in self.published)
        publishers = ", ".join(f"{name}: {n} tensors" for name, n in sorted(counts.items()))
        texts = {
            "cook.version": cook_version(),
            "cook.source": self.source.digest,
            "cook.imatrix": importance.whole and f"sha256:{importance.whole}",
            "cook.quantizer": f"sha256:{quantizer}",
            "cook.published": publishers or None,
        }
        return {key: encode(text) for key, text in texts.items() if text is not None}
