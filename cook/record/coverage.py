"""What of the model the importance matrix saw, as the record keeps it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cook.graph.execute import Outcomes
    from cook.steps.imatrix import ImatrixStep

MAX_SKIPPED = 64
"""Names of tensors without data that a record lists; their number it always has."""
_LAYER = re.compile(r"blk\.(\d{1,6})\.")


@dataclass(frozen=True)
class LayerCoverage:
    """``covered`` of ``experts`` (expert, tensor) pairs of one layer have data."""

    layer: int
    experts: int
    covered: int


@dataclass(frozen=True)
class ImatrixCoverage:
    """The matrix that the quants were made with.

    ``experts_covered`` of ``experts_total`` (expert, tensor) pairs have data by the engine's own
    rule for partial entries, ``layers`` the same by layer; both are empty for a dense model.
    ``skipped`` names tensors without any data, at most 64 of ``skipped_count``.
    """

    chunks: int
    context: int
    perplexity: float | None
    entries: int
    experts_total: int
    experts_covered: int
    layers: tuple[LayerCoverage, ...]
    skipped: tuple[str, ...]
    skipped_count: int

    @property
    def fraction(self) -> float | None:
        """Share of experts with data; None for a dense model."""
        return self.experts_covered / self.experts_total if self.experts_total else None


def imatrix_coverage(step: ImatrixStep | None, outcomes: Outcomes) -> ImatrixCoverage | None:
    """From the step's artifact; None where no matrix was made."""
    from cook.formats.gguf import read_gguf
    from cook.formats.imatrix_file import coverage, read_imatrix, with_experts

    result = outcomes.result(step) if step is not None else None
    if step is None or result is None:
        return None
    matrix = read_imatrix(outcomes.artifact(step).file(step.file_name))
    matrix = with_experts(matrix, read_gguf(step.model.path).tensors)
    layers: dict[int, LayerCoverage] = {}
    for entry in coverage(matrix):
        match = _LAYER.match(entry.name)
        if entry.experts < 2 or match is None:
            continue
        layer = int(match[1])
        seen = layers.get(layer, LayerCoverage(layer, 0, 0))
        layers[layer] = LayerCoverage(
            layer, seen.experts + entry.experts, seen.covered + entry.usable(step.engine.flavour)
        )
    return ImatrixCoverage(
        chunks=result.chunks,
        context=step.context,
        perplexity=result.perplexity,
        entries=result.entries,
        experts_total=result.experts_total,
        experts_covered=result.experts_covered,
        layers=tuple(layers[layer] for layer in sorted(layers)),
        skipped=result.skipped[:MAX_SKIPPED],
        skipped_count=len(result.skipped),
    )
