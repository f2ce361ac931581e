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

from cook.errors import InputError
from cook.nightly import history
from cook.nightly.history import (
    Night,
    accept,
    append,
    changed_since,
    conditions_changed,
    night_of,
    read_history,
)
from cook.record.record import Candidate, Record, ReplayedPrompts
from tests.cli.test_sweep import record
from tests.nightly.nights import Series, World

SMALL = World(prompts=9, tokens=16)


@pytest.fixture
def series() -> Series:
    return Series(SMALL, seed=1)


def test_what_is_appended_is_read_back(tmp_path: Path, series: Series) -> None:
    path = tmp_path / "deep" / "nightly.jsonl"
    nights = [series.measure().judged((), ()) for _ in range(3)]
    for night in nights:
        append(path, night)
    assert read_history(path).nights == tuple(nights)
    assert len(path.read_text().splitlines()) == 3


def test_no_file_is_an_empty_history(tmp_path: Path) -> None:
    assert read_history(tmp_path / "none.jsonl").nights == ()


def test_last_good_skips_bad_nights_and_other_series(tmp_path: Path, series: Series) -> None:
    path = tmp_path / "h.jsonl"
    good, bad, tonight = (series.measure() for _ in range(3))
    append(path, good.judged((), ()))
    append(path, bad.judged((), ("acceptance of Q4",)))
    append(
        path,
        replace(bad, id="f", record=replace(bad.record, recipe_sha256="1" * 64)).judged((), ()),
    )
    append(path, replace(bad, id="m", cell="other").judged((), ()))
    found = read_history(path)
    last = found.reference(tonight.series)
    assert last.accepted.id == good.id
    assert found.reference(replace(tonight, cell="another").series) is None


def test_a_disturbed_night_is_compared_with_only_for_want_of_another(
    tmp_path: Path, series: Series
) -> None:
    path = tmp_path / "h.jsonl"
    clean, disturbed, tonight = (series.measure().judged((), ()) for _ in range(3))
    append(path, with_disturbed(disturbed, 3))
    last = read_history(path).reference(tonight.series)
    assert last.accepted.id == disturbed.id
    append(path, clean)
    append(path, replace(with_disturbed(disturbed, 1), id="later"))
    last = read_history(path).reference(tonight.series)
    assert last.accepted.id == clean.id


def with_disturbed(night: Night, timings: int) -> Night:
    return replace(night, record=replace(night.record, disturbed=timings))


def test_the_accepted_night_does_not_move_until_another_is_accepted(
    tmp_path: Path, series: Series
) -> None:
    path = tmp_path / "h.jsonl"
    nights = [series.measure().judged((), ()) for _ in range(20)]
    for night in nights:
        append(path, night)
    found = read_history(path).reference(nights[0].series)
    ids = [night.id for night in nights]
    assert found.accepted.id == ids[0]
    assert [n.id for n in found.first] == ids[:7]
    assert [n.id for n in found.last] == ids[-7:]
    assert [n.id for n in found.noise] == ids
    accept(path, nights[0].cell, nights[0].series[-1])
    later = series.measure().judged((), ())
    append(path, later)
    found = read_history(path).reference(nights[0].series)
    assert found.accepted.id == ids[-1]
    assert [n.id for n in found.first] == [ids[-1], later.id]
    assert found.last == found.first


def test_alarms_on_the_first_nights_do_not_keep_the_noise_unknown(series: Series) -> None:
    first, *others = (series.measure() for _ in range(4))
    nights = (first.judged((), ()), *(n.judged((), ("speed of Q4",)) for n in others))
    found = history.History(Path("x"), nights).reference(first.series)
    assert found.last == (nights[0],)
    assert found.noise == nights


def test_a_torn_line_costs_only_itself(tmp_path: Path, series: Series) -> None:
    path = tmp_path / "h.jsonl"
    first, second = series.measure(), series.measure()
    append(path, first)
    with path.open("ab") as stream:
        stream.write(b'{"version":2,"id":"torn')
    append(path, second)
    found = read_history(path)
    assert [n.id for n in found.nights] == [first.id, second.id]
    assert found.warnings == (f"{path}:2: not read: not JSON (a torn line?)",)


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    path.write_text("hello\n")
    with pytest.raises(InputError, match="no line is a night"):
        read_history(path)


def test_another_version_and_misfitting_columns_are_told(tmp_path: Path, series: Series) -> None:
    path = tmp_path / "h.jsonl"
    append(path, series.measure())
    document = json.loads(path.read_text())
    short = json.loads(path.read_text())
    short["record"]["candidates"][0]["prompts"]["tokens"].pop()
    with path.open("a") as stream:
        stream.write(json.dumps(document | {"version": 99}) + "\n" + json.dumps(short) + "\n")
    warnings = read_history(path).warnings
    assert "version 99, this cook reads 2" in warnings[0]
    assert "columns do not fit" in warnings[1]


