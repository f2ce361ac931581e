"""Importance matrices: mean squared activations a column, in both engines' formats.

GGUF (mainline ``common/imatrix-loader.cpp``): tensors ``<weight>.in_sum2`` [ne0, experts] with
the sum of x^2 and ``<weight>.counts`` [1, experts] in tokens. Legacy ``.dat`` (ik, and mainline on
request): i32 entries; each i32 length, name, i32 calls, i32 values, f32 values = mean(x^2) * calls;
then i32 chunks, i32 length, dataset. A ``.dat`` knows neither its experts nor its chunk size, and
has 1.0 as the mean of an expert that saw no token.

Partial entries are judged by the engines' own rules for storing them: ik
(``examples/imatrix/imatrix.cpp``) drops an entry with experts that saw no token unless fewer than
round(experts / 20) are missing, so below 30 experts any gap drops it, and then refuses low-bit
types for that tensor. Mainline stores every entry in GGUF, and in .dat all but empty ones.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import floor
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from cook.errors import InputError
from cook.files import atomic_write
from cook.formats.cursor import Cursor
from cook.formats.gguf import (
    GgufFile,
    MetadataArray,
    TensorInfo,
    ValueType,
    is_gguf,
    read_gguf,
)
from cook.formats.quant_types import IK_LLAMA_CPP

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class ImatrixEntry:
    """``sums`` [experts, ne0] of x^2 and ``counts`` [experts], both float32.

    Counts are tokens (GGUF) or calls (.dat); 0 is an expert that saw nothing. Only the ratio
    ``sums / counts`` means anything across formats.
    """

    sums: Floats
    counts: Floats

    @property
    def experts(self) -> int:
        """Rows of ``sums``: 1 for a dense tensor, and for any entry of an ungrouped .dat."""
        return len(self.counts)

    def mean(self) -> Floats:
        """Mean x^2 [experts, ne0] as quantization uses it: 1 where an expert saw nothing."""
        import numpy as np

        counts = self.counts[:, None]
        seen = counts > 0
        result: Floats = np.where(seen, self.sums / np.where(seen, counts, 1), 1)
        return result.astype(np.float32)


@dataclass(frozen=True, eq=False)
class Imatrix:
    """All entries by weight name. ``chunk_size`` (tokens) is None for a .dat, which has none."""

    entries: Mapping[str, ImatrixEntry]
    datasets: tuple[str, ...]
    chunk_count: int
    chunk_size: int | None
    format: Literal["gguf", "dat"]


@dataclass(frozen=True)
class EntryCoverage:
    """One entry: ``missing`` of ``experts`` saw no token; what each engine would store of it."""

    name: str
    experts: int
    missing: int
    stored_by_ik: bool
    stored_by_llama_cpp: bool

    @property
    def covered(self) -> int:
        """Experts with data."""
        return self.experts - self.missing

    def usable(self, flavour: str) -> int:
        """Experts with data in an imatrix that ``flavour`` itself collected and stored."""
        stored = self.stored_by_ik if flavour == IK_LLAMA_CPP else self.stored_by_llama_cpp
        return self.covered if stored else 0


def coverage(imatrix: Imatrix) -> tuple[EntryCoverage, ...]:
    """Coverage of every entry, in order; a .dat must have gone through ``with_experts`` before."""
    found = []
    for name, entry in imatrix.entries.items():
        experts = entry.experts
        missing = experts - int((entry.counts > 0).sum())
        few = missing < experts and experts > 1 and missing < floor(experts * 0.05 + 0.5)
        found.append(EntryCoverage(name, experts, missing, missing == 0 or few, missing < experts))
    return tuple(found)


def entry_for(imatrix: Imatrix, tensor: str, flavour: str) -> ImatrixEntry | None:
    """The entry that ``flavour`` uses to quantize ``tensor``, or None.

    Mainline knows only the tensor's own name; ik borrows from the tensors that see the same
    activations (``llama_model_quantize_internal``).
    """
    found = imatrix.entries.get(tensor)
    if found is not None or flavour != IK_LLAMA_CPP:
        return found
    for part, others in _ALIASES:
        if part in tensor:
            head = tensor[: tensor.index(part)]
            names = (head + other for other in others)
            return next((imatrix.entries[n] for n in names if n in imatrix.entries), None)
    return None


_ALIASES = (
    ("ffn_up_exps.weight", ("ffn_gate_up_exps.weight", "ffn_up_exps.weight")),
    ("ffn_gate_exps.weight", ("ffn_gate_up_exps.weight", "ffn_up_exps.weight")),
    ("ffn_gate_up_exps.weight", ("ffn_up_exps.weight",)),
    ("ffn_gate.weight", ("ffn_up.weight",)),
    (".attn_v_b.weight", (".attn_kv_b.weight",)),
    (".attn_kv_b.weight", (".attn_v_b.weight",)),
)


MAX_FILE_BYTES = 8 << 30
MAX_NAME_BYTES = 1024
CHUNK_SIZE = 512
"""Tokens of a call where the imatrix does not say: the engines' default."""
_SUMS, _COUNTS = ".in_sum2", ".counts"
_F32 = 0


