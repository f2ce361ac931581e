"""Figures are sums over sums, weighted by category where asked."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cook.record.record import Objective, PromptRun
from cook.scoring.compare import by_category, by_prompt, figures


def run(
    id: str,
    category: str = "code",
    tokens: int = 101,
    ms: float = 1000.0,
    drafted: int | None = None,
    accepted: int | None = None,
) -> PromptRun:
    return PromptRun(
        id=id,
        category=category,
        prompt_n=10,
        prompt_ms=50.0,
        predicted_n=tokens,
        predicted_ms=ms,
        wall_ms=ms + 100.0,
        draft_n=drafted,
        draft_n_accepted=accepted,
        tokens=(1, 2, 3),
        text="abc",
        stop="limit",
    )


def test_speed_is_tokens_after_the_first_over_time() -> None:
    found = figures([run("a"), run("b", ms=3000.0)])
    assert found.decode_speed == pytest.approx(1000 * 200 / 4000)
    assert found.end_to_end_speed == pytest.approx(1000 * 200 / 4200)
    assert found.drafted is None
    assert found.acceptance_rate is None


def test_acceptance_keeps_its_parts() -> None:
    found = figures([run("a", drafted=100, accepted=60), run("b", drafted=50, accepted=15)])
    assert (found.accepted, found.drafted, found.cycles) == (75, 150, 125)
    assert found.acceptance_rate == pytest.approx(0.5)
    assert found.acceptance_length == pytest.approx(1 + 75 / 125)


def test_acceptance_is_weighted_as_speeds_are() -> None:
    """Objective, ranking and interval look at one figure; it was the unweighted one."""
    runs = [
        run("a", "code", tokens=101, drafted=100, accepted=80),
        run("b", "prose", tokens=1001, drafted=2000, accepted=200),
    ]
    plain, weighted = figures(runs), figures(runs, {"code": 3.0, "prose": 1.0})
    assert Objective.ACCEPTANCE.of(plain) == pytest.approx(280 / 2100)
    # of 100 and 1000 tokens: 3/100 and 1/1000 of each count
    rate = (3 * 0.8 + 0.2) / (3 * 1.0 + 2.0)
    assert Objective.ACCEPTANCE.of(weighted) == pytest.approx(rate)
    assert weighted.acceptance_rate == plain.acceptance_rate, "counts stay counts"
    length = 4.0 / (3 * 0.2 + 0.8)
    assert Objective.ACCEPTANCE_LENGTH.of(weighted) == pytest.approx(length)


def test_weights_give_the_harmonic_mean_of_the_categories() -> None:
    runs = [run("a", "code", ms=500.0), run("b", "prose", tokens=1001, ms=10_000.0)]
    speeds = {c: f.decode_speed or 0 for c, f in by_category(runs).items()}
    found = figures(runs, {"code": 3.0, "prose": 1.0})
    assert found.decode_speed == pytest.approx(4 / (3 / speeds["code"] + 1 / speeds["prose"]))


@given(st.lists(st.floats(10, 1000), min_size=1, max_size=8))
def test_equal_weights_by_tokens_are_no_weights(times: list[float]) -> None:
    runs = [run(str(i), f"c{i}", ms=ms) for i, ms in enumerate(times)]
    weighted = figures(runs, {f"c{i}": 1.0 for i in range(len(times))})
    assert weighted.decode_speed == pytest.approx(figures(runs).decode_speed)


def test_requests_are_kept_as_they_were_dealt() -> None:
    dealt = [replace(run("a"), block=2, order=3), replace(run("b"), block=5, order=1)]
    found = by_prompt(dealt, live=True)
    assert (found.ids, found.block, found.order) == (("a", "b"), (2, 5), (3, 1))
    assert found.start == (0, 1), "each block has a server of its own"
    assert found.prompt_ms == (50.0, 50.0)
    forecast = by_prompt(dealt)
    assert (forecast.block, forecast.order, forecast.start) == ((), (), ())
