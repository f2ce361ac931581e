"""``python -m bench.alike``: two servers without a draft, dealt the same prompts: are they alike?

They are one model with the same arguments, so every difference is an error of timing: the interval
should hold 1 in 95 of 100 runs. Every run is printed and appended to a file.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from bench.demo_score import UNPACKED_TARGET, study_layout
from bench.neighbour import append_result, neighbour
from bench.study import empty_executor
from cook.build.layout import NO_DRAFT, dealt_into
from cook.record.objective import Objective
from cook.record.prompt_runs import PromptRun
from cook.scoring.compare import Row, standings
from cook.steps.deal import DealStep, Dealt
from cook.steps.live import LiveStep

PROMPTS, TOKENS = 24, 96
AGAIN = "again"
RESULTS = Path(__file__).parent / "results" / "alike.jsonl"


@dataclass(frozen=True)
class Alike:
    """One run: speed of the one over that of the other, and the interval of its error of timing.

    ``disturbed`` of all requests; ``together`` whether the servers were alive at once.
    """

    ratio: float
    low: float
    high: float
    together: bool
    disturbed: int
    seconds: float

    @property
    def holds_one(self) -> bool:
        return self.low <= 1 <= self.high

    @property
    def half_width(self) -> float:
        return math.sqrt(self.high / self.low) - 1

    def __str__(self) -> str:
        told = "holds 1" if self.holds_one else "DOES NOT HOLD 1"
        return (
            f"{self.ratio:.4f} ({self.low:.4f} to {self.high:.4f}), {told}, +- "
            f"{self.half_width:.2%}; {'together' if self.together else 'in turns'}, "
            f"{self.disturbed} disturbed, {self.seconds:.0f} s"
        )


def bare_server(target: str, threads: int) -> LiveStep:
    """No draft for the demo's prompts."""
    layout = study_layout("live", limit=PROMPTS, tokens=TOKENS, n_max=(4,), target=target)
    assert layout.baseline is not None, "it scores"
    live = layout.baseline.live
    return replace(live, name=NO_DRAFT, target_args=replace(live.target_args, threads=threads))


def measured(live: LiveStep, starts: int, *, together: bool) -> Alike:
    """The prompts of ``live`` in as many blocks as ``starts``, dealt to it and to its like."""
    servers = (live, replace(live, name=AGAIN))
    steps = tuple(
        DealStep(tuple(replace(s, prompts=prompts) for s in servers), block, together)
        for block, prompts in enumerate(dealt_into(live.prompts, starts))
    )
    with empty_executor() as executor:
        executor.run(steps)
        for failure in executor.outcomes.failures.values():
            raise failure.error
        outcomes = [o for step in steps if (o := executor.outcomes.result(step)) is not None]
        result_of = executor.outcomes.result
        runs = [
            [run for outcome in Dealt(steps, one.name).outcomes(result_of) for run in outcome.runs]
            for one in servers
        ]
    low, high, ratio = compared(runs[0], runs[1])
    return Alike(
        *(ratio, low, high, all(o.together for o in outcomes)),
        disturbed=sum(run.disturbed for side in runs for run in side),
        seconds=sum(o.seconds for o in outcomes),
    )


def compared(bare: Sequence[PromptRun], again: Sequence[PromptRun]) -> tuple[float, float, float]:
    """(low, high, ratio) of the speed of ``again`` over that of ``bare``."""
    rows = [Row(name, None, (), tuple(r)) for name, r in ((NO_DRAFT, bare), (AGAIN, again))]
    found = standings(rows, NO_DRAFT, Objective.END_TO_END_SPEED)
    assert found is not None, "both ran"
    sign = 1 if found.leader == NO_DRAFT else -1
    low, high = sorted((sign * found.low, sign * found.high))
    return math.exp(low), math.exp(high), math.exp(found.value[AGAIN] - found.value[NO_DRAFT])


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--target", default=UNPACKED_TARGET, help="a GGUF, or demo://NAME")
    asked.add_argument("--threads", type=int, choices=(1, 2), default=1)
    asked.add_argument("--starts", type=int, choices=(1, 4), default=4)
    asked.add_argument("--turns", action="store_true", help="one server alive at a time")
    asked.add_argument("--runs", type=int, default=1)
    asked.add_argument("--noisy", action="store_true", help="beside a noisy neighbour")
    asked.add_argument("--results", type=Path, default=RESULTS)
    words = asked.parse_args()
    live = bare_server(words.target, words.threads)
    cell = {
        "target": Path(words.target).name,
        **{name: getattr(words, name) for name in ("threads", "starts", "turns", "noisy")},
    }
    found = []
    for number in range(words.runs):
        with neighbour(words.noisy):
            found.append(one := measured(live, words.starts, together=not words.turns))
        print(f"{number + 1}: {one}", flush=True)
        told = {"holds_one": one.holds_one, "half_width": one.half_width}
        append_result(words.results, {"cell": cell, **asdict(one), **told})
    held = sum(one.holds_one for one in found)
    print(f"{cell}: 1 is held in {held} of {len(found)} runs")


if __name__ == "__main__":
    main()