def read_imatrix(path: Path | str) -> Imatrix:
    """Read either format; InputError for anything that an engine would refuse or misread."""
    import numpy as np

    path = Path(path)
    with Cursor(path, MAX_FILE_BYTES) as cursor:
        if cursor.file_bytes > MAX_FILE_BYTES:
            cursor.fail("imatrix", f"{cursor.file_bytes} bytes is too large for an imatrix")
        imatrix = _from_gguf(read_gguf(path)) if is_gguf(path) else _from_dat(cursor)
    if not imatrix.entries:
        raise InputError(f"{path}: has no imatrix entries")
    for name, entry in imatrix.entries.items():
        for what, values in (("sum", entry.sums), ("count", entry.counts)):
            finite = np.isfinite(values)
            if not finite.all():
                column = int(np.argmin(finite.reshape(-1)))
                raise InputError(f"{path}: {name}: {what} {column} is not finite")
    return imatrix


def with_experts(imatrix: Imatrix, tensors: Iterable[TensorInfo]) -> Imatrix:
    """``imatrix`` with the entries of a .dat split by expert, as the model's tensors are.

    InputError if an entry's length is not ne0 * ne2 of its tensor (both engines refuse that).
    """
    import numpy as np

    entries = dict(imatrix.entries)
    for tensor in tensors:
        if (entry := entries.get(tensor.name)) is None:
            continue
        ne0 = tensor.shape[0]
        experts = tensor.shape[2] if len(tensor.shape) > 2 else 1
        if entry.sums.size != ne0 * experts:
            raise InputError(
                f"imatrix entry {tensor.name} has {entry.sums.size} values, "
                f"its tensor needs {ne0} x {experts}"
            )
        if experts == entry.experts:
            continue
        if entry.experts != 1:
            raise InputError(
                f"imatrix entry {tensor.name} counts {entry.experts} experts, not {experts}"
            )
        sums = entry.sums.reshape(experts, ne0)
        calls = entry.counts[0]
        # Both engines store an expert without data as calls * 1.0 in every column.
        missing = (sums == calls).all(axis=1)
        counts = np.where(missing, 0, calls).astype(np.float32)
        entries[tensor.name] = ImatrixEntry(np.where(missing[:, None], 0, sums), counts)
    return replace(imatrix, entries=entries)


