"""Which tokens a live reply has, where the engine tells only its text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import pytest

from cook.engines.worker.messages import ModelInfo
from cook.engines.worker.worker import Worker
from cook.formats.trace_file import Reply
from cook.record.outcomes import SelfCheckOutcome
from cook.record.prompt_runs import PromptRun
from cook.steps.recount import emitted_tokens

END = 0
PIECES = {END: "", 1: "a", 2: "b", 3: "c", 4: "ab", 5: "\ufffd"}


class Letters:
    """A worker whose tokens are letters; ``ab`` is one token as well, but never tokenized to."""

    def tokenize(self, text: str, **_: Any) -> tuple[int, ...]:
        return tuple({"a": 1, "b": 2, "c": 3}.get(letter, 5) for letter in text)

    def detokenize(self, tokens: Sequence[int], **_: Any) -> str:
        return "".join(PIECES[int(token)] for token in tokens)


@dataclass(frozen=True)
class Info:
    eog: frozenset[int] = frozenset({END})


def live(text: str, predicted_n: int, stop: str = "limit") -> PromptRun:
    return PromptRun("p", "c", 3, 1.0, predicted_n, 9.0, 10.0, 8, 5, None, text, stop)


def emitted(
    run: PromptRun, trace: Sequence[int], n_max: int = 3, eog: frozenset[int] = frozenset({END})
) -> tuple[int, ...] | None:
    recorded = cast(Reply, Recorded(np.array(trace, np.int32)))
    return emitted_tokens(
        run, recorded, cast(Worker, Letters()), cast(ModelInfo, Info(eog=eog)), n_max
    )


@dataclass(frozen=True)
class Recorded:
    tokens: Any


def test_the_servers_own_come_first() -> None:
    run = replace(live("abc", 3), tokens=(4, 3, 9))
    assert emitted(run, [1, 2, 3]) == (4, 3, 9)


def test_a_text_cut_within_the_last_draft_is_the_traces() -> None:
    trace = [4, 3, 1, 2, 3, 1]
    assert emitted(live("abca", 6), trace) == tuple(trace)
    assert emitted(live("abcabca", 6), trace) == tuple(trace)
    assert emitted(live("ab", 6), trace) is None, "more is missing than one draft can hide"
    assert emitted(live("abcac", 6), trace) is None, "another text, and its tokens are hidden"


def test_counts_past_an_end_are_in_the_trace() -> None:
    assert emitted(live("ab", 5, "eos"), [4, END, 1, 2, 3, 1]) == (4, END, 1, 2, 3)


def test_a_text_of_its_own_is_tokenized_where_that_leaves_no_doubt() -> None:
    assert emitted(live("cab", 3), [1, 1, 1]) == (3, 1, 2)
    assert emitted(live("cab", 4), [1, 1, 1, 1]) is None
    assert emitted(live("cab", 4, "eos"), [1, 1, 1, 1]) == (3, 1, 2, END)
    assert emitted(live("cab", 4, "eos"), [1, 1, 1, 1], eog=frozenset({END, 9})) is None
    assert emitted(live("c?b", 3), [1, 1, 1]) is None


@pytest.mark.parametrize(("requests", "exact", "passed"), [(4, 4, True), (4, 3, False)])
def test_passed(requests: int, exact: int, passed: bool) -> None:
    assert SelfCheckOutcome(requests, exact, 9, 5, 9, 5).passed is passed
    assert not SelfCheckOutcome(0, 0, 0, 0, 0, 0, passed_over=4).passed
