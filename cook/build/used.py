"""What of the store a recipe would use, so that it can stay."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cook.build.one_step import LaidOut, every_step
from cook.graph.step import Source
from cook.graph.store import Artifact
from cook.output import Output
from cook.steps import tensors


@dataclass(frozen=True)
class Used:
    """``keys`` of steps; ``sources``: digests of models whose tensors may be parts of them. Which
    tensors these are is known only once a quant's importance is, so all of a source stay."""

    keys: frozenset[str]
    sources: frozenset[str]

    def covers(self, artifact: Artifact) -> bool:
        """Whether a build may use it."""
        if artifact.kind == tensors.KIND:
            return artifact.key_parts.get("inputs", {}).get("source") in self.sources
        return artifact.key in self.keys


def used_by(recipes: Iterable[Path], output: Output) -> Used:
    """What builds of ``recipes``, each with its own engines, would use; InputError as there."""
    keys: set[str] = set()
    sources: set[str] = set()
    for recipe in recipes:
        for step in every_step(LaidOut(recipe).prepared(output)):
            keys.add(step.key)
            sources |= {n.digest for n in step.inputs().values() if isinstance(n, Source)}
    return Used(frozenset(keys), frozenset(sources))
