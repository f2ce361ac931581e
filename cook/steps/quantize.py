"""Step: make one candidate's GGUF, of tensors that each are quantized once.

The engine's library quantizes, asked through the worker, tensor by tensor and rows at a time, so
that no model is ever in memory; what candidates share is made once (:mod:`cook.steps.tensors`).
The file is what llama-quantize would write, but for what it says of paths and of cook
(:mod:`cook.formats.splice`). Where the library cannot be asked, llama-quantize itself runs on the
whole file: for an engine without headers, or a base type that says nothing of every tensor.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from cook.engines import tool_runs
from cook.engines.base import Engine, QuantizeJob, QuantizeResult, TypeRule
from cook.engines.worker.messages import RowsOfTensor
from cook.errors import PrerequisiteError, StepError
from cook.files import FileRange
from cook.formats.gguf import GgufFile, TensorInfo, header_if_there, read_gguf
from cook.formats.gguf_split import SplitLimit, write_split_gguf
from cook.formats.gguf_writer import NewTensor, copy_of, encode, tensor_at, write_gguf_file
from cook.formats.quant_types import (
    Flavour,
    QuantType,
    by_id,
    by_name,
    bytes_as,
    ftype_by_name,
    needs_imatrix,
)
from cook.formats.splice import in_order, quantized_metadata, without_paths
from cook.graph.cost import Cost
from cook.graph.piece import FILE, Piece
from cook.graph.step import Input, JsonValue, Source, Workbench
from cook.provenance import cook_version
from cook.steps.imatrix import ImatrixStep
from cook.steps.made_model import MODEL_FILE, ModelStep
from cook.steps.tensors import (
    Importance,
    PublishedTensor,
    TensorQuantizer,
    quantizer_of,
    seconds_a_weight,
    tensor_piece,
)

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
    imatrix: ImatrixStep | Source | None
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
            params["published"] = [p.in_key() for p in self.published]
        if self.split is not None:
            params["split"] = asdict(self.split)
        return params

    @property
    def origin(self) -> Input:
        return self.source

    def cost(self) -> Cost:
        model = header_if_there(self.source.path)
        seconds = sum(
            tensor.elements * seconds_a_weight(type_name)
            for name, type_name in self.expected
            if model is not None
            and name not in self._published_names
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

    def job(self, output: Any, imatrix: Any, threads: int) -> QuantizeJob:
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
        if isinstance(self.imatrix, ImatrixStep):
            imatrix = bench.file(self.imatrix, self.imatrix.file_name)
        elif self.imatrix is not None:
            imatrix = self.imatrix.path
        job = self.job(bench.directory / MODEL_FILE, imatrix, bench.threads)
        tool_runs.check_job(self.engine, job)
        importance = Importance.read(imatrix, self.engine.flavour)
        file = read_gguf(job.source)
        try:
            types = _resolved(self.engine, job, file, importance, self._published_names)
            version = _quantization_version(self.engine)
        except _ForTheToolError as left:
            if self.published:
                raise StepError(
                    f"{self.label}: published tensors need cook's worker for this engine"
                    + "".join(f": {why}" for why in left.reasons),
                    hint="cook doctor",
                ) from None
            result = self._by_tool(job, importance, bench)
            result = replace(result, warnings=(*left.reasons, *result.warnings))
        else:
            result = self._by_tensor(job, file, types, importance, version, bench)
        return replace(result, warnings=tuple(w for w in result.warnings if not _usual(w)))

    def _by_tensor(
        self,
        job: QuantizeJob,
        file: GgufFile,
        types: Mapping[str, QuantType],
        importance: Importance,
        quantization_version: int,
        bench: Workbench,
    ) -> QuantizeResult:
        started = time.monotonic()
        library = quantizer_of(self.engine)
        changed = [t for t in file.tensors if types[t.name].id != t.type_id]
        published = {p.tensor: p for p in self.published}
        pieces = {
            t.name: published[t.name].piece(self.source, t)
            if t.name in published
            else tensor_piece(self.source, t, types[t.name], importance.digest(t), library)
            for t in changed
        }
        of_key = {pieces[t.name].key: t for t in changed}
        total_bytes = sum(file.place(t.name).size_bytes for t in changed)
        with ExitStack() as held:
            worker = TensorQuantizer(self.engine, bench, held, total_bytes)

            def make(piece: Piece, path: Path) -> None:
                tensor = of_key[piece.key]
                if tensor.name in published:
                    published[tensor.name].copy(path)
                    return
                rows = RowsOfTensor(
                    source=file.place(tensor.name),
                    source_type=_type_of(tensor),
                    type=types[tensor.name],
                    shape=tensor.shape,
                    importance=importance.of(tensor),
                )
                worker.quantize(rows, path)

            made = bench.pieces(pieces.values(), make)
            peak_bytes = worker.peak_rss_bytes
        places = {
            name: FileRange(made[piece.key].file(FILE), 0, piece.size_bytes)
            for name, piece in pieces.items()
        }
        tensors = [
            tensor_at(t.name, t.shape, types[t.name].id, places.get(t.name) or file.place(t.name))
            for t in in_order(file.tensors, self.engine.flavour)
        ]
        metadata = quantized_metadata(
            file,
            self.engine.flavour,
            file_type=ftype_by_name(job.ftype).file_type,
            quantization_version=quantization_version,
            imatrix=importance.facts,
        )
        metadata |= self._provenance(importance, library)
        paths = self._write(job.output, metadata, tensors, file.alignment)
        written = {t.name: t.type_name for t in read_gguf(paths[0]).tensors}
        if differences := tool_runs.compare(job.expected, written, written):
            raise StepError(f"{self.label}: {differences[0]}")
        return QuantizeResult(
            types=written,
            tensor_bytes=sum(t.size_bytes for t in tensors),
            seconds=time.monotonic() - started,
            peak_rss_bytes=peak_bytes,
            command=self.engine.quantize_command(job),
            warnings=(
                *(
                    f"{t.name}: no imatrix data"
                    for t in changed
                    if t.name not in published
                    and importance.imatrix is not None
                    and not importance.covers(t)
                ),
                *self._too_many(paths),
            ),
        )

    def _by_tool(
        self, job: QuantizeJob, importance: Importance, bench: Workbench
    ) -> QuantizeResult:
        """With llama-quantize; then the machine's paths are taken out of its file's metadata."""
        whole = bench.directory / f"{job.output.stem}-whole.gguf"
        result = tool_runs.quantize(self.engine, replace(job, output=whole), bench.supervisor)
        file = read_gguf(whole)
        metadata = without_paths(file) | self._provenance(importance, self.engine.identity.digest)
        tensors = [copy_of(file, t.name) for t in file.tensors]
        paths = self._write(job.output, metadata, tensors, file.alignment)
        whole.unlink()
        warnings = (*result.warnings, *self._too_many(paths))
        return replace(result, command=self.engine.quantize_command(job), warnings=warnings)

    def _write(
        self,
        path: Path,
        metadata: Mapping[str, bytes],
        tensors: Sequence[NewTensor],
        alignment: int,
    ) -> tuple[Path, ...]:
        """Write the model, split where that is asked for; its files in order. The store has them
        outlast a power cut."""
        if self.split is not None:
            flavour = self.engine.flavour
            return write_split_gguf(
                path, metadata, tensors, self.split, flavour, alignment=alignment, durable=False
            )
        write_gguf_file(path, metadata, tensors, alignment=alignment, durable=False)
        return (path,)

    def _too_many(self, shards: Sequence[Path]) -> tuple[str, ...]:
        """A warning where an engine as it is usually built cannot load so many."""
        if self.engine.flavour is not Flavour.IK_LLAMA_CPP or len(shards) <= IK_SHARDS:
            return ()
        return (
            f"{len(shards)} shards: ik_llama.cpp loads {IK_SHARDS}, and more only where it is "
            "built with -DGGML_MAX_CONTEXTS=2048",
        )

    @property
    def _published_names(self) -> frozenset[str]:
        return frozenset(p.tensor for p in self.published)

    @property
    def _publishers(self) -> str | None:
        """Whose tensors are in the file, and how many."""
        counts = Counter(p.publisher for p in self.published)
        return ", ".join(f"{name}: {n} tensors" for name, n in sorted(counts.items())) or None

    def _provenance(self, importance: Importance, quantizer: str) -> dict[str, bytes]:
        """What a quantized file says of its making: the same wherever and whenever that is."""
        texts = {
            "cook.version": cook_version(),
            "cook.source": self.source.digest,
            "cook.imatrix": importance.whole and f"sha256:{importance.whole}",
            "cook.quantizer": f"sha256:{quantizer}",
            "cook.published": self._publishers,
        }
        return {key: encode(text) for key, text in texts.items() if text is not None}


class _ForTheToolError(Exception):
    """llama-quantize must do it; ``reasons`` is why, where that is news."""

    def __init__(self, *reasons: str) -> None:
        super().__init__(*reasons)
        self.reasons = reasons


def _resolved(
    engine: Engine,
    job: QuantizeJob,
    file: GgufFile,
    importance: Importance,
    published: frozenset[str],
) -> dict[str, QuantType]:
    """The type of every tensor; _ForTheToolError where only llama-quantize knows, or would refuse,
    which it shall do in its own words. What is ``published`` is quantized already."""
    if job.ftype.upper() == "COPY":
        raise _ForTheToolError
    ids = set(engine.facts.types.values())
    base = ftype_by_name(job.ftype)
    if job.imatrix is None and engine.flavour in base.imatrix and not published:
        raise _ForTheToolError
    types = {}
    for tensor in file.tensors:
        source = by_id(tensor.type_id, engine.flavour)
        wanted = by_name(job.expected[tensor.name]) if tensor.name in job.expected else None
        if source is None or wanted is None:
            raise _ForTheToolError
        types[tensor.name] = wanted
        if wanted.id == source.id or tensor.name in published:
            continue
        if (
            wanted.id not in ids
            or (source.name not in _PLAIN and not job.allow_requantize)
            or (
                needs_imatrix(tensor.name, wanted, job.ftype, engine.flavour)
                and not importance.covers(tensor)
            )
        ):
            raise _ForTheToolError
    return types


def _type_of(tensor: TensorInfo) -> QuantType:
    found = by_id(tensor.type_id)
    assert found is not None, "its type was resolved"
    return found


def _quantization_version(engine: Engine) -> int:
    """What files say of the library that quantizes; _ForTheToolError where cook's worker cannot be
    built with it."""
    from cook.engines.worker.compile import build_worker, locate, quantization_version

    try:
        files = locate(engine)
        build_worker(files)
        quantizer_of(engine)
        return quantization_version(files)
    except (PrerequisiteError, StepError) as error:
        raise _ForTheToolError(
            f"llama-quantize made every tensor again, shared with no other: {error.message}"
        ) from None


def _usual(warning: str) -> bool:
    """No imatrix ever covers the embeddings, nor the output unless asked: no news."""
    return warning.startswith(("token_embd.weight: ", "output.weight: ")) and "imatrix" in warning
