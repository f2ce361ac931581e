"""How amounts read."""

from __future__ import annotations

import pytest

from cook import units


@pytest.mark.parametrize(
    ("amount", "reads"),
    [
        (None, None),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (int(23.61 * (1 << 30)), "23.61 GiB"),
        (5 << 50, "5120.00 TiB"),
    ],
)
def test_sizes(amount: int | None, reads: str | None) -> None:
    assert units.size(amount) == reads


def test_a_missing_number_is_no_text() -> None:
    assert units.number(None, ".2f") is None
    assert units.number(0.0, ".2f") == "0.00"


@pytest.mark.parametrize(
    ("number", "reads"),
    [(None, None), (999, "999"), (27_900_000, "27.9 M"), (1_500_000_000_000, "1.5 T")],
)
def test_counts(number: int | None, reads: str | None) -> None:
    assert units.count(number) == reads


@pytest.mark.parametrize(
    ("seconds", "reads"),
    [(None, None), (4.14, "4.1 s"), (200, "3 min 20 s"), (3725, "1 h 02 min")],
)
def test_durations(seconds: float | None, reads: str | None) -> None:
    assert units.duration(seconds) == reads


def test_one_is_singular() -> None:
    assert [units.plural(n, "fault") for n in (0, 1, 2)] == ["0 faults", "1 fault", "2 faults"]