@settings(max_examples=60, deadline=None)
@given(junk=st.binary(max_size=200))
def test_any_bytes_between_nights_lose_no_night(tmp_path_factory: Any, junk: bytes) -> None:
    path = tmp_path_factory.mktemp("h") / "h.jsonl"
    append(path, _ONE)
    with path.open("ab") as stream:
        stream.write(junk)
    append(path, _TWO)
    assert [n.id for n in read_history(path).nights] == [_ONE.id, _TWO.id]


def test_two_writers_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write, args=(path, seed)) for seed in (1, 2, 3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    found = read_history(path)
    assert len(found.nights) == 15
    assert found.warnings == ()


def _write(path: Path, seed: int) -> None:
    series = Series(SMALL, seed=seed)
    for _ in range(5):
        append(path, series.measure())


def test_a_large_file_keeps_what_is_new_and_each_last_good(
    tmp_path: Path, series: Series, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "h.jsonl"
    old = replace(series.measure(), cell="resting").judged((), ())
    append(path, old)
    line = path.stat().st_size
    monkeypatch.setattr(history, "MAX_BYTES", 30 * line)
    newest = old
    for _ in range(60):
        newest = series.measure().judged((), ())
        append(path, newest)
    found = read_history(path)
    assert path.stat().st_size <= 31 * line
    assert found.nights[-1] == newest
    assert any(n.id == old.id for n in found.nights)
    assert found.warnings == ()


def test_an_accepted_night_is_good_and_nothing_is_rewritten(tmp_path: Path, series: Series) -> None:
    path = tmp_path / "h.jsonl"
    append(path, series.measure().judged((), ()))
    worse = series.measure().judged((), ("size of Q4",))
    append(path, worse)
    before = path.read_bytes()
    accept(path, worse.cell, worse.series[-1])
    assert path.read_bytes().startswith(before)
    last = read_history(path).reference(worse.series)
    assert last.accepted.id == worse.id
    assert last.accepted.regressions == worse.regressions


def test_what_failed_or_never_was_cannot_be_accepted(tmp_path: Path, series: Series) -> None:
    path = tmp_path / "h.jsonl"
    night = series.measure().judged(("quantize Q4: crashed",), ())
    append(path, night)
    with pytest.raises(InputError, match="its last night failed: quantize Q4"):
        accept(path, night.cell, night.series[-1])
    with pytest.raises(InputError, match="no night of"):
        accept(path, "other", night.series[-1])


_SERIES = Series(SMALL, seed=7)
_ONE: Night = _SERIES.measure()
_TWO: Night = _SERIES.measure()


PLAIN, DRAFTED = record("2026-11-20T02:00:00Z").candidates


def with_candidates(*candidates: Candidate) -> Record:
    return replace(record("2026-11-20T02:00:00Z"), candidates=candidates)


def test_a_night_holds_what_ran_live() -> None:
    left = replace(DRAFTED, name="y", prompts=None)
    night = night_of(with_candidates(PLAIN, DRAFTED, left))
    assert [c.name for c in night.live] == ["no draft", "Q4 n_max=4"]
    assert night.no_draft("bundled") == night.live[0]
    assert night.candidate("y") is None
    assert night.cell == "tiny-bundled"
    assert night.good is None


def test_a_night_keeps_no_text_of_the_recipe_and_no_steps() -> None:
    night = night_of(replace(record("2026-11-20T02:00:00Z"), recipe_text="text"))
    assert (night.record.recipe_text, night.record.steps) == ("", ())


@pytest.mark.parametrize("side", ["prompts", "reference"])
def test_columns_that_do_not_fit_are_refused(side: str) -> None:
    assert DRAFTED.prompts is not None
    changes: dict[str, Any] = {side: replace(DRAFTED.prompts, start=(0,))}
    found = replace(DRAFTED, name="x", **changes)
    with pytest.raises(InputError, match="x: figures per prompt whose columns do not fit"):
        night_of(with_candidates(found))
    replay = ReplayedPrompts("bundled", "Q", None, 4, ("b", "a"), ("c", "c"), (12,), (5,))
    with pytest.raises(InputError, match="replay of Q"):
        night_of(replace(with_candidates(), replayed=(replay,)))


def test_a_verdict_makes_a_night_good_or_not() -> None:
    night = night_of(record("2026-11-20T02:00:00Z"))
    assert night.judged((), ()).good is True
    assert night.judged(("quantize Q4: crashed",), ()).good is False
    assert night.judged((), ("size of Q4",)).good is False


def test_what_changed_is_named() -> None:
    then = replace(
        record("2026-11-20T02:00:00Z"),
        defaults={"bundled": {"--spec-draft-p-min": "0.75", "--spec-type": "none"}},
    )
    then = replace(then, drafts=(replace(then.drafts[0], digest="sha256:a"),))
    engine = replace(then.engines["bundled"], build="b2", digest="e" * 64)
    now = replace(
        then,
        engines={"bundled": engine},
        defaults={"bundled": {"--spec-draft-p-min": "0.0", "--spec-type": "none"}},
        drafts=(replace(then.drafts[0], digest="sha256:b"),),
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
