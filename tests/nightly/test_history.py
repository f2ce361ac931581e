"""The history survives torn lines, two writers and its own bounds; the last good night is kept."""

from __future__ import annotations

import json
import multiprocessing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cook.engines.base import ModelArgs
from cook.errors import InputError
from cook.nightly import history
from cook.nightly.history import (
    Night,
    ReferenceNights,
    accept,
    append,
    changed_since,
    conditions_changed,
    night_of,
    read_history,
)
from cook.record.record import Candidate, Record, ReplayedPrompts, Serving
from tests.cli.test_sweep import record
from tests.nightly.nights import Series, World

SMALL = World(prompts=9, tokens=16)


@pytest.fixture
def series() -> Series:
    return Series(SMALL, seed=1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "h.jsonl"


def append_all(path: Path, *nights: Night) -> None:
    for night in nights:
        append(path, night)


def reference(path: Path, night: Night) -> ReferenceNights | None:
    """What ``night`` is compared with."""
    return read_history(path).reference(night.series)


def test_what_is_appended_is_read_back(path: Path, series: Series) -> None:
    assert read_history(path).nights == ()
    nights = series.good_nights(3)
    append_all(path, *nights)
    assert read_history(path).nights == tuple(nights)
    assert len(path.read_text().splitlines()) == 3


def test_last_good_skips_bad_nights_and_other_series(path: Path, series: Series) -> None:
    good, bad, tonight = series.good_nights(3)
    other_text = replace(bad, id="f", record=replace(bad.record, recipe_sha256="1" * 64))
    other_cell = replace(bad, id="m", cell="other")
    append_all(path, good, bad.judged((), ("acceptance of Q4",)), other_text, other_cell)
    assert reference(path, tonight).accepted.id == good.id
    assert reference(path, replace(tonight, cell="another")) is None


def test_a_disturbed_night_is_compared_with_only_for_want_of_another(
    path: Path, series: Series
) -> None:
    clean, disturbed, tonight = series.good_nights(3)
    disturbed = replace(disturbed, record=replace(disturbed.record, disturbed=3))
    append(path, disturbed)
    assert reference(path, tonight).accepted.id == disturbed.id
    append_all(path, clean, replace(disturbed, id="later"))
    assert reference(path, tonight).accepted.id == clean.id


def test_the_accepted_night_does_not_move_until_another_is_accepted(
    path: Path, series: Series
) -> None:
    nights = series.good_nights(20)
    append_all(path, *nights)
    found = reference(path, nights[0])
    assert found.accepted == nights[0]
    assert (list(found.first), list(found.last)) == (nights[:7], nights[-7:])
    assert list(found.noise) == nights
    accept(path, nights[0].cell, nights[0].series[-1])
    (later,) = series.good_nights(1)
    append(path, later)
    found = reference(path, nights[0])
    assert found.accepted.id == nights[-1].id
    assert [n.id for n in found.first] == [nights[-1].id, later.id]
    assert found.last == found.first


def test_alarms_on_the_first_nights_do_not_keep_the_noise_unknown(series: Series) -> None:
    first, *others = series.good_nights(4)
    nights = (first, *(n.judged((), ("speed of Q4",)) for n in others))
    found = history.History(Path("x"), nights).reference(first.series)
    assert found.last == (first,)
    assert found.noise == nights


def test_what_is_no_night_costs_only_its_line(path: Path, series: Series) -> None:
    first, second = series.good_nights(2)
    append(path, first)
    document = json.loads(path.read_text())
    short = json.loads(path.read_text())
    short["record"]["candidates"][0]["prompts"]["tokens"].pop()
    with path.open("a") as stream:
        stream.write(json.dumps(document | {"version": 99}) + "\n" + json.dumps(short) + "\n")
        stream.write('{"version":2,"id":"torn')
    append(path, second)
    found = read_history(path)
    assert [n.id for n in found.nights] == [first.id, second.id]
    version, columns, torn = found.warnings
    assert version.startswith(f"{path}:2: not read: version 99, this cook reads 2")
    assert "columns do not fit" in columns
    assert torn == f"{path}:4: not read: not JSON (a torn line?)"
    path.write_text("hello\n")
    with pytest.raises(InputError, match="no line is a night"):
        read_history(path)


_ONE, _TWO = Series(SMALL, seed=7).good_nights(2)


@settings(max_examples=60, deadline=None)
@given(junk=st.binary(max_size=200))
def test_any_bytes_between_nights_lose_no_night(tmp_path_factory: Any, junk: bytes) -> None:
    path = tmp_path_factory.mktemp("h") / "h.jsonl"
    append(path, _ONE)
    with path.open("ab") as stream:
        stream.write(junk)
    append(path, _TWO)
    assert [n.id for n in read_history(path).nights] == [_ONE.id, _TWO.id]


def test_several_writers_lose_nothing(path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write, args=(path, seed)) for seed in (1, 2, 3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    found = read_history(path)
    assert (len(found.nights), found.warnings) == (15, ())


def _write(path: Path, seed: int) -> None:
    append_all(path, *Series(SMALL, seed=seed).good_nights(5))


def test_a_large_file_keeps_what_is_new_and_each_last_good(
    path: Path, series: Series, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *nights = series.good_nights(61)
    old = replace(first, cell="resting")
    append(path, old)
    line = path.stat().st_size
    monkeypatch.setattr(history, "MAX_BYTES", 30 * line)
    append_all(path, *nights)
    found = read_history(path)
    assert path.stat().st_size <= 31 * line
    assert found.nights[-1] == nights[-1]
    assert any(n.id == old.id for n in found.nights)
    assert found.warnings == ()


def test_an_accepted_night_is_good_and_nothing_is_rewritten(path: Path, series: Series) -> None:
    good, worse = series.good_nights(2)
    worse = worse.judged((), ("size of Q4",))
    append_all(path, good, worse)
    before = path.read_bytes()
    accept(path, worse.cell, worse.series[-1])
    assert path.read_bytes().startswith(before)
    accepted = reference(path, worse).accepted
    assert (accepted.id, accepted.regressions) == (worse.id, worse.regressions)


def test_what_failed_or_never_was_cannot_be_accepted(path: Path, series: Series) -> None:
    night = series.measure().judged(("quantize Q4: crashed",), ())
    append(path, night)
    with pytest.raises(InputError, match="its last night failed: quantize Q4"):
        accept(path, night.cell, night.series[-1])
    with pytest.raises(InputError, match="no night of"):
        accept(path, "other", night.series[-1])


RECORD = record("2026-11-20T02:00:00Z")
PLAIN, DRAFTED = RECORD.candidates


def with_candidates(*candidates: Candidate) -> Record:
    return replace(RECORD, candidates=candidates)


def test_a_night_holds_what_ran_live_and_no_text_of_the_recipe() -> None:
    left = replace(DRAFTED, name="y", prompts=None)
    night = night_of(replace(with_candidates(PLAIN, DRAFTED, left), recipe_text="text"))
    assert [c.name for c in night.live] == ["no draft", "Q4 n_max=4"]
    assert night.no_draft("bundled") == night.live[0]
    assert night.candidate("y") is None
    assert night.cell == "tiny-bundled"
    assert (night.record.recipe_text, night.record.steps) == ("", ())
    verdicts = [((), ()), (("quantize Q4: crashed",), ()), ((), ("size of Q4",))]
    assert night.good is None
    assert [night.judged(*verdict).good for verdict in verdicts] == [True, False, False]


@pytest.mark.parametrize("side", ["prompts", "reference"])
def test_columns_that_do_not_fit_are_refused(side: str) -> None:
    changes: dict[str, Any] = {side: replace(DRAFTED.prompts, start=(0,))}  # type: ignore[type-var]
    found = replace(DRAFTED, name="x", **changes)
    with pytest.raises(InputError, match="x: figures per prompt whose columns do not fit"):
        night_of(with_candidates(found))
    replay = ReplayedPrompts("bundled", "Q", None, 4, ("b", "a"), ("c", "c"), (12,), (5,))
    with pytest.raises(InputError, match="replay of Q"):
        night_of(replace(with_candidates(), replayed=(replay,)))


def test_what_changed_is_named() -> None:
    (draft,) = RECORD.drafts
    of: dict[str, Any] = {"--spec-draft-p-min": "0.75", "--spec-type": "none"}
    then = replace(RECORD, defaults={"bundled": of}, drafts=(replace(draft, digest="sha256:a"),))
    engine = replace(then.engines["bundled"], build="b2", digest="e" * 64)
    now = replace(
        then,
        engines={"bundled": engine},
        defaults={"bundled": of | {"--spec-draft-p-min": "0.0"}},
        drafts=(replace(draft, digest="sha256:b"),),
    )
    assert list(changed_since(now, then)) == [
        "engine bundled: b0 then, b2 now",
        "defaults of bundled: --spec-draft-p-min 0.75 then, 0.0 now",
        "the bytes of the drafts Q4",
    ]
    assert list(changed_since(then, then)) == []
    assert conditions_changed(now, then) is None
    other = replace(then, max_tokens=7)
    assert conditions_changed(other, then) == "max_tokens is another: 101 then, 7 now"
    served = [
        replace(c, serving=Serving(512, ModelArgs(threads=8), ModelArgs())) for c in then.candidates
    ]
    threaded = replace(then, candidates=tuple(served))
    assert conditions_changed(threaded, then) == "threads is another: None then, 8 now"
