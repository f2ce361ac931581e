"""Steps: score mixes of types on a stored trace without keeping their files.

A search looks at hundreds of mixes that differ in a few tensors, and keeps none. So a mix is put
together of quantized tensors that lie in the store (:mod:`cook.steps.tensors`), blocks shared
where the file system can, replayed, and gone: what stays is the replay. The worker that replays
one takes the next.

How far a mix is from its source is what adds over tensors, so it is measured from the source's own
probabilities, not from the target's: of a draft that is another model than its target, the latter
moves either way with every change (docs/internals/scoring.md#mixes).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from shutil import rmtree
from typing import TYPE_CHECKING, Any, ClassVar

from cook.engines.base import Engine
from cook.graph.step import Input, JsonValue, Step, Workbench
from cook.steps.made_model import model_path
from cook.steps.quantize import QuantizeStep
from cook.steps.replay import ReplayOutcome, ReplayStep, TopLogp

if TYPE_CHECKING:
    from cook.engines.worker.messages import Replay

TOP_FILE = "top.npz"
TOP = 32
"""Of 2,048 tokens of the demo's vocabulary they have all but some thousandths of the
probability, and the rest counts as one token."""
DRAFT = "draft"
"""The folder of the mix while it is there."""


@dataclass(frozen=True)
class OwnTopStep(Step[ReplayOutcome]):
    """What the source of all mixes says itself: ``replay``, its :data:`TOP` likeliest tokens kept.

    Artifact ``top.npz``: ids and log-probabilities at every token of every reply.
    """

    replay: ReplayStep

    kind: ClassVar[str] = "own_top"
    result_type: ClassVar[type] = ReplayOutcome
    in_worker: ClassVar[bool] = True

    @property
    def label(self) -> str:
        return self.replay.label

    def uses(self) -> Engine | None:
        return self.replay.uses()

    def inputs(self) -> Mapping[str, Input]:
        return self.replay.inputs()

    def params(self) -> Mapping[str, JsonValue]:
        return {"replay": dict(self.replay.params()), "top": TOP}

    def work(self) -> float:
        return self.replay.work()

    def run(self, bench: Workbench) -> ReplayOutcome:
        import numpy as np

        columns: dict[str, Any] = {}

        def keep(index: int, found: Replay) -> None:
            assert found.top_ids is not None, "asked for"
            assert found.top_logits is not None, "asked for"
            columns[f"{index}.ids"] = found.top_ids
            columns[f"{index}.logp"] = found.top_logits - found.logsumexp[:, None]

        path = model_path(bench, self.replay.draft)
        outcome = self.replay.of_file(path, bench, top=TOP, keep=keep)
        np.savez(bench.directory / TOP_FILE, allow_pickle=False, **columns)
        return outcome


@dataclass(frozen=True)
class VariantStep(Step[ReplayOutcome]):
    """``replay``, whose draft is a mix, with that made for it alone; artifact as the replay's.

    Its divergence is from the ``own`` probabilities of the source.
    """

    replay: ReplayStep
    own: OwnTopStep

    kind: ClassVar[str] = "variant"
    result_type: ClassVar[type] = ReplayOutcome

    @property
    def mix(self) -> QuantizeStep:
        assert isinstance(self.replay.draft, QuantizeStep), "a variant is quantized"
        return self.replay.draft

    @property
    def label(self) -> str:
        return self.replay.label

    def uses(self) -> Engine | None:
        return self.replay.uses()

    def inputs(self) -> Mapping[str, Input]:
        return {**self.mix.inputs(), "trace": self.replay.trace, "own": self.own}

    def params(self) -> Mapping[str, JsonValue]:
        return {"mix": dict(self.mix.params()), "replay": dict(self.replay.params())}

    def work(self) -> float:
        return self.replay.work()

    def run(self, bench: Workbench) -> ReplayOutcome:
        import numpy as np

        folder = bench.directory / DRAFT
        folder.mkdir()
        try:
            self.mix.made(replace(bench, directory=folder, advance=_unseen), durable=False)
            first = min(path for path in folder.iterdir() if path.suffix == ".gguf")
            with np.load(bench.file(self.own, TOP_FILE), allow_pickle=False) as top:

                def reference(index: int) -> TopLogp:
                    return top[f"{index}.ids"], top[f"{index}.logp"]

                return self.replay.of_file(first, bench, place=self.kind, reference=reference)
        finally:
            rmtree(folder)


def _unseen(_: float) -> None:
    """Progress is the replay's."""
