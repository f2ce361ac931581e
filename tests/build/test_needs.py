"""What steps need of a machine: memory for the models that they load, and devices."""

from __future__ import annotations

from dataclasses import replace

from cook.build.needs import needs_of
from cook.graph.step import Needs
from cook.steps.deal import DealStep
from tests.build.laid_out import SIZES, TARGET, layout, score


def test_a_live_run_holds_target_and_draft_and_a_replay_the_draft() -> None:
    laid = layout()
    assert laid.forecast is not None
    large, small = (
        next(c for c in laid.grid if c.draft is not None and c.draft.name == name)
        for name in ("large", "small")
    )
    assert needs_of(large.live) == Needs(TARGET.size_bytes + SIZES["large"])
    both = DealStep((large.live, small.live), 0, True)
    assert needs_of(both) == Needs(TARGET.size_bytes + sum(SIZES.values())), "the target once"
    replay = next(d for d in laid.forecast.drafts if d.draft.name == "small").replays[0]
    assert needs_of(replay) == Needs(SIZES["small"])


def test_layers_on_a_device_need_one() -> None:
    placed = {"source": "/models/target.gguf", "args": {"n_gpu_layers": 99}}
    laid = layout(score(target=placed))
    assert laid.forecast is not None
    assert needs_of(laid.forecast.trace).device
    assert laid.baseline is not None
    live = laid.baseline.live
    assert needs_of(DealStep((live,), 0, True)).device
    replay = laid.forecast.drafts[0].replays[0]
    assert not needs_of(replay).device
    assert needs_of(replace(replay, args=replace(replay.args, devices=("CUDA0",)))).device
