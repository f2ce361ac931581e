"""The first plot: a row a draft, live and predicted apart."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

from cook.record.measured import Interval
from cook.report.canvas import Plot, svg_file
from cook.report.document import Table, Text
from cook.report.sections.forest import section


def test_a_row_a_draft_with_live_and_predicted_apart(records: ModuleType) -> None:
    found = section(records.record())
    (table,) = [b for b in found.blocks if isinstance(b, Table)]
    rows = {row[0]: row for row in table.rows}
    assert [title for title, _ in table.columns][2:4] == ["live", "predicted"]
    assert rows["Q8_0"][2] is not None
    assert "(1.42 to 1.61)" in rows["Q8_0"][2]
    assert rows["Q8_0"][4] == "faster"
    assert rows["IQ1_S"][2] is None
    assert rows["IQ1_S"][4] == "too few prompts to say"
    assert table.strong == 0


def test_live_runs_that_contradict_a_forecast_are_told(records: ModuleType) -> None:
    record = records.record()
    wrong = Interval(1.3, 1.5, 0.95, "paired")
    candidates = tuple(
        replace(c, predicted=replace(c.predicted, off_by=0.4, off_by_interval=wrong))
        for c in record.candidates
    )
    found = section(replace(record, candidates=candidates))
    told = " ".join(b.text for b in found.blocks if isinstance(b, Text))
    assert "contradict what was predicted of Q8_0, Q4_K_M" in told
    assert "without a draft was mispredicted by +40%" in told


def test_an_ngram_rival_has_no_draft_length(records: ModuleType) -> None:
    """Its label was "ngram-simple, None"."""
    record = records.record()
    candidates = tuple(
        replace(c, draft="ngram-simple", settings=None) if c.name == "Q8_0 n_max=4" else c
        for c in record.candidates
        if c.draft != "Q8_0" or c.name == "Q8_0 n_max=4"
    )
    found = section(replace(record, candidates=candidates))
    (plot,) = [b for b in found.blocks if isinstance(b, Plot)]
    drawn = svg_file(plot)
    assert "ngram-simple" in drawn
    assert "None" not in drawn


def test_without_candidates_it_says_so(records: ModuleType) -> None:
    assert section(records.bare()).absent
