"""The draft behind llama.cpp's rpc server and a shaped link: predicted against live.

Fitted on the link as it is, without delay, and on half of the prompts; judged on the other half
behind round trips of 0.1, 1 and 5 ms. What a link's round trip really is, is measured through a
relay like it. Runs at all delays take turns.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import mean

from bench.demo_score import UNPACKED_TARGET, study_layout
from bench.link import ShapedLink
from bench.prediction import with_passes
from bench.study import Study, empty_executor
from cook.build.forecast import Forecaster
from cook.build.slot_speeds import parallel_run
from cook.engines.server import free_port
from cook.record.prompt_runs import PromptRun
from cook.scoring.figures import figures, merge_repeats
from cook.scoring.link import Link
from cook.steps.live import LiveStep

PROGRAM = "ggml-rpc-server"
DELAYS_S = (0.0, 0.0001, 0.001, 0.005)
DRAFT, LENGTH = "Q4_K_M", 4
MOST = 0.10


def rpc_server(bin_dir: str) -> Path | None:
    """The engine's own, else what ``COOK_RPC_SERVER`` names."""
    named = os.environ.get("COOK_RPC_SERVER") or shutil.which(PROGRAM, path=bin_dir)
    return Path(named) if named else None


def remote_draft(turns: int = 3, limit: int = 16) -> Study:
    """The demo pair, the draft with four tokens a cycle."""
    layout = study_layout(
        "replay", limit=limit, tokens=96, n_max=(LENGTH,), quants=(DRAFT,), target=UNPACKED_TARGET
    )
    assert layout.forecast is not None, "asked for"
    assert layout.baseline is not None, "asked for"
    program = rpc_server(layout.engine.facts.bin_dir)
    if program is None:
        return Study((f"remote draft: the engine has no {PROGRAM} (COOK_RPC_SERVER)",), True)
    (drafting,) = layout.grid
    with empty_executor() as executor, _served(program) as port:
        plan = with_passes(layout.forecast, turns)
        (draft,) = plan.drafts
        executor.run([plan.trace, *draft.replays])
        order = [head.id for head in Forecaster(plan, executor.outcomes).trace.heads]
        ran: dict[float | None, list[LiveStep]] = {}
        trips: dict[float, float] = {}
        for turn in range(turns):
            executor.run(plan.timing(turn))
            bare = parallel_run(layout.baseline, 1, order, repeat=1 + turn)
            executor.run([bare])
            ran.setdefault(None, []).append(bare)
            for delay_s in DELAYS_S:
                with ShapedLink(port, delay_s) as link:
                    trips[delay_s] = link.measured_round_trip_s()
                    step = _behind(parallel_run(drafting, 1, order, repeat=1 + turn), link.port)
                    executor.run([step])
                    ran.setdefault(delay_s, []).append(step)
        for failure in executor.outcomes.failures.values():
            raise failure.error

        def runs(delay_s: float | None) -> dict[str, PromptRun]:
            outcomes = (executor.outcomes.result(step) for step in ran[delay_s])
            return {run.id: run for run in merge_repeats(o.runs for o in outcomes if o)}

        plain, near = runs(None), runs(0.0)
        fitted = frozenset(list(plain)[::2])
        assert drafting.settings is not None, "it drafts"
        overheads = Forecaster(plan, executor.outcomes).fitted(
            {name: run for name, run in plain.items() if name in fitted},
            [(drafting.settings, {n: run for n, run in near.items() if n in fitted})],
            draft,
        )
        lines = [f"demo, {DRAFT} n_max={LENGTH} behind {PROGRAM}: predicted / live decode t/s:"]
        errors = []
        for delay_s in DELAYS_S:
            link_to = Link(max(0.0, trips[delay_s] - trips[0.0]))
            forecaster = Forecaster(plan, executor.outcomes, link=link_to)
            judged = set(plain) - fitted
            told = next(
                f for f in forecaster.forecasts(overheads, judged) if f.key.settings is not None
            )
            live = figures([r for name, r in runs(delay_s).items() if name in judged]).decode_speed
            assert live is not None, "it wrote replies"
            errors.append(told.decode_speed / live - 1)
            lines.append(
                f"  {1000 * delay_s:g} ms ({1000 * trips[delay_s]:.2f} through the relay): "
                f"{told.decode_speed:8.1f} / {live:8.1f}, {errors[-1]:+.1%}"
            )
    lines.append(
        f"remote draft: worst error {max(map(abs, errors)):.1%}, mean "
        f"{mean(map(abs, errors)):.1%} (at most {MOST:.0%})"
    )
    return Study(tuple(lines), max(map(abs, errors)) <= MOST)


def _behind(step: LiveStep, port: int) -> LiveStep:
    """``step`` with its draft on the rpc server's device, and the target where it was."""
    target = replace(step.target_args, rpc=(f"127.0.0.1:{port}",), devices=("none",))
    draft = replace(step.draft_args, devices=("RPC0",), n_gpu_layers=99)
    return replace(step, target_args=target, draft_args=draft)


@contextmanager
def _served(program: Path) -> Iterator[int]:
    """The rpc server on loopback, with one thread; its port."""
    port = free_port()
    argv = [str(program), "-H", "127.0.0.1", "-p", str(port), "-t", "1"]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as running:
        try:
            time.sleep(1)
            yield port
        finally:
            running.kill()
