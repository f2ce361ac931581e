"""What evaluations of a search cost beside the prefill of their traces.

Mixes of the demo draft whose tensors are stored are put together, replayed, judged and stored, one
after the other, as a search has it; beside that the time that the engine spent decoding the very
same texts with the very same weights.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from bench.study import Study, empty_executor
from cook.build.prepare import prepare
from cook.output import Mode, Output
from cook.search.evaluate import Replays
from cook.search.job import SearchJob, SearchRequest
from cook.search.space import Mix, Space

EVALUATIONS = 200
MOST_RATIO = 1.5
TYPES = ("q2_K", "q4_K", "q6_K", "q8_0")


def search_cost(evaluations: int = EVALUATIONS) -> Study:
    """The whole time over that of decoding."""
    request = SearchRequest(Path("demo"), 1 << 40, Path("unused"), types=TYPES, threads=1)
    job = SearchJob.of(request, prepare(request.recipe, threads=1, output=Output(Mode.QUIET)))
    prompts = tuple(name for share in job.rounds for name in share)
    with empty_executor() as executor:
        replays = Replays(job.deployed, job.space, executor)
        replays.prepare()
        replays([_uniform(job.space, t) for t in TYPES], prompts)  # every tensor is stored now
        mixes = _by_lot(job.space, evaluations)
        began = time.perf_counter()
        replays(mixes, prompts)
        taken_s = time.perf_counter() - began
        steps = [job.deployed.variant(replays.quantized(mix), prompts) for mix in mixes]
        outcomes = [executor.outcomes.result(step) for step in steps]
    decode_s = sum(o.decode_ns for o in outcomes if o is not None) / 1e9
    ratio = taken_s / decode_s
    line = (
        f"{evaluations} evaluations over a store / prefill of their traces: {ratio:.3f}x, at most "
        f"{MOST_RATIO}x; {taken_s / evaluations:.3f} s each"
    )
    return Study((line,), ratio <= MOST_RATIO)


def _uniform(space: Space, type_name: str) -> Mix:
    return tuple(type_name for _ in space.ties)


def _by_lot(space: Space, count: int) -> list[Mix]:
    rng = np.random.default_rng(5)
    found: dict[Mix, None] = {}
    while len(found) < count:
        found[tuple(str(rng.choice(types)) for types in space.types)] = None
    return list(found)
