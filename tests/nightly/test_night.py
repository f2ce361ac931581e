"""A night is a record in small: the same counts, prompt by prompt, in one order."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cook.errors import InputError
from cook.nightly.night import ReplayNight, night_of
from cook.record.measured import PromptFigures, ReplayedPrompts
from cook.record.prompt_runs import PromptRun
from cook.record.record import Candidate, Record
from cook.scoring.figures import by_prompt
from tests.cli.test_sweep import candidate, record

RUN = PromptRun("a", "code", 5, 1.0, 11, 123.45678, 200.0, 8, 4, None, "text", "limit")


def with_candidates(*candidates: Candidate) -> Record:
    return replace(record("2026-11-20T02:00:00Z"), candidates=candidates)


def test_figures_per_prompt_keep_counts_and_microseconds() -> None:
    found = by_prompt([RUN, replace(RUN, id="b", draft_n=None, draft_n_accepted=None)])
    assert found == PromptFigures(
        ids=("a", "b"),
        categories=("code", "code"),
        tokens=(10, 10),
        decode_ms=(123.457, 123.457),
        wall_ms=(200.0, 200.0),
        drafted=(8, None),
        accepted=(4, None),
    )


def test_columns_share_one_order_of_prompts() -> None:
    one = by_prompt([RUN, replace(RUN, id="b", predicted_n=21)])
    other = by_prompt([replace(RUN, id="c", category="prose"), RUN])
    night = night_of(with_candidates(candidate("no draft", None, one), candidate("x", "Q", other)))
    assert night.prompts == (("a", "code"), ("b", "code"), ("c", "prose"))
    assert [c.tokens for c in night.candidates] == [(10, 20, None), (10, None, 10)]
    assert night.column("x") == night.candidates[1]
    assert night.plain("bundled") == night.candidates[0]
    assert night.cell == "tiny-bundled"
    assert night.good is None


def test_a_candidate_that_did_not_run_live_has_no_column() -> None:
    left = replace(candidate("y", "Q", by_prompt([RUN])), live=None, prompts=None)
    assert night_of(with_candidates(left)).candidates == ()


def test_replays_of_every_draft_are_columns_over_all_prompts() -> None:
    """Live runs see half of the prompts; a draft that left the race was replayed on a few."""
    live = candidate("x", "Q", by_prompt([RUN]))
    whole = ReplayedPrompts("bundled", "Q", None, 4, ("b", "a"), ("prose", "code"), (12, 8), (5, 4))
    few = replace(whole, draft="R", ids=("b",), categories=("prose",), drafted=(12,), accepted=(3,))
    night = night_of(replace(with_candidates(live), replayed=(whole, few)))
    assert night.prompts == (("a", "code"), ("b", "prose"))
    assert night.candidates[0].tokens == (10, None)
    assert night.replays == (
        ReplayNight("Q", None, 4, (8, 12), (4, 5)),
        ReplayNight("R", None, 4, (None, 12), (None, 3)),
    )
    with pytest.raises(InputError, match="do not fit each other"):
        night_of(replace(with_candidates(live), replayed=(replace(whole, drafted=(1,)),)))


@pytest.mark.parametrize("change", [{"tokens": (1,)}, {"ids": ("a", "a")}])
def test_columns_that_do_not_fit_are_refused(change: dict[str, tuple[object, ...]]) -> None:
    broken = replace(by_prompt([RUN, replace(RUN, id="b")]), **change)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="do not fit each other"):
        night_of(with_candidates(candidate("x", "Q", broken)))


def test_a_verdict_makes_a_night_good_or_not() -> None:
    night = night_of(record("2026-11-20T02:00:00Z"))
    assert night.judged((), ()).good is True
    assert night.judged(("quantize Q4: crashed",), ()).good is False
    assert night.judged((), ("size of Q4",)).good is False
