"""What a file is and holds: a model, an imatrix, a trace, a base-logits file, a tensor list.

Only headers are read, except for an importance matrix, which is small, and a trace, which is
summed up. ``cook inspect`` shows it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cook.errors import InputError
from cook.formats import kld_base, trace_file
from cook.formats.gguf import (
    GgufFile,
    TensorInfo,
    is_gguf,
    read_gguf,
    read_tensor_list,
    total_bytes,
)
from cook.formats.heads import IMATRIX_TYPE, no_model
from cook.formats.imatrix_file import EntryCoverage, coverage, read_imatrix, with_experts
from cook.formats.kld_base import KldBase as KldBase
from cook.formats.kv_cache import CacheSize, cache_size
from cook.formats.trace_file import TraceFile, TraceHeader
from cook.recipe.active import ActiveBytes, active_bytes

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True)
class CategoryCount:
    """One category of prompts: replies, tokens of prompts, emitted tokens, and those that have
    no probabilities."""

    name: str
    replies: int
    prompt_tokens: int
    tokens: int
    holes: int


@dataclass(frozen=True)
class Quantiles:
    """Mean and quantiles (5, 25, 50, 75 and 95 %) of a number over tokens."""

    mean: float
    quantiles: tuple[float, ...]


@dataclass(frozen=True)
class TraceReport:
    """A trace. ``stops``: how many replies ended how.

    Over emitted tokens with probabilities, None where there are none: ``entropy`` in nats of the
    target's raw distribution, all that is not stored counted as one token, so a lower bound;
    ``stored`` the share of its probability that the top-K holds; ``margin`` between the two
    largest logits (small ones flip when kernels change); ``certain`` the share of tokens with a
    probability above 0.9. ``bytes_per_token`` of the whole file.
    """

    kind: str
    path: Path
    file_bytes: int
    cut_short: bool
    header: TraceHeader
    replies: int
    prompt_tokens: int
    tokens: int
    beyond: int
    holes: int
    stops: dict[str, int]
    categories: tuple[CategoryCount, ...]
    entropy: Quantiles | None
    margin: Quantiles | None
    stored: Quantiles | None
    certain: float | None
    bytes_per_token: float | None


def report_trace(path: Path) -> TraceReport:
    """Read the trace at ``path`` whole; InputError for a damaged one."""
    trace = TraceFile(path)
    entropy, margin, stored, certain = (list[npt.NDArray[Any]]() for _ in range(4))
    holes: Counter[str] = Counter()
    for reply in trace:
        emitted = slice(0, reply.head.emitted)
        known = reply.known[emitted]
        holes[reply.head.category] += int((~known).sum())
        certain.append(np.exp(reply.logp[emitted][known]) > 0.9)
        if trace.header.top > 1:
            margin.append(reply.margin[emitted][known])
        if trace.header.top:
            rows, present = reply.top_logp[emitted][known], reply.top_ids[emitted][known] >= 0
            bits, shares = _entropy(rows, present)
            entropy.append(bits)
            stored.append(shares)
    heads = trace.heads
    categories = []
    for name in dict.fromkeys(head.category for head in heads):
        own = [head for head in heads if head.category == name]
        prompts, written = sum(h.prompt_tokens for h in own), sum(h.emitted for h in own)
        categories.append(CategoryCount(name, len(own), prompts, written, holes[name]))
    tokens = sum(head.emitted for head in heads)
    confident = _spread(certain)
    file_bytes = path.stat().st_size
    return TraceReport(
        kind="trace",
        path=path,
        file_bytes=file_bytes,
        cut_short=trace.cut_short,
        header=trace.header,
        replies=len(heads),
        prompt_tokens=sum(head.prompt_tokens for head in heads),
        tokens=tokens,
        beyond=sum(head.tokens - head.emitted for head in heads),
        holes=holes.total(),
        stops=dict(Counter(head.stop for head in heads)),
        categories=tuple(categories),
        entropy=_spread(entropy),
        margin=_spread(margin),
        stored=_spread(stored),
        certain=confident.mean if confident is not None else None,
        bytes_per_token=file_bytes / tokens if tokens else None,
    )


def _entropy(
    logp: npt.NDArray[np.float32], present: npt.NDArray[np.bool_]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """(entropy, share of the probability stored) of each row; the rest is taken as one token."""
    p = np.where(present, np.exp(logp.astype(np.float64)), 0.0)
    stored = np.minimum(p.sum(axis=1), 1.0)
    rest = 1.0 - stored
    parts = np.where(p > 0, p * logp, 0.0).sum(axis=1)
    last = np.where(rest > 1e-9, rest * np.log(np.maximum(rest, 1e-9)), 0.0)
    return np.maximum(-parts - last, 0.0), stored


def _spread(columns: list[npt.NDArray[Any]]) -> Quantiles | None:
    values = np.concatenate(columns).astype(np.float64) if columns else np.zeros(0)
    if not len(values):
        return None
    quantiles = np.quantile(values, QUANTILES)
    return Quantiles(float(values.mean()), tuple(float(q) for q in quantiles))


@dataclass(frozen=True)
class TensorShare:
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


@dataclass(frozen=True, kw_only=True)
class ModelReport:
    """A GGUF model, or a list of its tensors (then ``file_bytes`` is None)."""

    kind: str
    path: Path
    architecture: str | None = None
    name: str | None = None
    file_bytes: int | None = None
    shards: int = 1
    layers: int | None = None
    experts: int | None = None
    experts_used: int | None = None
    context: int | None = None
    cache: CacheSize | None = None
    """KV cache of one context of that length, in f16; None: unknown."""
    vocabulary: int | None = None
    imatrix: str | None = None
    total: TensorShare
    by_type: tuple[TensorShare, ...]
    by_group: tuple[TensorShare, ...]
    active: ActiveBytes | None = None
    """What one token reads; None where the header does not tell."""


@dataclass(frozen=True)
class ImatrixReport:
    """An importance matrix; ``gaps`` are its entries with experts that saw no token.

    The experts of a .dat are known only with the model at hand (``expert_entries`` is 0).
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
    gaps: tuple[EntryCoverage, ...] = ()
    absent: tuple[str, ...] | None = None


