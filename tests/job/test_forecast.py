"""Forecasts are arithmetic over artifacts: counts as simulated, times as measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from cook.engines.base import DraftSettings
from cook.formats.quant_types import Flavour
from cook.job.forecast import Forecaster
from cook.job.layout import ForecastPlan
from cook.record.record import CandidateKey
from cook.scoring.compare import figures
from cook.scoring.ngram import NgramServer
from cook.scoring.price import Forecast
from cook.scoring.simulate import Positions, Profile, simulate
from cook.steps.replay import ngram_request
from tests.job.fabricated import Fabrication, World, prompt_set
from tests.job.laid_out import layout, score

ALL = [p.id for p in prompt_set().prompts]
PICK = [p.id for p in prompt_set().prompts if p.half == "pick"]


def forecaster(
    folder: Path, world: World | None = None, *, run: bool = True, **changes: Any
) -> tuple[Forecaster, Fabrication]:
    """Everything replayed and timed, for a score with ``changes``."""
    laid_out = layout(score(**changes))
    fabrication = Fabrication(folder, world)
    assert laid_out.forecast is not None
    if run:
        fabrication.run(laid_out.forecast.steps())
    return Forecaster(laid_out.forecast, fabrication.outcomes), fabrication


def test_no_draft_first_then_every_draft_with_every_setting(tmp_path: Path) -> None:
    found, _ = forecaster(tmp_path)
    forecasts = found.forecasts(PICK)
    assert [f.name for f in forecasts] == [
        "no draft",
        *(f"{draft} n_max={n}" for draft in ("small", "large") for n in (2, 4, 8)),
    ]
    bare = forecasts[0]
    assert (bare.key, bare.by_depth) == (CandidateKey("bundled"), ())
    for forecast in forecasts:
        assert [run.id for run in forecast.runs] == PICK
        assert all((run.draft_n is None) == (forecast.key.draft is None) for run in forecast.runs)


def test_counts_are_the_simulators(tmp_path: Path) -> None:
    found, fabrication = forecaster(tmp_path)
    forecast = next(f for f in found.forecasts(ALL) if f.name == "large n_max=4")
    replies = {r.head.id: r for r in fabrication.trace_of(found.plan.trace)}
    for run in forecast.runs:
        head = replies[run.id].head
        positions = Positions(
            head.prompt_tokens,
            head.emitted,
            fabrication.matches("large", replies[run.id]),
            eog=np.isin(replies[run.id].tokens, [2]),
            n_predict=24,
            context=2048,
        )
        counted = simulate(positions, DraftSettings(4), Profile.MAINLINE_2026_10)
        assert (run.draft_n, run.draft_n_accepted) == (counted.draft_n, counted.draft_n_accepted)
        assert (run.prompt_n, run.predicted_n) == (head.prompt_tokens, head.emitted)
    assert sum(d.drafted for d in forecast.by_depth) == figures(forecast.runs).drafted
    assert sum(d.accepted for d in forecast.by_depth) == figures(forecast.runs).accepted


def test_rivals_are_simulated_in_the_order_of_the_trace(tmp_path: Path) -> None:
    """Priced as no draft is; whichever prompts are asked for, the server answered all before."""
    wanted = ["ngram-cache", {"type": "ngram-map-k", "size_n": 2, "size_m": 4}]
    found, fabrication = forecaster(tmp_path, World(reply_tokens=40), rivals=wanted, max_tokens=40)
    forecasts = found.forecasts(PICK)
    bare, *rivals = [f for f in forecasts if not f.key.is_file]
    assert [f.name for f in rivals] == ["ngram-cache", "ngram-map-k size_n=2 size_m=4"]
    trace = fabrication.trace_of(found.plan.trace)
    for forecast in rivals:
        assert forecast.key.ngram is not None
        server = NgramServer(forecast.key.ngram, Flavour.LLAMA_CPP)
        counted = {
            reply.head.id: server.answer(ngram_request(trace, reply, n_predict=40, context=2048))
            for reply in trace
        }
        assert [run.id for run in forecast.runs] == PICK
        assert [run.draft_n for run in forecast.runs] == [counted[i].draft_n for i in PICK]
        assert forecast.spent.draft_s == forecast.spent.mirror_s == 0
    assert bare.spent.verify_s > 0
    assert sum(run.draft_n or 0 for run in rivals[1].runs) > 0
    (again,) = (f for f in found.forecasts(PICK[:3]) if f.key == rivals[1].key)
    assert again.runs == rivals[1].runs[:3], "the server answered what came before all the same"


def test_targets_without_flash_attention_are_timed_with_their_servers_rows() -> None:
    def plan(**changes: Any) -> ForecastPlan:
        found = layout(score(draft={"n_max": [2, 8]}, **changes)).forecast
        assert found is not None
        return found

    without = {"flash_attention": False}
    target = {"source": "/models/target.gguf", "args": without}
    usual, shared = plan(), plan(target=target)
    apart = plan(target=target, baseline={"args": {**without, "threads": 3}})
    curves = (usual.verify, shared.verify, apart.verify, apart.plain)
    assert [c.rows for c in curves if c] == [(), (1, 3, 9), (3, 9), (1,)]
    assert {draft.curve.rows for draft in shared.drafts if draft.curve} == {()}


def test_only_who_asks_for_rivals_has_other_timings() -> None:
    plain = layout(score()).forecast
    asked = layout(score(rivals="ngram-mod")).forecast
    assert plain.verify.key != asked.verify.key
    assert asked.verify.widths[-1] == 65, "as wide as its longest draft, and the token before"
    assert [d.replay.key for d in plain.drafts] == [d.replay.key for d in asked.drafts]


def test_a_draft_that_was_not_replayed_or_timed_is_left_out(tmp_path: Path) -> None:
    for part in ("replay small", "draft times small"):
        found, _ = forecaster(tmp_path / part, World(failing=(part,)))
        drafts = {f.key.draft for f in found.forecasts(PICK)}
        assert drafts == {None, "large"}
    found, _ = forecaster(tmp_path / "target", World(failing=("verification curve",)))
    assert found.forecasts(PICK) == []
    found, _ = forecaster(tmp_path / "nothing", run=False)
    assert found.forecasts(PICK) == []


def speeds(forecasts: list[Forecast]) -> list[float]:
    return [f.figures.decode_speed or 0.0 for f in forecasts]
