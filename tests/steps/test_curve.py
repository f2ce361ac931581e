"""Which widths and prompt lengths are timed, and how often."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cook.engines.base import ModelArgs
from cook.engines.worker.messages import DecodeTimes, ModelLoad
from cook.errors import StepError
from cook.formats.quant_types import Flavour
from cook.steps.curve import (
    CYCLES,
    MOST_POINTS,
    READ_STEP,
    SLOW_S,
    TURNS,
    CurveOutcome,
    CurveStep,
    SlotCurveOutcome,
    _slot_rows,
    _Times,
    grid_of,
    rows_for,
    sequences_for,
    widths_for,
)


@given(st.sets(st.integers(1, 32), min_size=1))
def test_every_full_verification_is_timed_as_it_is(lengths: set[int]) -> None:
    widths = widths_for(lengths)
    assert set(widths) >= {1, *(n + 1 for n in lengths)}
    assert list(widths) == sorted(set(widths))
    assert max(widths) == max(lengths) + 1


LENGTHS = st.lists(
    st.tuples(st.integers(1, 30_000), st.integers(1, 2_000)), min_size=1, max_size=30
)


@given(LENGTHS, st.sampled_from([128, 512, 2048]))
def test_what_is_decoded_is_between_what_is_timed(
    texts: list[tuple[int, int]], ubatch: int
) -> None:
    prompts, ends = [p for p, _ in texts], [p + n for p, n in texts]
    grid = grid_of(prompts, ends, ubatch)
    for axis in (grid.depths, grid.prompts):
        assert list(axis) == sorted(set(axis))
    assert len(grid.depths) <= MOST_POINTS
    long = [size for size in grid.prompts if size >= ubatch]
    assert all(b <= max(READ_STEP * a, a + ubatch) for a, b in pairwise(long))
    assert min(prompts) - ubatch < grid.depths[0] <= min(prompts)
    assert grid.depths[-1] == max(ends)
    assert grid.prompts[0] == 1
    assert max(prompts) <= grid.prompts[-1] <= max(max(prompts) + ubatch - 1, max(ends))
    whole = [size % ubatch == 0 for size in grid.prompts if ubatch < size < max(ends)]
    assert all(whole), "a long prompt is read in whole batches"


def test_a_wide_span_has_points_between() -> None:
    assert grid_of([20, 250], [300], 512).depths == (20, 77, 300)
    assert grid_of([200, 256], [300], 512).depths == (200, 300)
    long = grid_of([256, 4_000, 16_000], [16_300], 512)
    assert long.depths == (256, 1024, 4096, 16_300)
    read = (1024, 1536, 2048, 3072, 4608, 6656, 9728, 14_336, 16_300)
    assert long.prompts == (1, 256, 512, *read)


class Stirring:
    """A worker whose first decodes after a pause are dearer, as real ones are."""

    def __init__(self, decode_ms: float) -> None:
        self.decode_ms = decode_ms
        self.asked: list[int] = []
        self.read_tokens: list[tuple[int, int]] = []
        self.contexts: list[tuple[int, bool]] = []

    def load(self, model: ModelLoad, *, carry: bool) -> None:
        (rows,) = (p.value for p in model.parameters if p.name == "context.n_outputs_max")
        self.contexts.append((int(rows), carry))

    def read(self, text: list[int], known: int = 0) -> float:
        self.read_tokens.append((known, len(text)))
        return (len(text) - known) * self.decode_ms / 1000

    def time_batch(self, _: list[int], *, repeats: int, **__: Any) -> DecodeTimes:
        self.asked.append(repeats)
        stirring = 1 + 0.2 * np.maximum(0, 4 - np.arange(repeats)) / 4
        nanoseconds = (stirring * self.decode_ms * 1e6).astype(np.int64)
        return DecodeTimes(nanoseconds, np.full(repeats, 1000))


def times(decode_ms: float, tokens: int = 100) -> tuple[Any, _Times]:
    """A worker, and what times it on a text of so many tokens."""
    worker: Any = Stirring(decode_ms)
    return worker, _Times(worker, [list(range(tokens))], True, 512)


def test_what_a_draft_loads_again_is_what_its_cycle_takes_beyond_its_batches() -> None:
    asked: list[dict[str, int]] = []

    def time_batch(text: list[int], **numbers: int) -> DecodeTimes:
        asked.append(numbers | {"text": len(text)})
        milliseconds = np.array([14, 13, 900, 13, 800, 13, 14, 700, 13])
        return DecodeTimes(milliseconds * 10**6, np.zeros(9, np.int64))

    worker: Any = SimpleNamespace(time_batch=time_batch)
    timing = _Times(worker, [list(range(200))], False, 512)
    seconds = {1: 0.001, 2: 0.0015, 4: 0.003, 5: 0.004, 9: 0.006}
    # Four single decodes and a batch of 5; stalls are none of it.
    assert timing.reload_s((100, 150), seconds, 7) == pytest.approx(0.013 - 4 * 0.001 - 0.004)
    usual = {"depth": 100, "tokens": 5, "repeats": CYCLES, "sweep_bytes": 7, "all_outputs": False}
    assert asked.pop() == usual | {"singles": 4, "text": 109}
    # No more tokens than the context of the deepest batch has room for.
    timing.reload_s((100, 101), {1: 0.001, 5: 0.004}, 7)
    assert asked.pop() == usual | {"singles": 1, "text": 106}
    assert timing.reload_s((100, 150), {1: 0.003, 5: 0.004}, 7) == 0.0, "never less"
    asked.clear()
    for none, swept in ((seconds, 0), (seconds | {1: SLOW_S}, 7)):
        assert timing.reload_s((100, 150), none, swept) == 0.0
    assert asked == []


def test_short_batches_are_timed_in_the_midst_of_many() -> None:
    _, timing = times(0.5)
    assert timing.row(20, (1,)) == pytest.approx((0.0005,), rel=0.001)
    assert timing.sample_s() == pytest.approx(1e-6)


def test_long_batches_are_repeated_no_more_than_it_takes() -> None:
    for decode_ms, asked in ((200.0, [1] * 6), (20.0, [1, 3] * 6)):
        worker, timing = times(decode_ms)
        timing.row(20, (1, 2))
        assert worker.asked == asked


@pytest.mark.parametrize(
    ("reading_s", "rounds"), [(0.0, 1), (2.8, 1), (2.9, 2), (4.4, 3), (1000.0, 4)]
)
def test_windows_are_timed_as_long_as_reading_to_them_took(reading_s: float, rounds: int) -> None:
    """1.44 s a round."""
    worker, timing = times(200.0, 3_000)
    timing.read_s[1024] = reading_s
    timing.row(1024, (1, 2))
    assert worker.asked == [1] * 6 * rounds


WITHOUT = ModelArgs(flash_attention=False)
MAINLINE: Any = SimpleNamespace(flavour=Flavour.LLAMA_CPP, environment=dict)
IK: Any = SimpleNamespace(flavour=Flavour.IK_LLAMA_CPP, environment=dict)


def curve(widths: tuple[int, ...], rows: tuple[int, ...]) -> CurveStep:
    nothing: Any = None
    return CurveStep(MAINLINE, "target", nothing, nothing, WITHOUT, True, widths, rows=rows)


def moved(rows: int) -> bool:
    """Whether the numbers of so many rows end amid a cache line of 16 of them."""
    return 1 <= rows % 16 <= 8


@given(st.sets(st.integers(0, 70), min_size=1))
def test_each_width_is_timed_where_buffers_lie_as_in_the_least_server_needing_it(
    lengths: set[int],
) -> None:
    rows = rows_for(MAINLINE, lengths)
    contexts = curve(widths_for(lengths), rows)._contexts(Path("target.gguf"), 4096)
    assert [w for _, widths in contexts for w in widths] == list(widths_for(lengths))
    for load, widths in contexts:
        held = {p.name: p.value for p in load.parameters}["context.n_outputs_max"]
        assert isinstance(held, int)
        assert held >= max(widths)
        for width in widths:
            assert moved(held) == moved(min(n + 1 for n in lengths if n + 1 >= width))
    assert len({load.weights for load, _ in contexts}) == 1, "read once"


def test_rows_matter_on_mainline_where_they_move_what_follows() -> None:
    assert rows_for(IK, [2, 8]) == ()
    for lengths, reserved in (
        ([0, 2, 7], ()),
        ([0, 7, 16, 64], ()),
        ([2, 8], (3, 9)),
        ([0, 1, 2, 4, 8, 12, 64], (5, 13, 65)),
    ):
        assert curve(widths_for(lengths), rows_for(MAINLINE, lengths)).reserved == reserved
    alone = curve((1, 3, 7), (1, 3, 7))
    ((_, widths),) = alone._contexts(Path("target.gguf"), 4096)
    assert widths == [1, 3, 7]
    assert "rows" not in alone.params(), "stored timings stay"
    assert curve((1, 3, 9), (1, 3, 9)).params()["rows"] == [3, 9]


def test_a_depth_is_read_once_for_all_contexts() -> None:
    worker, timing = times(200.0, 3_000)
    some = curve((1, 4, 9, 17), (1, 9, 17))
    contexts = some._contexts(Path("target.gguf"), 4096)
    timing.read_s[1024] = 9.0
    assert some._row(1024, timing, contexts) == pytest.approx((0.24,) * 4)
    assert worker.contexts == [(9, True), (17, True), (1, True)]
    assert worker.read_tokens == []
    assert worker.asked == [1] * (3 * 4 + 2 * 6 + 3 * 4), "0.72, 1.44 and 0.72 s a round, 3 s each"
    worker.contexts.clear()
    alone = curve((1, 2), ())
    alone._row(1024, timing, alone._contexts(Path("target.gguf"), 4096))
    assert worker.contexts == []


class Laid:
    """A worker that takes 0.1 ms a token of a prompt, and with 9 rows 30 % less, on a machine that
    is slower from one context to the next."""

    def __init__(self) -> None:
        self.rows = list[int]()

    def load(self, model: ModelLoad) -> None:
        (rows,) = (p.value for p in model.parameters if p.name == "context.n_outputs_max")
        self.rows.append(int(rows))

    def read(self, text: list[int]) -> float:
        share = 0.7 if self.rows[-1] == 9 else 1.0
        return 1e-4 * len(text) * share * 1.02 ** len(self.rows)


def test_prompts_are_priced_by_the_rows_that_a_server_reserves() -> None:
    worker: Any = Laid()
    timing = _Times(worker, [list(range(1400))], True, 512)
    some = curve((1, 2, 5, 9, 17), (5, 9, 17))
    loads = [load for load, _ in some._contexts(Path("target.gguf"), 4096)]
    shares = timing.read_shares(loads, 1300)
    assert shares == pytest.approx((1.0, 0.7, 1.0), rel=1e-3), "the drift cancels"
    assert worker.rows[:4] == [5, 9, 9, 5]
    assert worker.rows[-1] == 5
    worker.rows.clear()
    assert timing.read_shares(loads[:1], 1300) == ()
    assert worker.rows == []
    outcome = CurveOutcome(
        depths=(300,),
        widths=(1,),
        seconds=((0.01,),),
        sample_s=1e-6,
        prompt_tokens=(1, 276, 512, 1024),
        prompt_seconds=(0.01, 0.3, 0.5, 1.5),
        others_cores=None,
        read_shares=shares,
    )
    usual, less = outcome.prompts(512), outcome.prompts(512, 0.7)
    saved = [float(usual.at(n, 0) - less.at(n, 0)) for n in (1, 276, 512, 788, 1024)]
    assert saved == pytest.approx([0.003, 0.09, 0.15, 0.15 + 0.09, 0.3]), "deep as at the beginning"


class Drifting:
    """A worker that takes 0.1 ms a token, with hidden states 10 % more of the last ubatch of a
    prompt, 20 % less of those before, and 4 % more of a few tokens, on a machine that is slower
    from one context to the next."""

    pid = os.getpid()

    def __init__(self) -> None:
        self.loaded: list[bool] = []

    def load(self, model: ModelLoad) -> None:
        self.loaded.append(model.gives_rows)

    def time_batch(self, _: list[int], *, tokens: int, all_outputs: bool, **__: Any) -> DecodeTimes:
        assert all_outputs
        took_ns = 1e5 * tokens * (1 + self.loaded[-1] * 0.04) * 1.05 ** len(self.loaded)
        return DecodeTimes(np.array([round(took_ns)], np.int64), np.zeros(1, np.int64))

    def read(self, text: list[int]) -> float:
        last = (len(text) - 1) % 512 + 1
        share = (0.1 * last - 0.2 * (len(text) - last)) / len(text) * self.loaded[-1]
        return float(1e-4 * len(text) * (1 + share) * 1.05 ** len(self.loaded))


def test_what_hidden_states_add_is_a_share_that_is_timed_in_turns() -> None:
    worker: Any = Drifting()

    @contextmanager
    def loaded(_: object, load: ModelLoad) -> Iterator[tuple[Any, None]]:
        yield worker, None

    bench: Any = SimpleNamespace(workers=SimpleNamespace(loaded=loaded), advance=lambda _: None)
    plain = CurveOutcome(
        depths=(300, 1300),
        widths=(1, 2, 5),
        seconds=((0.01, 0.02, 0.05), (0.02, 0.04, 0.1)),
        sample_s=1e-6,
        prompt_tokens=(1, 276, 512, 1300),
        prompt_seconds=(0.01, 0.3, 0.5, 2.0),
        others_cores=None,
    )
    step = replace(curve((1, 5), ()), plain=curve((1, 2, 5), ()))
    giving = ModelLoad(Path("target.gguf"), ubatch=512, gives_rows=True)
    found = step._with_rows(plain, giving, [list(range(1400))], bench)
    assert worker.loaded[:4] == [True, False, False, True], "in turns"
    assert len(worker.loaded) == 2 * TURNS[1] + 1
    assert worker.loaded[-1], "as it was kept"
    assert found.widths == (1, 5)
    # A drift of 5 % from one to the next cancels between turns.
    assert np.ravel(found.seconds) == pytest.approx(
        1.04 * np.array([0.01, 0.05, 0.02, 0.1]), rel=3e-3
    )
    two = 0.5 + 1.5 * 512 / 788  # s of 1,024 tokens, by the line between 512 and 1,300
    long = 2.0 + 2 * (-0.05 * two - 0.1 * 0.5) + 0.1 * 0.3
    assert found.prompt_seconds == pytest.approx((0.011, 0.33, 0.55, long), rel=3e-3)
    assert found.sample_s == plain.sample_s


def test_a_long_prompt_is_read_once_and_timed_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "cook.steps.curve._watch", lambda _: SimpleNamespace(others_cores=lambda: 0.1)
    )
    worker, timing = times(2.0, 3_000)
    for stop in (1, 300, 1024, 3_000):
        timing.read(stop)
    assert worker.read_tokens == [(0, 1), (1, 300), (0, 1024), (1024, 3_000)]
    assert [timing.prompt(size) for size in (1024, 3_000)] == pytest.approx([2.048, 6.0])
    assert worker.asked == []
    assert timing.prompt(300) == pytest.approx(0.6), "slow: read once, apart from the long text"
    assert worker.read_tokens[-1] == (0, 300)
    assert timing.prompt(20) == pytest.approx(0.002, rel=0.2)
    assert worker.asked == [3] * 3
    worker, timing = times(700.0, 600)
    timing.prompt(512)
    assert (worker.asked, worker.read_tokens) == ([], [(0, 512)])
    monkeypatch.setattr(
        "cook.steps.curve._watch", lambda _: SimpleNamespace(others_cores=lambda: 0.7)
    )
    timing.prompt(512)
    assert worker.read_tokens == [(0, 512)] * 4, "the least of three next to others"


def test_the_usual_numbers_and_those_asked_for() -> None:
    assert sequences_for([1, 2, 4]) == (1, 2, 3, 4)
    assert sequences_for([5]) == (1, 2, 3, 4, 5)
    assert sequences_for([20]) == (1, 2, 3, 4, 6, 8, 12, 16, 20)
    rows = (((1.0, 2.0),), ((3.0, 4.0),))
    found = SlotCurveOutcome((1, 2), (10,), (1, 5), rows, None).batches
    assert found[1].at(5, 10) == pytest.approx(2.0)
    assert found[2].at(1, 10) == pytest.approx(3.0)


class Noting:
    """A worker that takes a millisecond for each token and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[list[list[int]], list[list[int]], int, bool]] = []

    def time_slots(
        self, before: Any, following: Any, *, sequences: int, repeats: int, all_outputs: bool
    ) -> tuple[int, ...]:
        self.asked.append((list(before), list(following), sequences, all_outputs))
        return (sequences * len(following[0]) * 1_000_000,) * repeats


def test_slots_hold_stretches_of_their_own() -> None:
    worker: Any = Noting()
    rows = _slot_rows(worker, range(1000), 50, (1, 4), (1, 5), True)
    assert rows == {1: (0.001, 0.005), 4: (0.004, 0.02)}
    before, following, _, every = worker.asked[-1]
    for texts in (before, following):
        assert len({tuple(text) for text in texts}) == 4
    assert {len(text) for text in before} == {50}
    assert every
    assert all(asked[0] == before for asked in worker.asked), "read once for all batches"


def test_a_draft_gives_logits_for_the_token_of_every_slot() -> None:
    worker: Any = Noting()
    _slot_rows(worker, range(100), 10, (2,), (1, 5), False)
    every = {(len(following[0]), every) for _, following, _, every in worker.asked}
    assert every == {(1, True), (5, False)}
    with pytest.raises(StepError, match="the trace has 3 tokens"):
        _slot_rows(worker, range(3), 1, (2,), (5,), True)
