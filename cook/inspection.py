"""What a file is and holds: a model, an imatrix, a trace, a base-logits file, a tensor list.

Only headers are read, except for an importance matrix, which is small, and a trace.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from cook.errors import InputError
from cook.formats.gguf import GgufFile, TensorInfo, is_gguf, read_gguf, read_tensor_list

if TYPE_CHECKING:
    from cook.formats.trace_report import TraceReport

IMATRIX_TYPE = "imatrix"  # general.type of an importance matrix in GGUF


@dataclass(frozen=True)
class Share:
    """Tensors taken together: by type, or by group. ``size_bytes`` is None for unknown types."""

    name: str
    tensors: int
    elements: int
    size_bytes: int | None
    types: tuple[str, ...]

    @property
    def bpw(self) -> float | None:
        """Bits per weight; None where a size is unknown."""
        if self.size_bytes is None or not self.elements:
            return None
        return 8 * self.size_bytes / self.elements


@dataclass(frozen=True)
class ModelReport:
    """A GGUF model, or a list of its tensors (then ``file_bytes`` is None)."""

    kind: str
    path: Path
    architecture: str | None
    name: str | None
    file_bytes: int | None
    shards: int
    layers: int | None
    experts: int | None
    experts_used: int | None
    context: int | None
    vocabulary: int | None
    imatrix: str | None
    total: Share
    by_type: tuple[Share, ...]
    by_group: tuple[Share, ...]


@dataclass(frozen=True)
class EntryReport:
    """One entry of an importance matrix with gaps."""

    name: str
    experts: int
    missing: int
    stored_by_ik: bool
    stored_by_llama_cpp: bool


@dataclass(frozen=True)
class ImatrixReport:
    """An importance matrix; ``gaps`` are its entries with experts that saw no token.

    The experts of a .dat are told apart only with the model at hand (``expert_entries`` is 0).
    ``absent`` are the model's quantizable tensors without data, None without a model.
    """

    kind: str
    path: Path
    format: str
    datasets: tuple[str, ...]
    chunks: int
    chunk_tokens: int | None
    entries: int
    expert_entries: int
    experts: int
    experts_covered: int
    gaps: tuple[EntryReport, ...] = field(default=())
    absent: tuple[str, ...] | None = None


@dataclass(frozen=True)
class BaseReport:
    """A file of base logits, as ``llama-perplexity --kl-divergence-base`` writes them."""

    kind: str
    path: Path
    context: int
    vocabulary: int
    chunks: int
    file_bytes: int
    expected_bytes: int
    complete: bool


Report: TypeAlias = "ModelReport | ImatrixReport | BaseReport | TraceReport"


def inspect(path: Path, model: Path | None = None) -> Report:
    """What ``path`` is; ``model`` splits a .dat importance matrix by its experts.

    InputError for a file of no known kind, or a damaged one.
    """
    from cook.formats.kld_base import MAGIC

    if not path.exists():
        raise InputError(f"no file {path}")
    if path.is_dir():
        raise InputError(f"{path} is a folder", hint="name the file; of a split model, any shard")
    if path.suffix == ".tsv":
        return _tensor_list(path)
    if path.suffix == ".gguf" or is_gguf(path):
        file = read_gguf(path)
        is_imatrix = file.metadata.get("general.type") == IMATRIX_TYPE
        return _imatrix(path, model) if is_imatrix else _model(file)
    with path.open("rb") as stream:
        magic = stream.read(len(MAGIC))
    if magic == MAGIC:
        return _base(path)
    if magic == b"COOKTRAC":  # without importing numpy for the other kinds
        from cook.formats.trace_report import report_trace

        return report_trace(path)
    try:  # a .dat begins with no magic: reading it is the only test
        return _imatrix(path, model)
    except InputError as error:
        if path.suffix == ".dat" or model is not None:
            raise
        raise InputError(f"{path} is no GGUF, imatrix, trace or base-logits file") from error


def _model(file: GgufFile) -> ModelReport:
    architecture = file.string("general.architecture")

    def number(key: str) -> int | None:
        return file.integer(f"{architecture}.{key}")

    tokens = file.array("tokenizer.ggml.tokens")
    groups = _groups(
        file.tensors, architecture or "", number("block_count"), number("nextn_predict_layers")
    )
    return ModelReport(
        kind="model",
        path=file.path,
        architecture=architecture,
        name=file.string("general.name"),
        file_bytes=file.file_bytes,
        shards=len(file.shards),
        layers=number("block_count"),
        experts=number("expert_count"),
        experts_used=number("expert_used_count"),
        context=number("context_length"),
        vocabulary=tokens.count if tokens else None,
        imatrix=file.string("quantize.imatrix.file"),
        total=_share("total", file.tensors),
        by_type=_types(file.tensors),
        by_group=groups,
    )


def _tensor_list(path: Path) -> ModelReport:
    tensors = read_tensor_list(path)
    return ModelReport(
        kind="tensor list",
        path=path,
        architecture=None,
        name=None,
        file_bytes=None,
        shards=1,
        layers=None,
        experts=None,
        experts_used=None,
        context=None,
        vocabulary=None,
        imatrix=None,
        total=_share("total", tensors),
        by_type=_types(tensors),
        by_group=_groups(tensors, "", None, None),
    )


def _imatrix(path: Path, model: Path | None) -> ImatrixReport:
    from cook.formats.imatrix import read_imatrix, with_experts
    from cook.formats.imatrix_coverage import coverage

    imatrix = read_imatrix(path)
    absent = None
    if model is not None:
        tensors = read_gguf(model).tensors
        imatrix = with_experts(imatrix, tensors)
        weights = [t.name for t in tensors if len(t.shape) > 1 and t.name.endswith(".weight")]
        absent = tuple(name for name in weights if name not in imatrix.entries)
    entries = coverage(imatrix)
    expert_entries = [entry for entry in entries if entry.experts > 1]
    gaps = [
        EntryReport(e.name, e.experts, e.missing, e.stored_by_ik, e.stored_by_llama_cpp)
        for e in entries
        if e.missing
    ]
    return ImatrixReport(
        kind="imatrix",
        path=path,
        format=imatrix.format,
        datasets=imatrix.datasets,
        chunks=imatrix.chunk_count,
        chunk_tokens=imatrix.chunk_size,
        entries=len(entries),
        expert_entries=len(expert_entries),
        experts=sum(e.experts for e in expert_entries),
        experts_covered=sum(e.covered for e in expert_entries),
        gaps=tuple(gaps),
        absent=absent,
    )


def _base(path: Path) -> BaseReport:
    from cook.formats.kld_base import read_base_header

    header = read_base_header(path)
    return BaseReport(
        kind="base logits",
        path=path,
        context=header.context,
        vocabulary=header.vocabulary,
        chunks=header.chunks,
        file_bytes=header.file_bytes,
        expected_bytes=header.expected_bytes,
        complete=header.complete,
    )


def _share(name: str, tensors: Sequence[TensorInfo]) -> Share:
    sizes = [tensor.size_bytes for tensor in tensors]
    known = [size for size in sizes if size is not None]
    return Share(
        name=name,
        tensors=len(tensors),
        elements=sum(tensor.elements for tensor in tensors),
        size_bytes=sum(known) if len(known) == len(sizes) else None,
        types=tuple(dict.fromkeys(tensor.type_name for tensor in tensors)),
    )


def _types(tensors: Sequence[TensorInfo]) -> tuple[Share, ...]:
    """By type, the one with the most weights first."""
    by_type: dict[str, list[TensorInfo]] = {}
    for tensor in tensors:
        by_type.setdefault(tensor.type_name, []).append(tensor)
    shares = [_share(name, members) for name, members in by_type.items()]
    return tuple(sorted(shares, key=lambda share: (-share.elements, share.name)))


def _groups(
    tensors: Iterable[TensorInfo], architecture: str, layers: int | None, predict: int | None
) -> tuple[Share, ...]:
    """By group, in the order of :class:`cook.recipe.groups.Group`; empty groups left out."""
    from cook.recipe.groups import Group, group_of, mtp_layers_of

    tensors = tuple(tensors)
    mtp = mtp_layers_of((tensor.name for tensor in tensors), layers, predict)
    by_group: dict[Group, list[TensorInfo]] = {group: [] for group in Group}
    for tensor in tensors:
        by_group[group_of(tensor.name, architecture, mtp)].append(tensor)
    return tuple(_share(group, members) for group, members in by_group.items() if members)
