"""Fewer active experts in a draft: what that does to acceptance, to the counts, and to the pick.

``acceptance``: the demo's target as its own draft, and the demo's draft, at every number of
experts, run live at temperature 0; what replay makes of the emitted tokens is compared with the
server's counts, and the outputs with those of no draft. Not a timing. ``pick``: a build over
quants and experts whose pick is compared with the best of what uses all experts. ``cost``: what
one more such candidate takes, or one with another output head.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.counts import counted
from bench.random_model import write_random_model
from bench.study import Study, empty_executor
from bench.tensor_reuse import SHAPE
from cook.build.layout import Layout
from cook.build.prepare import prepare
from cook.build.run import build
from cook.engines.discover import discover
from cook.files import digest, shares_blocks
from cook.formats.reduction import Reduction
from cook.graph.execute import Executor
from cook.graph.step import source
from cook.graph.store import Store
from cook.output import Mode, Output
from cook.recipe.load import parse_recipe
from cook.record.record import Candidate, Record
from cook.steps.deal import DealStep, Dealt
from cook.steps.head import HeadStep
from cook.steps.reduce import ReduceStep
from cook.units import size

ENGINE = os.environ.get("COOK_BENCH_ENGINE", "bundled")
MOST_POINTS = 0.5
MARGIN = 0.01
"""Of a pick where its recipe says none."""
NEAR_TIE = 0.1
"""Logit gap of two tokens that another batch width may swap: the draft changes none else."""
ACCEPTANCE = """\
version: 1
name: acceptance
drafts:
  - {name: target, source: "demo://target-q8_0.gguf", experts: [6, 5, 4, 3, 2, 1]}
  - {name: layers, source: "demo://target-q8_0.gguf", prune_layers: [1, 2, 3, 4]}
  - {name: draft, source: "demo://draft-f16.gguf", experts: [2, 1]}
score:
  method: METHOD
  target: {source: "demo://target-q8_0.gguf", args: {threads: 1, flash_attention: false}}
  prompts: demo
  categories: [docstring, tests, prose, class, function-body, literal]
  limit: 16
  max_tokens: 128
  context: 2048
  draft: {n_max: 4, args: {threads: 1}}
"""
PICK = """\
version: 1
name: pick
model: {source: "demo://draft-f16.gguf"}
imatrix: {corpus: "demo://data/calibration.txt", chunks: 40, args: {threads: 1}}
quants:
  - {name: Q8_0, type: Q8_0, experts: [2, 1]}
  - {name: Q4_K_M, extends: Q8_0, type: Q4_K_M}
  - {name: Q2_K, extends: Q8_0, type: Q2_K}
score:
  target: {source: "demo://target-q8_0.gguf", args: {threads: 1, flash_attention: false}}
  prompts: demo
  limit: 40
  max_tokens: 96
  context: 2048
  draft: {n_max: [2, 3, 4, 6], args: {threads: 1}}
  live_budget: {minutes: 4}
