"""Searches of a space that was exhausted: a share of the study, and all of it under soak."""

from __future__ import annotations

from collections import Counter

import pytest

from bench.mix_table import FAMILIES, MixTable, prompts, table_of
from bench.search_contests import (
    SEEDS,
    SHARE,
    SIZES,
    WITHIN,
    Contest,
    contests,
    deal,
    duels,
    exhausted,
    seeded,
)
from cook.search.judge import MARGIN


@pytest.fixture(scope="module", params=FAMILIES)
def table(request: pytest.FixtureRequest) -> MixTable:
    return MixTable.read(table_of(request.param))


@pytest.fixture(
    scope="module",
    params=[3, pytest.param(SIZES, marks=pytest.mark.soak)],
    ids=["some sizes", "all sizes"],
)
def held(request: pytest.FixtureRequest, table: MixTable) -> list[Contest]:
    return contests(table, request.param)


def test_the_table_is_of_every_mix_on_every_prompt(table: MixTable) -> None:
    assert len(table.place) == len(table.space.types[0]) ** len(table.space.ties) >= 500
    assert sorted(table.ids) == sorted(line["id"] for line in prompts())
    assert table.accepted.shape == (len(table.place), len(table.ids))
    assert (table.accepted <= table.drafted).all()
    assert (table.accepted < table.tokens).all()


def test_prompts_are_dealt_once(table: MixTable) -> None:
    parts = deal(table.ids, (0.4, 0.3, 0.3), 3)
    assert sorted(name for part in parts for name in part) == sorted(table.ids)
    assert parts == deal(table.ids, (0.4, 0.3, 0.3), 3)


def test_what_is_found_is_nearly_the_best_of_all_mixes(
    table: MixTable, held: list[Contest]
) -> None:
    for one in exhausted(table, held):
        assert one.ratio >= WITHIN, f"{one.max_bytes} bytes"
        assert one.share <= SHARE


def test_what_is_found_is_rarely_worse_than_its_rivals(held: list[Contest]) -> None:
    for name, counts in duels(held).items():
        assert counts["worse"] <= max(counts["better"], 1), f"{name}: {Counter(counts)}"


@pytest.mark.parametrize(
    "seeds", [6, pytest.param(SEEDS, marks=pytest.mark.soak)], ids=["some seeds", "all seeds"]
)
def test_no_search_is_worse_than_the_recipe_given(table: MixTable, seeds: int) -> None:
    for one in seeded(table, range(seeds)):
        assert not one.worse
        assert one.overall >= 1 - MARGIN
        assert one.ratio == 1.0 or not one.stays
