"""Changes of speed: paired requests, server starts, the noise between nights."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cook.nightly.history import Night
from cook.nightly.speed import StartError, speed_change, start_error
from cook.record.record import PromptFigures
from cook.scoring.compare import APART
from tests.nightly.nights import Series, World

MS = "decode_ms"
NONE = StartError(deviation=0.0)


def figures(ms: list[float], starts: int = 1) -> PromptFigures:
    n = len(ms)
    block = tuple(i * starts // n for i in range(n))
    return PromptFigures(
        ids=tuple(f"p{i}" for i in range(n)),
        categories=("c",) * n,
        tokens=(100,) * n,
        decode_ms=tuple(ms),
        wall_ms=tuple(ms),
        drafted=(None,) * n,
        accepted=(None,) * n,
        block=block,
        start=block,
    )


def test_the_change_is_the_ratio_of_sums() -> None:
    now, before = figures([100.0, 300.0]), figures([110.0, 330.0])
    found = speed_change((now, before), (), NONE, MS)
    assert found.change == pytest.approx(math.log(1.1))
    assert found.error == pytest.approx(0.0)
    plain = figures([50.0, 50.0])
    found = speed_change((now, plain), [(before, plain), (before, plain)], NONE, MS)
    assert found.change == pytest.approx(math.log(1.1))


def test_requests_are_paired_by_prompt_and_block() -> None:
    """A second pass is a request of its own; what one side has not is left out."""
    now = replace(figures([100.0, 200.0, 50.0]), ids=("a", "b", "a"), block=(0, 0, 1))
    before = replace(figures([220.0, 50.0, 100.0]), ids=("b", "a", "c"), block=(0, 1, 1))
    found = speed_change((now, before), (), NONE, MS)
    assert found.requests == 2
    assert found.change == pytest.approx(math.log(270 / 250))
    assert speed_change((now, replace(before, ids=("x", "y", "z"))), (), NONE, MS) is None
    assert speed_change((now, replace(before, tokens=(0, 0, 0))), (), NONE, MS) is None


def test_the_error_is_that_of_the_requests_and_the_starts() -> None:
    rng = np.random.default_rng(1)
    changes, errors = [], []
    for _ in range(400):
        start = rng.normal(0, 0.01, (2, 4))[:, np.arange(40) * 4 // 40]
        ms = 100 * np.exp(start + rng.normal(0, 0.03, (2, 40)))
        now, before = (figures(row.tolist(), starts=4) for row in ms)
        found = speed_change((now, before), (), StartError(0.01), MS)
        changes.append(found.change)
        errors.append(found.error)
    expected = math.sqrt(2 * 0.01**2 / 4 + 2 * 0.03**2 / 40)
    assert np.mean(errors) == pytest.approx(expected, rel=0.05)
    assert np.std(changes) == pytest.approx(expected, rel=0.12)


@settings(max_examples=30, deadline=None)
@given(scale=st.floats(0.2, 5.0), nights=st.integers(1, 4))
def test_a_night_on_a_faster_clock_has_the_same_speedup(scale: float, nights: int) -> None:
    now, plain = figures([100.0, 210.0, 90.0]), figures([130.0, 190.0, 140.0])
    slow = [figures([ms * scale for ms in one.decode_ms]) for one in (now, plain)]
    found = speed_change((now, plain), [(slow[0], slow[1])] * nights, NONE, MS)
    assert found.change == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("starts", [1, 4])
def test_the_noise_of_starts_is_measured_from_three_nights_on(starts: int) -> None:
    series = Series(World(start_noise=0.03, starts=starts), seed=9)
    nights = [series.measure() for _ in range(20)]
    assert start_error(nights[:2], MS) == StartError()
    assert StartError().deviation == APART
    found = start_error(nights, MS)
    assert found.nights == 20
    assert found.freedom == pytest.approx(19 * 3 / 1.5)
    assert found.deviation == pytest.approx(0.03, rel=0.25)


def test_a_loss_that_creeps_is_no_noise() -> None:
    steady = Series(World(), seed=9)

    def slower(by: float) -> Night:
        night = steady.measure()
        plain, drafted = night.live[:2]
        ms = tuple(by * ms for ms in drafted.prompts.decode_ms)
        drafted = replace(drafted, prompts=replace(drafted.prompts, decode_ms=ms))  # type: ignore[type-var]
        return replace(night, record=replace(night.record, candidates=(plain, drafted)))

    assert start_error([slower(1.01**n) for n in range(12)], MS).deviation < 0.015


def test_no_drafts_own_speed_has_the_noise_of_whole_nights() -> None:
    series = Series(World(start_noise=0.0, night_noise=0.02, slow_nights=0.0), seed=3)
    nights = [series.measure() for _ in range(30)]
    found = start_error(nights, MS, plain="bundled")
    assert found.deviation == pytest.approx(0.02, rel=0.4)
    assert start_error(nights, MS, plain="ik") == StartError()


def test_the_power_is_printed_with_the_starts_that_the_tolerance_needs() -> None:
    rng = np.random.default_rng(2)
    now, before = (figures((100 * np.exp(rng.normal(0, 0.02, 112))).tolist()) for _ in range(2))
    found = speed_change((now, before), (), StartError(0.03, 60.0, 12), MS)
    assert found is not None
    text = found.power_text(0.0075, -math.log(0.98))
    assert text.startswith("1 start a side and 112 requests find a loss of ")
    needed = int(text.split(" needs ")[1].split()[0])
    reach = found.reach(0.0075) * math.hypot(found.request_error, 0.03 * math.sqrt(2 / needed))
    assert 0.95 * 0.0202 < reach <= 0.0203
    assert "3.0% a start (measured in 12 nights)" in text
    noisy = replace(found, request_error=0.05)
    assert "needs more prompts" in noisy.power_text(0.0075, 0.02)
