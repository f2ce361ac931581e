"""Which differences are controlled, at what cost, and what a control that fails comes to."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from cook.engines.worker.worker import Worker
from cook.errors import StepError
from cook.formats.sampling import Sampling
from cook.record.outcomes import Difference
from cook.steps.compare import CONTROLLED, CompareStep, Seen, _alone, _chosen
from cook.trace.chain import Draws

FOUND = Difference("p", 3, 40, 7, 8, 0.02, None)
SAMPLER = Sampling(0.8, 40, 1.0, 0.0, 1.0)


@dataclass
class Asked:
    """A worker that says ``argmax`` at each width, and keeps what it was asked."""

    argmax: dict[int, int] = field(default_factory=dict)
    logits: dict[int, list[float]] = field(default_factory=dict)
    requests: list[tuple[int, int, int]] = field(default_factory=list)

    def replay(self, prompt: Any, emitted: Any, *, width: int, ahead: int = 0, top: int = 0) -> Any:
        self.requests.append((len(prompt), width, ahead))
        row = np.array(self.logits.get(width, [0.0, -1.0]))
        order = np.argsort(-row)
        return SimpleNamespace(
            argmax=np.array([self.argmax.get(width, 7)]),
            top_ids=order[None, :].astype(np.int32) if top else None,
            top_logits=row[order][None, :].astype(np.float32) if top else None,
        )


def seen(prompt: int = 22_000, **changes: Any) -> Seen:
    return Seen(replace(FOUND, **changes), tuple(range(prompt)), tuple(range(40)))


def test_a_control_reads_the_prompt_in_whole_batches() -> None:
    """22,000 tokens at the width of a verification were 76 minutes a difference."""
    worker = Asked()
    assert _alone(cast(Worker, worker), seen(), (5, 3, 2), None) is False
    assert worker.requests == [(22_000, width, 22_000 - 64) for width in (5, 3, 2)]
    worker = Asked(argmax={3: 8})
    assert _alone(cast(Worker, worker), seen(20), (5, 3, 2), None) is True
    assert worker.requests == [(20, 5, 0), (20, 3, 0)], "it ends where the question is decided"


def test_above_temperature_0_a_control_asks_for_the_same_draw() -> None:
    ids = np.arange(2, dtype=np.int32)
    here = Draws.of(SAMPLER, ids, np.log(np.array([0.6, 0.4], np.float32)))
    one = replace(seen(20, baseline_token=0, other_token=1), draws=here)
    less, more = np.log([0.59, 0.41]).tolist(), np.log([0.61, 0.39]).tolist()
    # The border moved down: draws just below it gave 0, and give 1. Both argmaxes are 0.
    assert _alone(cast(Worker, Asked(logits={5: less})), one, (5,), SAMPLER)
    assert not _alone(cast(Worker, Asked(logits={5: more})), one, (5,), SAMPLER)


def test_a_few_of_each_kind_are_controlled() -> None:
    near = [seen(prompt_id=f"near {i}") for i in range(9)]
    wide = [seen(prompt_id=f"wide {i}", gap=2.0) for i in range(9)]
    unknown = [seen(prompt_id=f"unknown {i}", gap=None) for i in range(2)]
    ended = seen(prompt_id="one ended", other_token=None)
    chosen = [one.difference.prompt_id for one in _chosen([ended, *near, *wide, *unknown])]
    assert chosen == [
        *(f"near {i}" for i in range(CONTROLLED)),
        *(f"wide {i}" for i in range(CONTROLLED)),
        "unknown 0",
        "unknown 1",
    ]


def test_a_control_that_takes_too_long_is_told_and_fails_nothing() -> None:
    class Slow(Asked):
        def replay(self, prompt: Any, emitted: Any, **asked: Any) -> Any:
            if len(self.requests) == 3:
                raise StepError("worker: replay: no answer within 900 s")
            return super().replay(prompt, emitted, **asked)

    step = cast(
        CompareStep,
        SimpleNamespace(
            live=[SimpleNamespace(settings=SimpleNamespace(n_max=4), sampling=Sampling())],
            _chain=lambda: None,
        ),
    )
    both = [seen(prompt_id="a"), seen(prompt_id="b")]
    differences, untold = CompareStep._controlled(step, cast(Worker, Slow()), both)
    assert untold == "worker: replay: no answer within 900 s"
    assert [(d.prompt_id, d.without_draft) for d in differences] == [("a", False), ("b", None)]
