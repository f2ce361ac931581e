"""Steps: replay and time mixes of types on a stored trace without keeping their files.

A search looks at hundreds of mixes that differ in a few tensors, and keeps none. So a mix is put
together of quantized tensors that lie in the store (:mod:`cook.steps.quantize`), blocks shared
where the file system can, replayed, and gone: what stays is the replay. The worker that replays
one takes the next.

How far a mix is from its source is what adds over tensors, so it is measured from the source's own
probabilities, not from the target's: of a draft that is another model than its target, the latter
moves either way with every change (docs/internals/mixes.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import rmtree
from typing import ClassVar

from cook.engines.base import Engine
from cook.graph.step import Input, JsonValue, Step, Workbench
from cook.steps.curve import CurveOutcome, CurveStep
from cook.steps.quantize import QuantizeStep
from cook.steps.replay import ReplayOutcome, ReplayStep, likeliest
from cook.steps.work import Phase

TOP = 32
"""Of 2,048 tokens of the demo's vocabulary they have all but some thousandths of the
probability, and the rest counts as one token."""
DRAFT = "draft"
"""The folder of the mix while it is there."""


@dataclass(frozen=True)
class VariantStep(Step[ReplayOutcome]):
    """``replay``, whose draft is a mix, with that made for it alone; artifact as the replay's.

    Its divergence is from what the source of all mixes says itself: its ``own`` replay, of which
    the :data:`TOP` likeliest tokens are kept.
    """

    replay: ReplayStep
    own: ReplayStep

    kind: ClassVar[str] = "variant"
    phase: ClassVar[str] = Phase.REPLAY

    @property
    def label(self) -> str:
        return self.replay.label

    def uses(self) -> Engine:
        return self.replay.engine

    def inputs(self) -> Mapping[str, Input]:
        own = {"trace": self.replay.trace, "own": self.own}
        return {**_mix(self.replay.draft).inputs(), **own}

    def params(self) -> Mapping[str, JsonValue]:
        return {"mix": dict(_mix(self.replay.draft).params()), "replay": dict(self.replay.params())}

    def run(self, bench: Workbench) -> ReplayOutcome:
        with _made(self.replay.draft, bench) as path:
            own = likeliest(bench.artifact(self.own))
            return self.replay.of_file(path, bench, place=self.kind, reference=own)


@dataclass(frozen=True)
class VariantCurveStep(Step[CurveOutcome]):
    """``curve``, whose model is a mix, with that made for it alone."""

    curve: CurveStep

    kind: ClassVar[str] = "variant-curve"
    phase: ClassVar[str] = Phase.TIMES
    timed: ClassVar[bool] = True

    @property
    def label(self) -> str:
        return self.curve.label

    def uses(self) -> Engine:
        return self.curve.engine

    def inputs(self) -> Mapping[str, Input]:
        return {**_mix(self.curve.model).inputs(), "trace": self.curve.trace}

    def params(self) -> Mapping[str, JsonValue]:
        curve = {**self.curve.params(), "version": self.curve.version}
        return {"mix": dict(_mix(self.curve.model).params()), "curve": curve}

    def run(self, bench: Workbench) -> CurveOutcome:
        with _made(self.curve.model, bench) as path:
            return self.curve.of_file(path, bench, place=VariantStep.kind)


def _mix(model: Input) -> QuantizeStep:
    assert isinstance(model, QuantizeStep), "a variant is quantized"
    return model


@contextmanager
def _made(model: Input, bench: Workbench) -> Iterator[Path]:
    """The file of a mix, for the time of the block."""
    folder = bench.directory / DRAFT
    folder.mkdir()
    try:
        # Progress is that of what is done with the mix.
        _mix(model).run(replace(bench, directory=folder, advance=lambda _: None))
        yield min(path for path in folder.iterdir() if path.suffix == ".gguf")
    finally:
        rmtree(folder)
