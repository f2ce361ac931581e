"""How amounts read."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cook import units

GIB = 1 << 30
READ: list[tuple[Callable[..., str | None], dict[float, str]]] = [
    (units.size, {1023: "1023 B", 1024: "1.00 KiB", 5 << 50: "5120.00 TiB"}),
    (units.short_size, {1023: "1023 B", 4 << 20: "4 MiB", int(23.61 * GIB): "23.6 GiB"}),
    (units.count, {999: "999", 27_900_000: "27.9 M", 1_500_000_000_000: "1.5 T"}),
    (units.duration, {4.14: "4.1 s", 200: "3 min 20 s", 3725: "1 h 02 min"}),
    (units.number, {0.0: "0.00"}),
]


@pytest.mark.parametrize(("text", "reads"), READ)
def test_amounts(text: Callable[..., str | None], reads: dict[float, str]) -> None:
    assert {amount: text(amount) for amount in reads} == reads
    assert text(None) is None


def test_one_is_singular() -> None:
    assert [units.plural(n, "fault") for n in (0, 1, 2)] == ["0 faults", "1 fault", "2 faults"]