def write_dat(imatrix: Imatrix, path: Path) -> None:
    """Write the legacy format by mainline's rule (``save_imatrix_legacy``).

    An expert without data gets a mean of 1.0; an entry without any data is left out. An imatrix
    read from a .dat comes out as it was.
    """
    import numpy as np

    stored = {n: e for n, e in imatrix.entries.items() if e.counts.max() > 0}
    if imatrix.format == "gguf":
        stored = dict(sorted(stored.items()))
    chunk = imatrix.chunk_size or 1
    with atomic_write(path) as file:
        file.write(struct.pack("<i", len(stored)))
        for name, entry in stored.items():
            calls = -(-int(entry.counts.max()) // chunk)
            values = entry.mean() * np.float32(calls)
            if imatrix.format == "dat":
                values = np.where(entry.counts[:, None] == calls, entry.sums, values)
            raw = name.encode()
            file.write(struct.pack("<i", len(raw)) + raw + struct.pack("<ii", calls, values.size))
            file.write(values.astype("<f4").tobytes())
        dataset = imatrix.datasets[-1].encode() if imatrix.datasets else b""
        file.write(struct.pack("<ii", imatrix.chunk_count, len(dataset)) + dataset)


def write_gguf(imatrix: Imatrix, path: Path) -> None:
    """Write the GGUF format as mainline does; calls of a .dat become :data:`CHUNK_SIZE` tokens."""
    from cook.formats.gguf_writer import NewTensor, encode, tensor_of, write_gguf_file

    scale = 1 if imatrix.chunk_size else CHUNK_SIZE
    tensors: list[NewTensor] = []
    for name, entry in sorted(imatrix.entries.items()):
        experts, ne0 = entry.sums.shape
        shapes = ((ne0,), (1,)) if experts == 1 else ((ne0, experts), (1, experts))
        for suffix, shape, values in zip(
            (_SUMS, _COUNTS), shapes, (entry.sums, entry.counts), strict=True
        ):
            raw = (values * scale).astype("<f4").tobytes()
            tensors.append(tensor_of(name + suffix, shape, _F32, raw))
    metadata = {
        "general.type": encode("imatrix"),
        "imatrix.datasets": encode(imatrix.datasets, ValueType.STRING),
        "imatrix.chunk_count": encode(imatrix.chunk_count),
        "imatrix.chunk_size": encode(imatrix.chunk_size or CHUNK_SIZE),
    }
    write_gguf_file(path, metadata, tensors)


def _from_gguf(file: GgufFile) -> Imatrix:
    import numpy as np

    datasets = file.metadata.get("imatrix.datasets")
    chunk_count = file.integer("imatrix.chunk_count")
    chunk_size = file.integer("imatrix.chunk_size")
    if not isinstance(datasets, MetadataArray) or chunk_count is None or not chunk_size:
        raise InputError(
            f"{file.path}: imatrix.datasets, chunk_count or chunk_size is missing",
            hint="every imatrix that llama-imatrix writes has them; llama-quantize refuses this",
        )
    entries: dict[str, ImatrixEntry] = {}
    for tensor in file.tensors:
        name = tensor.name.removesuffix(_SUMS)
        if name == tensor.name:
            if tensor.name.endswith(_COUNTS):
                file.tensor(tensor.name.removesuffix(_COUNTS) + _SUMS)
            continue
        counts = file.tensor(name + _COUNTS)
        if tensor.type_id != _F32 or counts.type_id != _F32:
            raise InputError(f"{file.path}: {name}: sums and counts must be f32")
        if counts.elements < 1 or not tensor.elements or tensor.elements % counts.elements:
            raise InputError(
                f"{file.path}: {name}: {tensor.elements} sums for {counts.elements} counts"
            )
        sums = np.frombuffer(file.read_tensor_bytes(tensor.name), dtype="<f4")
        seen = np.frombuffer(file.read_tensor_bytes(counts.name), dtype="<f4")
        if not (seen >= 0).all():
            raise InputError(f"{file.path}: {name}: a count is negative or not a number")
        # std::lround in both engines' loaders; in float64, where adding a half is exact.
        rounded = np.floor(seen.astype(np.float64) + 0.5).astype(np.float32)
        entries[name] = ImatrixEntry(sums.reshape(counts.elements, -1), rounded)
    names = tuple(str(text) for text in datasets.values())
    return Imatrix(entries, names, chunk_count, chunk_size, "gguf")


def _from_dat(cursor: Cursor) -> Imatrix:
    import numpy as np

    entries: dict[str, ImatrixEntry] = {}
    count = cursor.i32("entry count")
    if count < 1 or count * 13 > cursor.file_bytes:
        cursor.fail("entry count", f"{count} is impossible: not an imatrix", at=0)
    for index in range(count):
        name = cursor.name(f"name of entry {index}", MAX_NAME_BYTES, entries, wide=False)
        at = cursor.position
        calls, values = cursor.i32(f"{name}: calls"), cursor.i32(f"{name}: values")
        if calls < 1 or values < 1:
            cursor.fail(name, f"{calls} calls and {values} values are impossible", at=at)
        raw = cursor.take(4 * values, f"{name}: values")
        sums = np.frombuffer(raw, dtype="<f4").reshape(1, values)
        entries[name] = ImatrixEntry(sums, np.array([calls], dtype=np.float32))
    chunks, dataset = 0, ""
    if cursor.position < cursor.file_bytes:
        # Imatrix files of early 2024 end here; ik reads a cut trailer as garbage.
        chunks, at = cursor.i32("chunk count"), cursor.position
        length = cursor.i32("dataset")
        if not 0 <= length <= 64 * MAX_NAME_BYTES:
            cursor.fail("dataset", f"length {length} is impossible: not an imatrix", at=at)
        dataset = cursor.take(length, "dataset").decode(errors="replace")
    if cursor.position < cursor.file_bytes:
        cursor.fail("end", f"{cursor.file_bytes - cursor.position} bytes more than expected")
    return Imatrix(entries, (dataset,) if dataset else (), chunks, None, "dat")
