"""Step: what a decode of several slots together costs: so many tokens of each in one batch.

As :mod:`cook.steps.curve` times the batches of one slot: real text, a stretch of its own in each
slot, since a mixture of experts pays for every expert that the batch touches; medians of repeats.
One slot is timed in the same context beside the others, so that what differs between the two is
the slots alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import ClassVar

from cook.engines.base import Engine, ModelArgs
from cook.engines.worker.loading import model_load
from cook.engines.worker.worker import Worker
from cook.errors import StepError
from cook.graph.cost import Cost
from cook.graph.step import Input, JsonValue, Step, Workbench
from cook.scoring.price import BatchCurve
from cook.steps.curve import (
    MOST_REPEATS,
    REPEATS,
    SLOW_S,
    STEADY_S,
    WINDOWS,
    WorkerWatch,
    repeats_of,
)
from cook.steps.live import told
from cook.steps.made_model import model_path
from cook.steps.phase import Phase
from cook.steps.trace import Trace, read_trace
from cook.steps.work import computed_bytes, model_bytes, read_bytes, wide

SEQUENCES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
"""Between these the price of a batch is drawn as a line."""


@dataclass(frozen=True)
class SlotCurveOutcome:
    """Seconds of one decode [sequences][depth][width tokens of each sequence]."""

    sequences: tuple[int, ...]
    depths: tuple[int, ...]
    widths: tuple[int, ...]
    seconds: tuple[tuple[tuple[float, ...], ...], ...]
    others_cores: float | None

    @property
    def batches(self) -> dict[int, BatchCurve]:
        """By the number of sequences."""
        return {
            count: BatchCurve(self.depths, self.widths, rows)
            for count, rows in zip(self.sequences, self.seconds, strict=True)
        }

    @property
    def warnings(self) -> tuple[str, ...]:
        contention = told(self.others_cores)
        return (contention,) if contention else ()


def sequences_for(slots: Iterable[int]) -> tuple[int, ...]:
    """Numbers of sequences to time for servers of so many ``slots`` each."""
    wanted = set(slots)
    return tuple(sorted({s for s in SEQUENCES if s <= max(wanted)} | wanted | {1}))


@dataclass(frozen=True)
class SlotCurveStep(Step[SlotCurveOutcome]):
    """Of ``model``, as the target of a server (``verifies``: logits for every token) or its draft.

    ``sequences``: how many slots decode together, rising from 1; ``widths``: tokens of each.
    """

    engine: Engine
    name: str
    model: Input
    trace: Trace
    args: ModelArgs
    verifies: bool
    widths: tuple[int, ...]
    sequences: tuple[int, ...]

    kind: ClassVar[str] = "slot-curve"
    phase: ClassVar[str] = Phase.TIMES
    version: ClassVar[int] = 1
    timed: ClassVar[bool] = True
    in_worker: ClassVar[bool] = True

    @property
    def label(self) -> str:
        what = "verification" if self.verifies else "draft times"
        return f"{what} {self.name} by slots, up to {self.sequences[-1]} ({self.engine.name})"

    def params(self) -> Mapping[str, JsonValue]:
        return {
            "args": asdict(self.args),
            "verifies": self.verifies,
            "widths": list(self.widths),
            "sequences": list(self.sequences),
            "windows": WINDOWS,
            "repeats": REPEATS,
            "steady_s": STEADY_S,
            "slow_s": SLOW_S,
        }

    def cost(self) -> Cost | None:
        """Batches of every width and number of slots at two depths."""
        size = model_bytes(self.model)
        if size is None:
            return None
        each, lengths = read_bytes(self.model), self.trace.prompt_tokens()
        batches = 2 * WINDOWS * repeats_of(each)
        sizes = [wide(slots * width) for slots in self.sequences for width in self.widths]
        depth = self.sequences[-1] * (min(lengths) + max(lengths) + self.trace.max_tokens)
        return Cost(
            read_bytes=sum(sizes) * batches * each,
            decodes=len(sizes) * batches,
            computed_bytes=depth * computed_bytes(self.model),
            memory_bytes=size,
        )

    def run(self, bench: Workbench) -> SlotCurveOutcome:
        trace = read_trace(bench, self.trace)
        texts = [token for reply in trace for token in (*reply.prompt, *reply.tokens)]
        least = min(head.prompt_tokens for head in trace.heads)
        deepest = max(head.prompt_tokens + head.tokens for head in trace.heads)
        depths = tuple(sorted({least, max(deepest, least + 1)}))
        slots, beyond = self.sequences[-1], max(self.widths)
        load = model_load(
            self.engine,
            model_path(bench, self.model),
            self.args,
            trace.header.context,
            beyond=beyond,
            outputs=beyond if self.verifies else 1,
            slots=slots,
        )
        with bench.workers.loaded(self.engine, load) as (worker, _):
            watch = WorkerWatch(worker)
            times = _SlotTimes(worker, texts, self.verifies, slots, beyond)
            rows: dict[int, list[tuple[float, ...]]] = {s: [] for s in self.sequences}
            for index, depth in enumerate(depths):
                for count, row in times.rows(depth, self.sequences, self.widths).items():
                    rows[count].append(row)
                bench.advance((index + 1) / len(depths))
            others = watch.others_cores()
        return SlotCurveOutcome(
            sequences=self.sequences,
            depths=depths,
            widths=self.widths,
            seconds=tuple(tuple(rows[s]) for s in self.sequences),
            others_cores=others,
        )


class _SlotTimes:
    """Times batches of one loaded model, each of ``slots`` slots holding its own stretch of
    ``text``."""

    def __init__(
        self, worker: Worker, text: Sequence[int], verifies: bool, slots: int, beyond: int
    ) -> None:
        self.worker, self.verifies, self.slots, self.beyond = worker, verifies, slots, beyond
        if len(text) < beyond:
            raise StepError(
                f"the trace has {len(text)} tokens; timing {beyond} at once needs as many",
                hint="record more or longer replies",
            )
        self.text = text

    def rows(
        self, depth: int, sequences: Sequence[int], widths: Sequence[int]
    ) -> dict[int, tuple[float, ...]]:
        """Median seconds by the number of sequences, for each width; windows outside, so that a
        drift of the machine falls on all alike."""
        before = [self._stretch(slot, depth, 0) for slot in range(self.slots)]
        found: dict[tuple[int, int], list[float]] = {(s, w): [] for s in sequences for w in widths}
        for window in range(WINDOWS):
            after = [self._stretch(slot, self.beyond, 1 + window) for slot in range(self.slots)]
            for count in sequences:
                for width in widths:
                    following = [text[:width] for text in after]
                    found[count, width].append(self._batch(before, following, count))
        return {s: tuple(median(found[s, w]) for w in widths) for s in sequences}

    def _batch(
        self, before: Sequence[Sequence[int]], following: Sequence[Sequence[int]], count: int
    ) -> float:
        """Median seconds of one batch, as it takes in the midst of many."""
        # A draft gives logits for the token of each slot, and when it mirrors a verification for
        # the last alone.
        every = self.verifies or len(following[0]) == 1
        repeats = 1
        while True:
            times = self.worker.time_slots(
                before, following, sequences=count, repeats=repeats, all_outputs=every
            )
            decode_s = median(times) / 1e9
            if repeats > 1 or decode_s >= SLOW_S:
                return decode_s
            repeats = max(REPEATS, min(MOST_REPEATS, math.ceil(STEADY_S / decode_s)))

    def _stretch(self, slot: int, tokens: int, window: int) -> list[int]:
        """So many tokens of the text, around its end, that no other slot or window begins with."""
        places = self.slots * (WINDOWS + 1)
        start = len(self.text) * (slot * (WINDOWS + 1) + window) // places
        return [self.text[(start + i) % len(self.text)] for i in range(tokens)]
