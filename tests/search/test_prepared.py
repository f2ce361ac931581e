"""What a command line asks of a search."""

from __future__ import annotations

import pytest

from cook.errors import InputError
from cook.search.evaluate import Budget
from cook.search.prepared import EVALUATIONS, budget_of, bytes_of


def test_sizes_and_budgets_are_read_as_people_write_them() -> None:
    sizes = ("24GiB", "24 GiB", "1.5MiB", "900MB", "900M", "1900000", "2tib")
    assert [bytes_of(text, "--size") for text in sizes] == [
        *(24 << 30, 24 << 30, 3 << 19, 900_000_000, 900_000_000, 1_900_000, 2 << 40)
    ]
    budgets = (None, "200", "40m", "1.5h", "90s")
    assert [budget_of(text) for text in budgets] == [
        *(Budget(EVALUATIONS), Budget(200), Budget(seconds=2400)),
        *(Budget(seconds=5400), Budget(seconds=90)),
    ]


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "0", "1 GiB more", "1e9", "24GiBs"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=rf"--size {text}: no size"):
        bytes_of(text, "--size")


@pytest.mark.parametrize("text", ["", "soon", "0", "-5", "40 m", "4d", "9" * 400])
def test_what_is_no_budget_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=rf"--budget {text[:40]}: no budget"):
        budget_of(text)
