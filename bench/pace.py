"""How fast a shared machine is just now: a reference batch, timed before and after every step.

What others do on the same host changes the speed of memory and processor by a quarter from minute
to minute. A study that compares steps which ran minutes apart takes them all at one pace: seconds
of a step times the usual seconds of the reference over those about the time of the step. Looks
scatter by 3 % in a calm quarter of an hour, and two in succession differed by 12 %: so the median
of all within a minute is taken, not of the two around a step.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from cook.build.layout import Layout
from cook.engines.worker.kept_workers import KeptWorkers
from cook.engines.worker.loading import model_load
from cook.engines.worker.worker import Worker
from cook.graph.execute import Executor
from cook.graph.step import Step

DEPTH = 32
WIDTHS = (1, 5)
"""Tokens of the batches: the first is bound by memory, the other by the processor as well."""
LOOK_S = 0.3
NEAR_S = 60.0
"""Before and after a step, whose looks tell its pace."""
MOST_REPEATS = 32


@dataclass
class Pace:
    """``worker`` holds the reference model. ``looks``: (when, seconds of the reference);
    ``spans``: when each step that :meth:`run` ran began and ended, by key; both in ``file``, where
    there is one, so that a study goes on where it was."""

    worker: Worker
    looks: list[tuple[float, float]] = field(default_factory=list)
    spans: dict[str, tuple[float, float]] = field(default_factory=dict)
    file: Path | None = None

    @classmethod
    def of(cls, worker: Worker, file: Path | None) -> Pace:
        """With what ``file`` has."""
        known: dict[str, Any] = {"looks": [], "spans": {}}
        if file is not None and file.exists():
            known = json.loads(file.read_text(encoding="utf-8"))
        return cls(
            worker,
            [(at, seconds) for at, seconds in known["looks"]],
            {key: (began, ended) for key, (began, ended) in known["spans"].items()},
            file,
        )

    def run(self, executor: Executor, steps: Iterable[Step[Any]]) -> None:
        """Each of ``steps`` alone, between two looks; what ran before is taken as it is."""
        looked = False
        for step in steps:
            if step.key in self.spans:
                executor.run([step])
                continue
            if not looked:
                self._look()
                looked = True
            started = time.time()
            executor.run([step])
            self.spans[step.key] = started, time.time()
            self._look()
            if self.file is not None:
                part = self.file.with_suffix(".part")
                part.write_text(json.dumps({"looks": self.looks, "spans": self.spans}))
                part.rename(self.file)

    def factors(self) -> dict[str, float]:
        """What the seconds of each step are to be multiplied by, so that all are at one pace."""
        about = {key: self._about(*span) for key, span in self.spans.items()}
        usual = median(about.values())
        return {key: usual / seconds for key, seconds in about.items()}

    def _about(self, started: float, ended: float) -> float:
        return median(
            seconds for at, seconds in self.looks if started - NEAR_S <= at <= ended + NEAR_S
        )

    def _look(self) -> None:
        at = time.time()
        self.looks.append((at, sum(self._batch(width) for width in WIDTHS)))

    def _batch(self, width: int) -> float:
        text = list(range(1, 1 + DEPTH + width))

        def timed(repeats: int) -> float:
            timing = self.worker.time_batch(
                text, depth=DEPTH, tokens=width, repeats=repeats, all_outputs=True
            )
            return float(median(timing.decode_ns.tolist()) / 1e9)

        return timed(max(3, min(MOST_REPEATS, math.ceil(LOOK_S / timed(1)))))


@contextmanager
def reference(layout: Layout, file: Path | None = None) -> Iterator[Pace]:
    """The pace by the target of ``layout``, in a worker of its own, and what ``file`` has of it."""
    assert layout.baseline is not None, "asked for"
    assert layout.target is not None, "asked for"
    args = layout.baseline.rounds[0].target_args
    with TemporaryDirectory(prefix="cook-bench-") as logs, KeptWorkers(Path(logs)) as workers:
        load = model_load(
            layout.engine,
            layout.target.path,
            args,
            DEPTH + max(WIDTHS),
            beyond=max(WIDTHS),
            outputs=max(WIDTHS),
        )
        with workers.loaded(layout.engine, load) as (worker, _):
            yield Pace.of(worker, file)
