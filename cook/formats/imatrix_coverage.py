"""What an imatrix covers, by the engines' own rules for storing partial entries.

ik (``examples/imatrix/imatrix.cpp``) drops an entry with experts that saw no token unless fewer
than round(experts / 20) are missing, so below 30 experts any gap drops it, and then refuses
low-bit types for that tensor. Mainline stores every entry in GGUF, and in .dat all but empty ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import floor

from cook.formats.gguf import TensorInfo
from cook.formats.imatrix_model import Imatrix, ImatrixEntry
from cook.formats.quant_types import IK_LLAMA_CPP


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


@dataclass(frozen=True)
class CoverageSummary:
    """All entries with more than one expert, added up; ``fraction`` is covered / experts.

    ``partial`` entries have gaps, ``dropped`` ones the engine would not store. ``worst`` is the
    entry with the largest share missing, or None without gaps.
    """

    entries: int
    experts: int
    covered: int
    partial: int
    dropped: int
    worst: EntryCoverage | None

    @property
    def fraction(self) -> float | None:
        """Share of experts with data; None for a dense model."""
        return self.covered / self.experts if self.experts else None


def coverage(imatrix: Imatrix) -> tuple[EntryCoverage, ...]:
    """Coverage of every entry, in order; a .dat must have gone through ``with_experts`` before."""
    return tuple(_entry(name, entry) for name, entry in imatrix.entries.items())


def coverage_summary(imatrix: Imatrix, flavour: str) -> CoverageSummary:
    """Coverage of the experts as ``flavour`` counts it."""
    found = [item for item in coverage(imatrix) if item.experts > 1]
    gaps = [item for item in found if item.missing]
    ik = flavour == IK_LLAMA_CPP
    return CoverageSummary(
        entries=len(found),
        experts=sum(item.experts for item in found),
        covered=sum(item.usable(flavour) for item in found),
        partial=len(gaps),
        dropped=sum(not (item.stored_by_ik if ik else item.stored_by_llama_cpp) for item in found),
        worst=max(gaps, key=lambda item: item.missing / item.experts, default=None),
    )


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


def absent_entries(
    imatrix: Imatrix, tensors: Iterable[TensorInfo], flavour: str
) -> tuple[str, ...]:
    """Names of those ``tensors`` that ``flavour`` would quantize without importance data."""
    return tuple(t.name for t in tensors if entry_for(imatrix, t.name, flavour) is None)


_ALIASES = (
    ("ffn_up_exps.weight", ("ffn_gate_up_exps.weight", "ffn_up_exps.weight")),
    ("ffn_gate_exps.weight", ("ffn_gate_up_exps.weight", "ffn_up_exps.weight")),
    ("ffn_gate_up_exps.weight", ("ffn_up_exps.weight",)),
    ("ffn_gate.weight", ("ffn_up.weight",)),
    (".attn_v_b.weight", (".attn_kv_b.weight",)),
    (".attn_kv_b.weight", (".attn_v_b.weight",)),
)


def _entry(name: str, entry: ImatrixEntry) -> EntryCoverage:
    experts = entry.experts
    missing = experts - int((entry.counts > 0).sum())
    few = experts > 1 and missing < floor(experts * 0.05 + 0.5)
    return EntryCoverage(
        name=name,
        experts=experts,
        missing=missing,
        stored_by_ik=missing == 0 or (few and missing < experts),
        stored_by_llama_cpp=missing < experts,
    )
