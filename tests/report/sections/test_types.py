"""Types by layer and group, gaps of the importance matrix, and the front of size and quality."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

from hypothesis import given
from hypothesis import strategies as st

from cook.record.record import Draft, Quality, Record
from cook.report.sections.types import MOST_MAPS, coverage, pareto, types
from tests.bare_records import DRAFT
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


def draft_of(size_bytes: int, figure: float) -> Draft:
    return replace(DRAFT, file_bytes=size_bytes, quality=Quality(figure, 0.1, 20, 512))


def place(draft: Draft) -> tuple[int, float]:
    return draft.file_bytes or 0, draft.quality.perplexity


@given(st.lists(st.builds(draft_of, st.integers(1, 50), st.floats(1, 50)), max_size=20))
def test_the_front_is_what_nothing_beats(drafts: list[Draft]) -> None:
    every = {place(draft) for draft in drafts}
    front = [place(draft) for draft in pareto(drafts, "perplexity")]
    for size_bytes, figure in front:
        assert {p for p in every if p[0] <= size_bytes and p[1] <= figure} == {(size_bytes, figure)}
    for size_bytes, figure in every:
        assert any(p[0] <= size_bytes and p[1] <= figure for p in front), "beaten or equalled"
