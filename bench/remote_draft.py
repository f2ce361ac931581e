"""The draft behind llama.cpp's rpc server and a shaped link: predicted against live.

What live steps take of what was timed is told by the link as it is, without delay, on half of the
prompts; judged is the other half behind round trips of 0.1, 1 and 5 ms. What a link's round trip
really is, is measured through a relay like it. Runs at all delays take turns.
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
from statistics import mean, median

from bench.demo_score import UNPACKED_TARGET, study_layout
from bench.link import ShapedLink
from bench.study import Study, empty_executor
from cook.build.forecast import Forecaster
from cook.build.slot_speeds import parallel_run
from cook.engines.server import free_port
from cook.scoring.figures import figures
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
    program = rpc_server(layout.engine.facts.bin_dir)
    if program is None:
        return Study((f"remote draft: the engine has no {PROGRAM} (COOK_RPC_SERVER)",), True)
    (drafting,) = layout.grid
    with empty_executor() as executor, _served(program) as port:
        plan = layout.forecast
        executor.run(plan.steps())
        order = [head.id for head in Forecaster(plan, executor.outcomes).trace.heads]
        ran: dict[float, list[LiveStep]] = {}
        trips: dict[float, float] = {}
        for turn in range(turns):
            for delay_s in DELAYS_S:
                with ShapedLink(port, delay_s) as link:
                    trips[delay_s] = link.measured_round_trip_s()
                    step = _behind(parallel_run(drafting, 1, order, repeat=1 + turn), link.port)
                    executor.run([step])
                    ran.setdefault(delay_s, []).append(step)
        for failure in executor.outcomes.failures.values():
            raise failure.error

        def live_speed(delay_s: float, only: set[str]) -> float:
            """Decode speed of those requests, the median over turns."""
            outcomes = (executor.outcomes.result(step) for step in ran[delay_s])
            asked = [[r for r in o.runs if r.id in only] for o in outcomes if o is not None]
            return median(figures(runs).decode_speed or 0.0 for runs in asked)

        def told(forecaster: Forecaster, only: set[str]) -> float:
            found = forecaster.forecasts(only)
            return next(f.decode_speed for f in found if f.key.settings is not None)

        fitted = set(order[::2])
        judged = set(order) - fitted
        factor = told(Forecaster(plan, executor.outcomes), fitted) / live_speed(0.0, fitted)
        lines = [f"demo, {DRAFT} n_max={LENGTH} behind {PROGRAM}: predicted / live decode t/s:"]
        errors = []
        for delay_s in DELAYS_S:
            link_to = Link(max(0.0, trips[delay_s] - trips[0.0]))
            said = told(Forecaster(plan, executor.outcomes, link=link_to), judged) / factor
            live = live_speed(delay_s, judged)
            errors.append(said / live - 1)
            lines.append(
                f"  {1000 * delay_s:g} ms ({1000 * trips[delay_s]:.2f} through the relay): "
                f"{said:8.1f} / {live:8.1f}, {errors[-1]:+.1%}"
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
