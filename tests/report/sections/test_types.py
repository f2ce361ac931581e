"""Types by layer and group, gaps of the importance matrix, and the front of size and quality."""

from __future__ import annotations

from types import ModuleType

from hypothesis import given
from hypothesis import strategies as st

from cook.record.record import Record
from cook.report.canvas import Named
from cook.report.sections.types import MOST_MAPS, coverage, pareto, types
from tests.report.records import plots_of, tables_of


def test_maps_that_have_no_room_are_named(records: ModuleType) -> None:
    names = tuple(f"Q{i}" for i in range(MOST_MAPS + 2))
    notes = [b for b in types(records.record(names)).blocks if isinstance(b, str)]
    assert [note.startswith("Not drawn: ") for note in notes] == [True]


def test_gaps_are_drawn_and_counted(record: Record) -> None:
    found = coverage(record)
    assert ("chunks", "100 of 512 tokens") in tables_of(found)[0].rows
    (plot,) = plots_of(found)
    assert "the least covered is layer 2 with 42 of 48" in plot.alt


@given(st.lists(st.builds(Named, st.integers(1, 50), st.floats(1, 50), st.just("x")), max_size=20))
def test_the_front_is_what_nothing_beats(points: list[Named]) -> None:
    every, front = ({(p.x, p.y) for p in some} for some in (points, pareto(points)))
    for x, y in front:
        assert {p for p in every if p[0] <= x and p[1] <= y} == {(x, y)}
    for x, y in every:
        assert any(p[0] <= x and p[1] <= y for p in front), "beaten or equalled"
