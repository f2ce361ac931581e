"""Which differences are controlled, at what cost, and what a control that fails comes to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from cook.engines.worker.worker import Worker
from cook.errors import StepError
from cook.formats.sampling import Sampling
from cook.graph.step import Source
from cook.record.outcomes import Difference
from cook.steps import differences
from cook.steps.differences import CONTROLLED, CompareStep, Seen, _alone
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


STEP = cast(
    CompareStep,
    SimpleNamespace(
        live=SimpleNamespace(
            live=SimpleNamespace(settings=SimpleNamespace(n_max=4), sampling=Sampling())
        ),
        _chain=lambda: None,
    ),
)


def test_a_few_of_each_kind_are_controlled() -> None:
    near = [seen(prompt_id=f"near {i}") for i in range(9)]
    wide = [seen(prompt_id=f"wide {i}", gap=2.0) for i in range(9)]
    unknown = [seen(prompt_id=f"unknown {i}", gap=None) for i in range(2)]
    ended = seen(prompt_id="one ended", other_token=None)
    every = [ended, *near, *wide, *unknown]
    found = list(CompareStep._controlled(STEP, cast(Worker, Asked()), every))
    assert [d.prompt_id for d in found] == [one.difference.prompt_id for one in every]
    assert [d.prompt_id for d in found if d.without_draft is not None] == [
        *(f"near {i}" for i in range(CONTROLLED)),
        *(f"wide {i}" for i in range(CONTROLLED)),
        "unknown 0",
        "unknown 1",
    ]


def test_a_control_comes_right_after_its_look_up() -> None:
    """The worker still holds the text then, and need not read it again."""
    worker, order = Asked(), []

    def looked_up() -> Iterator[Seen]:
        for name in ("a", "b"):
            order.append(name)
            yield seen(prompt_id=name)

    for found in CompareStep._controlled(STEP, cast(Worker, worker), looked_up()):
        order.append(f"{found.prompt_id}: {len(worker.requests)}")
    assert order == ["a", "a: 3", "b", "b: 6"]


def test_what_no_worker_can_control_is_looked_up_by_a_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A control that takes too long is told and fails nothing; so is a worker that is missing."""

    class Kept:
        def close(self) -> None: ...

        def loaded(self, *_: object) -> Any:
            raise StepError("worker: replay: no answer within 900 s\n log")

    class Serving:
        def __init__(self, *_: object) -> None: ...

        def __enter__(self) -> Serving:
            return self

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(differences, "model_load", lambda *_: None)
    monkeypatch.setattr(differences, "Server", Serving)
    step = cast(
        CompareStep,
        SimpleNamespace(
            target=Source(Path("t"), "sha256:0", 1),
            target_args=None,
            context=4096,
            engine=None,
            _texts=lambda *_: ["text"],
            _seen=lambda lookup, *_: [seen(prompt_id=type(lookup).__name__)],
        ),
    )
    bench: Any = SimpleNamespace(supervisor=None, workers=Kept())
    pair: Any = SimpleNamespace(id="a")
    found, untold = CompareStep._told(step, bench, [(pair, pair)])
    assert untold == "worker: replay: no answer within 900 s"
    assert [(d.prompt_id, d.without_draft) for d in found] == [("_ServerLookup", None)]
