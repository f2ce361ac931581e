"""Scoring eight drafts by replay against eight live server runs of the same prompts.

The demo's target is tiny, so a live run costs it little: with real targets the ratio grows with
the target's size, since replay never runs it. Both sides are told with and without what is
spent once (the trace; the baseline).
"""

from __future__ import annotations

from bench.demo_score import study_layout
from bench.study import Study, empty_executor

LEAST_RATIO = 5.0


def replay_vs_live() -> Study:
    """Sum of the seconds of the steps, each run once, alone."""
    replayed = study_layout("replay", limit=24, tokens=128, n_max=(4,))
    live = study_layout("live", limit=24, tokens=128, n_max=(4,))
    assert replayed.forecast is not None, "asked for"
    with empty_executor() as executor:
        executor.run([d.quantize for d in live.drafts if d.quantize is not None])
        executor.run([replayed.forecast.trace])
        replays = [step for d in replayed.forecast.drafts for step in d.replays]
        executor.run(replays)
        runs = [c.live for c in live.grid]
        executor.run(runs)
        seconds = {key: a.seconds for key, a in executor.outcomes.artifacts.items()}
        lost = [f.error.message for f in executor.outcomes.failures.values()]
    if lost:
        return Study((f"replay against live: failed: {lost[0]}",), within=False)
    trace_s = seconds[replayed.forecast.trace.key]
    replay_s = sum(seconds[step.key] for step in replays)
    live_s = sum(seconds[step.key] for step in runs)
    drafts = len(live.grid)
    ratio = live_s / replay_s
    whole = live_s / (replay_s + trace_s)
    return Study(
        (
            f"{drafts} drafts, 24 prompts x 128 tokens: live {live_s:.1f} s, replay "
            f"{replay_s:.1f} s: {ratio:.1f}x, at least {LEAST_RATIO:g}x; with the trace, recorded "
            f"once in {trace_s:.1f} s: {whole:.1f}x",
        ),
        ratio >= LEAST_RATIO,
    )