def inspect(
    path: Path, model: Path | None = None
) -> ModelReport | ImatrixReport | KldBase | TraceReport:
    """What ``path`` is; ``model`` splits a .dat importance matrix by its experts.

    InputError for a file of no known kind, or a damaged one.
    """
    if not path.exists():
        raise InputError(f"no file {path}")
    if path.is_dir():
        raise InputError(f"{path} is a folder", hint="name the file; of a split model, any shard")
    if path.suffix == ".tsv":
        tensors = read_tensor_list(path)
        return ModelReport(
            kind="tensor list",
            path=path,
            total=_share("total", tensors),
            by_type=_types(tensors),
            by_group=_groups(tensors, "", None, None),
        )
    if path.suffix == ".gguf" or is_gguf(path):
        file = read_gguf(path)
        is_imatrix = file.metadata.get("general.type") == IMATRIX_TYPE
        return _imatrix(path, model) if is_imatrix else _model(file)
    with path.open("rb") as stream:
        magic = stream.read(len(kld_base.MAGIC))
    if magic == kld_base.MAGIC:
        return kld_base.read_base_header(path)
    if magic == trace_file.MAGIC:
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
        kind=found.what if (found := no_model(file)) is not None else "model",
        path=file.path,
        architecture=architecture,
        name=file.string("general.name"),
        file_bytes=file.file_bytes,
        shards=len(file.shards),
        layers=number("block_count"),
        experts=number("expert_count"),
        experts_used=number("expert_used_count"),
        context=(context := number("context_length")),
        cache=cache_size(file, context) if context else None,
        vocabulary=tokens.count if tokens else None,
        imatrix=file.string("quantize.imatrix.file"),
        total=_share("total", file.tensors),
        by_type=_types(file.tensors),
        by_group=groups,
        active=active_bytes(file),
    )


def _imatrix(path: Path, model: Path | None) -> ImatrixReport:
    imatrix = read_imatrix(path)
    absent = None
    if model is not None:
        tensors = read_gguf(model).tensors
        imatrix = with_experts(imatrix, tensors)
        weights = [t.name for t in tensors if len(t.shape) > 1 and t.name.endswith(".weight")]
        absent = tuple(name for name in weights if name not in imatrix.entries)
    entries = coverage(imatrix)
    expert_entries = [entry for entry in entries if entry.experts > 1]
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
        gaps=tuple(entry for entry in entries if entry.missing),
        absent=absent,
    )


def _share(name: str, tensors: Sequence[TensorInfo]) -> TensorShare:
    return TensorShare(
        name=name,
        tensors=len(tensors),
        elements=sum(tensor.elements for tensor in tensors),
        size_bytes=total_bytes(tensors),
        types=tuple(dict.fromkeys(tensor.type_name for tensor in tensors)),
    )


def _types(tensors: Sequence[TensorInfo]) -> tuple[TensorShare, ...]:
    """Shares by type, the one with the most weights first."""
    by_type: dict[str, list[TensorInfo]] = {}
    for tensor in tensors:
        by_type.setdefault(tensor.type_name, []).append(tensor)
    shares = [_share(name, members) for name, members in by_type.items()]
    return tuple(sorted(shares, key=lambda share: (-share.elements, share.name)))


def _groups(
    tensors: Iterable[TensorInfo], architecture: str, layers: int | None, predict: int | None
) -> tuple[TensorShare, ...]:
    """Shares by group, in the order of :class:`cook.recipe.groups.Group`, without empty ones."""
    from cook.recipe.groups import Group, group_of, mtp_layers_of

    tensors = tuple(tensors)
    mtp = mtp_layers_of((tensor.name for tensor in tensors), layers, predict)
    by_group: dict[Group, list[TensorInfo]] = {group: [] for group in Group}
    for tensor in tensors:
        by_group[group_of(tensor.name, architecture, mtp)].append(tensor)
    return tuple(_share(group, members) for group, members in by_group.items() if members)
