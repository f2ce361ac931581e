"""Seconds at one pace of the machine."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bench.pace import (
    CLOCK,
    FIRST_LOOKS,
    READING,
    READS,
    Look,
    Pace,
    PacedWorker,
    Seconds,
    Timed,
    Watch,
    Work,
    _children,
    _standing,
    decoding,
    retimed,
    seconds_between,
)
from cook.engines.base import DraftSettings
from cook.graph.store import Entry, Store
from cook.record.prompt_runs import PromptRun
from cook.steps.live import LiveStep

LOOKS = [
    Look(0.0, 1.0, {1: 0.02, 5: 0.05, READS: 0.2}),
    Look(4.0, 5.0, {1: 0.02, 5: 0.05, READS: 0.2}),
    Look(8.0, 9.0, {1: 0.02, 5: 0.10, READS: 0.3}),
    Look(12.0, 13.0, {1: 0.02, 5: 0.10, READS: 0.3}),
]
"""From about the third look on batches of five take twice as long, reading half as long again, and
single tokens no longer."""
USUAL = {1: 0.02, 5: 0.05, READS: 0.2}
FIVE, ONE = Work({5: 1.0}), Work({1: 1.0})
RUN = PromptRun(
    id="a",
    category="random",
    prompt_n=16_384,
    prompt_ms=4000.0,
    predicted_n=512,
    predicted_ms=5000.0,
    wall_ms=9000.0,
    draft_n=None,
    draft_n_accepted=None,
    tokens=None,
    text="",
    stop="limit",
    late_reading_ms=2000.0,
)


def seconds(began: float, ended: float, work: Work, usual: Seconds = USUAL) -> Any:
    return seconds_between(LOOKS, began, ended, work, usual)


def test_seconds_of_a_slow_time_are_taken_to_the_usual_pace() -> None:
    assert seconds(1.0, 4.0, FIVE) == pytest.approx(3.0)
    assert seconds(9.0, 12.0, FIVE) == pytest.approx(1.5)
    assert seconds(5.0, 8.0, FIVE) == pytest.approx(2.0), "between: their mean"
    assert seconds(9.0, 12.0, FIVE, {5: 0.2}) == pytest.approx(6.0)


def test_every_number_of_tokens_has_a_pace_of_its_own() -> None:
    assert seconds(9.0, 12.0, ONE) == pytest.approx(3.0)
    assert seconds(9.0, 12.0, READING) == pytest.approx(2.0)
    assert seconds(9.0, 12.0, decoding(0.5, DraftSettings(4))) == pytest.approx(2.0)
    assert decoding(0.3, None) == ONE


def test_what_follows_none_takes_as_long_at_every_pace() -> None:
    assert seconds(9.0, 12.0, Work({5: 0.4})) == pytest.approx(3.0 / 1.4)
    assert seconds(9.0, 12.0, Work({5: 0.4}), {5: 0.2}) == pytest.approx(3.0 / 0.8)


def test_a_reference_tells_of_the_time_between_its_own_looks() -> None:
    looks = [
        Look(0.0, 1.0, {1: 0.02, READS: 0.2}),
        Look(2.0, 3.0, {1: 0.02}),
        Look(4.0, 5.0, {1: 0.04}),
        Look(6.0, 7.0, {READS: 0.6}),
    ]
    usual = {1: 0.02, READS: 0.2}

    def taken(began: float, ended: float, work: Work) -> float:
        return seconds_between(looks, began, ended, work, usual)

    assert taken(1.0, 2.0, ONE) == pytest.approx(1.0)
    assert taken(3.0, 4.0, ONE) == pytest.approx(1 / 1.5)
    assert taken(5.0, 6.0, ONE) == pytest.approx(1 / 2), "its last look was at another"
    assert taken(7.0, 9.0, ONE) == pytest.approx(2 / 2)
    assert taken(1.0, 6.0, READING) == pytest.approx(3.0 / 2), "two looks at others within"
    assert taken(-2.0, 0.0, READING) == pytest.approx(2.0)
    assert taken(3.0, 4.0, Work({1: 0.5, READS: 0.5})) == pytest.approx(1 / 1.75)


def test_looks_take_no_time_of_what_they_look_at() -> None:
    assert seconds(1.0, 8.0, CLOCK) == pytest.approx(6.0)
    assert seconds(4.5, 5.0, CLOCK) == 0.0
    assert seconds(-2.0, 15.0, CLOCK) == pytest.approx(17.0 - 4.0)
    assert seconds(13.0, 15.0, FIVE) == pytest.approx(1.0), "after the last"


def test_every_part_of_a_request_is_taken_at_its_own_pace() -> None:
    """Answered at 13: read from 4 to 8, decoded from 8 to 13, the draft reading till 10."""
    by_clock = retimed(RUN, LOOKS, 13.0, CLOCK, CLOCK, USUAL)
    assert (by_clock.prompt_ms, by_clock.predicted_ms) == (3000, 3000)
    assert (by_clock.late_reading_ms, by_clock.wall_ms) == (1000, 6000)
    paced = retimed(RUN, LOOKS, 13.0, FIVE, ONE, USUAL)
    assert paced.prompt_ms == pytest.approx(2000)
    assert paced.late_reading_ms == pytest.approx(500)
    assert paced.predicted_ms == pytest.approx(500 + 2000)
    assert paced.wall_ms == pytest.approx(2000 + 2500)
    at_once = replace(RUN, late_reading_ms=None)
    bare = retimed(at_once, [Look(0, 0, {})], 13.0, CLOCK, CLOCK, USUAL)
    assert bare == at_once


class Reference:
    """A model whose batches take so many milliseconds, and that says how it was asked."""

    pid = os.getpid()

    def __init__(self, ms: float = 50.0) -> None:
        self.ms = ms
        self.repeats: list[int] = []

    def time_batch(self, *_: object, repeats: int, **__: object) -> Any:
        self.repeats.append(repeats)
        return SimpleNamespace(decode_ns=np.full(repeats, self.ms * 1e6))


def pace_of(reference: Reference, file: Path | None = None) -> Pace:
    worker: Any = reference
    return Pace(worker, list(range(100)), (1, 3, 9, READS), file)


def test_a_look_lasts_about_alike_whatever_the_model() -> None:
    for ms, repeats in ((50.0, 2), (400.0, 1), (0.1, 32)):
        reference = Reference(ms)
        pace = pace_of(reference)
        reference.repeats.clear()
        pace.look(pace.widths)
        assert reference.repeats == [repeats] * 4
        assert pace.usual == pytest.approx(dict.fromkeys(pace.widths, ms / 1000))


def test_a_batch_is_looked_at_by_the_reference_that_is_the_most_like_it() -> None:
    pace = pace_of(Reference())
    alike = {tokens: pace.like(tokens) for tokens in (1, 2, 3, 5, 7, 9, 31, 32, 33, 512)}
    assert alike == {1: 1, 2: 3, 3: 3, 5: 3, 7: 9, 9: 9, 31: 9, 32: READS, 33: READS, 512: READS}


def test_a_look_tells_nothing_of_what_it_did_not_ask() -> None:
    reference = Reference(400.0)
    pace = pace_of(reference)
    reference.repeats.clear()
    pace.look([READS])
    assert pace._looks[-1].seconds == {READS: pytest.approx(0.4)}
    assert reference.repeats == [1]
    inner: Any = Timing()
    PacedWorker(inner, pace).time_batch([], depth=0, tokens=8, repeats=2, all_outputs=True)
    assert [set(look.seconds) for look in pace._looks] == [{9}]


class SlowReference(Reference):
    """Whose batches take the time that they tell."""

    def time_batch(self, *what: object, repeats: int, **how: object) -> Any:
        time.sleep(self.ms / 1000)
        return super().time_batch(*what, repeats=repeats, **how)


def test_what_decodes_is_looked_at_often_and_not_while_a_prompt_is_surely_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bench.pace.EVERY_S", 0.0)
    monkeypatch.setattr("bench.pace._children", set)
    pace = pace_of(SlowReference(5.0))
    pace._looks.clear()
    began = time.monotonic()
    reading, decoding_ = frozenset({READS}), frozenset({1, 3})
    with pace.looking(Watch(reading, 10.0), Watch(decoding_, 2.0, quiet_s=0.5)):
        time.sleep(1.5)
    first, *within, last = pace._looks
    assert set(first.seconds) == set(last.seconds) == reading | decoding_
    early = [look for look in within if look.began < began + 0.5]
    late = [frozenset(look.seconds) for look in within[len(early) :]]
    assert early
    assert {frozenset(look.seconds) for look in early} == {reading}
    assert set(late) == {reading, decoding_}
    assert late.count(decoding_) > late.count(reading)


def test_a_look_that_an_engine_was_started_in_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: set[int] = set()

    class Beside(SlowReference):
        """Slower in the first batch within a block, in which an engine is started."""

        within = False

        def time_batch(self, *what: object, repeats: int, **how: object) -> Any:
            self.ms = 25.0 if self.within and not started else 5.0
            if self.within:
                started.add(os.getpid() + 1)
            return super().time_batch(*what, repeats=repeats, **how)

    monkeypatch.setattr("bench.pace.EVERY_S", 0.0)
    monkeypatch.setattr("bench.pace._children", started.copy)
    monkeypatch.setattr("bench.pace._standing", lambda _: nullcontext())
    reference = Beside(5.0)
    pace = pace_of(reference)
    with pace.looking(Watch(frozenset({READS}), 1.0)):
        reference.within = True
        time.sleep(0.5)
    assert started
    assert len(pace._looks) > FIRST_LOOKS + 2, "those after it stay"
    assert [look.seconds[READS] for look in pace._looks] == pytest.approx(
        [0.005] * len(pace._looks)
    )


def test_a_prompt_is_known_to_be_read_as_long_as_it_was_at_the_least() -> None:
    pace = pace_of(Reference())
    pace.usual = USUAL
    outcomes: dict[str, Any] = {}
    results = SimpleNamespace(result=lambda step: outcomes[step.key], failures={})
    executor: Any = SimpleNamespace(outcomes=results, run=lambda _: None)

    def step(key: str, prompts: str, n_max: int | None, prompt_ms: float) -> LiveStep:
        asked = object.__new__(LiveStep)
        for name, value in {
            "key": key,
            "prompts": tuple(SimpleNamespace(id=prompt) for prompt in prompts),
            "settings": DraftSettings(n_max) if n_max else None,
        }.items():
            object.__setattr__(asked, name, value)
        pace.timed[key] = Timed((Look(0.0, 0.0, {}),), (99.0,) * len(prompts))
        outcomes[key] = SimpleNamespace(runs=(replace(RUN, prompt_ms=prompt_ms),) * len(prompts))
        return asked

    def watched(prompts: str) -> list[tuple[set[int], float]]:
        watches = pace._watches(step("next", prompts, 4, 0.0))
        return [(set(watch.widths), watch.quiet_s) for watch in watches]

    assert watched("a") == [({READS}, 0.0), ({1, 5}, 0.0)], "never read"
    pace.run(executor, [step("of both", "ab", None, 9000.0)])
    assert watched("a")[1] == ({1, 5}, 0.0), "the second is read after the first was decoded"
    for key, ms in (("first", 4000.0), ("slower", 5000.0)):
        pace.run(executor, [step(key, "a", None, ms)])
    assert watched("a") == [({READS}, 0.0), ({1, 5}, pytest.approx(0.8 * 4.0))]
    assert watched("b")[1] == ({1, 5}, 0.0)


def test_a_study_that_was_ended_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "pace.json"
    pace = pace_of(Reference(), file)
    assert pace_of(Reference(80.0), file).usual == pace.usual, "ended before any request"
    pace.timed["step"] = Timed(tuple(LOOKS), (13.0,))
    pace._keep()
    reference = Reference(80.0)
    again = pace_of(reference, file)
    assert (again.usual, again.timed) == (pace.usual, pace.timed)
    assert reference.repeats == [], "the usual pace is the first's"


def test_a_step_that_was_stored_without_its_looks_runs_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.pace._standing", lambda _: nullcontext())
    store, pace = Store(tmp_path / "store"), pace_of(Reference(1.0), tmp_path / "pace.json")
    with store.workspace() as workspace:
        store.commit(workspace, Entry("live", "ended", "live", {}, {}, {}, 1.0, None))
    step: Any = object.__new__(LiveStep)
    prompts = (SimpleNamespace(id="a"),)
    for name, value in {"key": "ended", "prompts": prompts, "settings": None}.items():
        object.__setattr__(step, name, value)

    def run(_: object) -> None:
        if store.find("live", "ended") is None:
            pace._answered.append(time.monotonic())

    outcomes = SimpleNamespace(result=lambda _: None, failures={})
    executor: Any = SimpleNamespace(store=store, outcomes=outcomes, run=run)
    pace.run(executor, [step])
    assert len(pace.timed["ended"].answered) == 1


def test_requests_are_read_and_decoded_at_one_pace_or_by_the_clock() -> None:
    pace = pace_of(Reference())
    pace.usual, pace.timed["step"] = USUAL, Timed(tuple(LOOKS), (13.0,))
    outcome: Any = SimpleNamespace(runs=(RUN,))
    for settings, alone, works in (
        (DraftSettings(4), 0.3, (READING, Work({1: 0.3, 5: 0.7}))),
        (None, 1.0, (READING, ONE)),
        (None, None, (CLOCK, CLOCK)),
    ):
        step: Any = SimpleNamespace(key="step", settings=settings)
        (run,) = pace.runs(step, outcome, alone)
        assert run == retimed(RUN, LOOKS, 13.0, *works, USUAL)


class Timing:
    """A worker under test; the reference is twice as slow as usual while it is asked."""

    def read(self, text: list[int], known: int = 0) -> float:
        return 0.001 * (len(text) - known)

    def time_batch(self, *_: object, **__: object) -> Any:
        from cook.engines.worker.messages import DecodeTimes

        return DecodeTimes(np.array([1000, 2000]), np.array([7]))


def test_a_workers_timings_are_at_the_usual_pace() -> None:
    reference = Reference()
    pace = pace_of(reference)
    reference.ms *= 2
    pace._looks.clear()
    inner: Any = Timing()
    worker = PacedWorker(inner, pace)
    assert worker.read(list(range(30)), 10) == pytest.approx(0.010)
    assert worker.read(list(range(42)), 10) == pytest.approx(0.016), "of a prompt"
    times = worker.time_batch([], depth=0, tokens=1, repeats=2, all_outputs=True)
    assert times.decode_ns.tolist() == [500, 1000]
    assert times.sample_ns.tolist() == [7]
    assert [set(look.seconds) for look in pace._looks] == [{1}], "of what was asked last"


def test_engines_stand_still_while_it_is_looked() -> None:
    code = "import time\nwhile True: print(time.monotonic(), flush=True); time.sleep(0.01)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        try:
            child.stdout.readline()
            assert child.pid in _children()
            with _standing(_children()):
                state, end = Path(f"/proc/{child.pid}/stat"), time.monotonic() + 60
                while (now := state.read_text().split()[2]) != "T" and time.monotonic() < end:
                    time.sleep(0.01)
                assert now == "T"
                time.sleep(0.2)
                os.set_blocking(child.stdout.fileno(), False)
                told = (child.stdout.read() or b"").split()
            gone_on = float("inf")
            while math.isinf(gone_on):
                if line := child.stdout.readline():
                    gone_on = float(line)
            if told:
                assert gone_on - float(told[-1]) >= 0.2
        finally:
            child.send_signal(signal.SIGKILL)
    with _standing([child.pid]):
        pass  # what has ended is left alone