pick: {maximize: decode_speed}
"""


def acceptance() -> Study:
    """Acceptance by active experts and by layers left out; counts and outputs."""
    live, traced = (_layout(method) for method in ("live", "replay"))
    lines, within = [], True
    with empty_executor() as executor:
        assert live.baseline is not None, "asked for"
        for configuration, found in counted(executor, live, traced):
            block = DealStep((live.baseline.live, configuration.live), 0, together=True)
            dealt = (Dealt((block,), name) for name in block.names)
            compare = live.compare(configuration, *dealt)
            executor.run([block, compare])
            output = executor.outcomes.result(compare)
            assert output is not None, "it was compared"
            gaps = [abs(d.gap) if d.gap is not None else 99.0 for d in output.differences]
            within &= abs(found.points) <= MOST_POINTS
            within &= max(gaps, default=0.0) <= NEAR_TIE
            lines.append(
                f"  {configuration.name:32} {found}; {output.identical} of {output.replies} "
                f"replies as without a draft, the others part at gaps of {max(gaps, default=0):.3f}"
                " at most"
            )
    return Study((f"acceptance on {ENGINE}, n_max 4, temperature 0", *lines), within)


def _layout(method: str) -> Layout:
    loaded = parse_recipe(ACCEPTANCE.replace("METHOD", method), Path("experts.yaml").absolute())
    return prepare(loaded, engines=[ENGINE]).layouts[0]


def pick() -> Study:
    """The pick over quants and experts beside the best quant at full experts."""
    loaded = parse_recipe(PICK, Path("experts.yaml").absolute())
    with TemporaryDirectory(prefix="cook-bench-") as home:
        before = os.environ.get("COOK_HOME")
        os.environ["COOK_HOME"] = home
        try:
            record = build(prepare(loaded, engines=[ENGINE]), Output(Mode.QUIET), threads=1).record
        finally:
            os.environ.pop("COOK_HOME")
            os.environ |= {"COOK_HOME": before} if before is not None else {}
    return judged(record)


def judged(record: Record) -> Study:
    """Whether the best of fewer experts beats the best of all of them, ties with it, or loses; as
    sure as the record is of its own choice."""
    speeds = {
        c.name: speed
        for c in record.candidates
        if c.predicted is not None and (speed := c.predicted.figures.decode_speed) is not None
    }
    drafting = [c for c in record.candidates if c.draft is not None and c.name in speeds]
    full = max((c for c in drafting if _is_full(record, c)), key=lambda c: speeds[c.name])
    fewer = max((c for c in drafting if not _is_full(record, c)), key=lambda c: speeds[c.name])
    chosen = record.candidate(record.pick.candidate or "")
    gain = speeds[fewer.name] / speeds[full.name] - 1
    told = "equal within the margin" if abs(gain) <= MARGIN else "faster" if gain > 0 else "slower"
    if not record.pick.decided:
        told += " as predicted, but undecided"
    ranked = sorted(speeds, key=lambda name: -speeds[name])
    lines = [f"  {name:36} predicted {speeds[name]:7.1f} t/s" for name in ranked[:8]]
    lines += [
        f"  fewer experts at best, {fewer.name}, to all at best, {full.name}: {gain:+.1%}: {told}",
        f"  pick: {record.pick.sentence}",
    ]
    worse = chosen is None or (_is_full(record, chosen) and gain > MARGIN)
    return Study(("pick over quants and experts", *lines), within=not worse)


def _is_full(record: Record, candidate: Candidate) -> bool:
    """Whether it drafts with both of the experts that a token of the demo's draft uses."""
    draft = record.draft(candidate.draft)
    return draft is not None and (draft.reduction is None or draft.reduction.experts == 2)


def cost() -> Study:
    """What one more candidate takes, of a model of 320 MB: seconds, and new bytes of the disk.

    ``COOK_BENCH_DIR``: a directory to try it in, such as one on XFS or btrfs; beside it a plain
    copy of the file, hashed and synced as an artifact is.
    """
    lines, within = [], True
    with TemporaryDirectory(prefix="cook-bench-", dir=os.environ.get("COOK_BENCH_DIR")) as folder:
        home = Path(folder)
        shared = shares_blocks(home)
        model = write_random_model(home / "model.gguf", SHAPE)
        whole = source([model])
        copy_s = _seconds(partial(_copied, model, home / "copy.gguf"))
        (home / "copy.gguf").unlink()
        with Executor(Store(home / "store"), Output(Mode.QUIET), logs=home / "logs") as executor:
            reductions = (Reduction(1), Reduction(None, (1,)), Reduction(1, (0, 2)))
            engine, heads = discover(ENGINE), ("q8_0", "q6_K", "q4_0")
            steps: list[ReduceStep | HeadStep] = [
                *(ReduceStep(str(one), whole, one) for one in reductions),
                *(HeadStep(engine, f"output={one}", whole, one) for one in heads),
            ]
            executor.run([HeadStep(engine, "output=q5_0", whole, "q5_0")])  # the worker is compiled
            for step in steps:
                # The piece, and its copy in the file.
                head_bytes = 2 * sum(step.shared_bytes().values())
                os.sync()
                before = _used_bytes(home)
                seconds = _seconds(partial(executor.run, [step]))
                os.sync()
                new_bytes = _used_bytes(home) - before
                most_bytes = MOST_BYTES + head_bytes
                within &= not shared or (seconds <= MOST_S and new_bytes <= most_bytes)
                told = f", {head_bytes / 1e6:.2f} of it the head's" if head_bytes else ""
                took = f"{seconds:5.2f} s, {new_bytes / 1e6:7.2f} MB of new disk"
                lines.append(f"  {step.name:32} {took}{told}")
    head = (
        f"one more candidate of {size(whole.size_bytes)}, blocks {'' if shared else 'not '}shared; "
        f"copied, synced and hashed {copy_s:.2f} s"
    )
    return Study((head, *lines), within)


MOST_S, MOST_BYTES = 1.0, 1 << 20


def _seconds(work: Callable[[], object]) -> float:
    started = time.monotonic()
    work()
    return time.monotonic() - started


def _copied(model: Path, copy: Path) -> None:
    with model.open("rb") as file, copy.open("wb") as out:
        while part := file.read(8 << 20):
            out.write(part)
        out.flush()
        os.fsync(out.fileno())
    digest(copy)


def _used_bytes(folder: Path) -> int:
    found = os.statvfs(folder)
    return (found.f_blocks - found.f_bfree) * found.f_frsize
