"""A night is a record in small, with columns that fit each other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cook.errors import InputError
from cook.nightly.night import changed_since, conditions_changed, night_of
from cook.record.record import Candidate, Record, ReplayedPrompts
from tests.cli.test_sweep import record

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
