"""What a command line asks of a search."""

from __future__ import annotations

import pytest

from cook.errors import InputError
from cook.search.job import EVALUATIONS, budget_of, bytes_of


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("24GiB", 24 << 30),
        ("24 GiB", 24 << 30),
        ("1.5MiB", 3 << 19),
        ("900MB", 900_000_000),
        ("900M", 900_000_000),
        ("1900000", 1_900_000),
        ("2tib", 2 << 40),
    ],
)
def test_sizes_are_read_as_people_write_them(text: str, size: int) -> None:
    assert bytes_of(text, "--size") == size


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "0", "1 GiB more", "1e9", "24GiBs"])
def test_what_is_no_size_is_told(text: str) -> None:
    with pytest.raises(InputError, match="no size"):
        bytes_of(text, "--size")


def test_a_budget_is_evaluations_or_time() -> None:
    assert budget_of(None).evaluations == EVALUATIONS
    assert budget_of("200").evaluations == 200
    assert budget_of("200").seconds is None
    assert budget_of("40m").seconds == 2400
    assert budget_of("1.5h").seconds == 5400
    assert budget_of("90s").evaluations is None


@pytest.mark.parametrize("text", ["", "soon", "0", "-5", "40 m", "4d"])
def test_what_is_no_budget_is_told(text: str) -> None:
    with pytest.raises(InputError, match="no budget"):
        budget_of(text)
