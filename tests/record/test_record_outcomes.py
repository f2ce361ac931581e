"""Outcomes are kept by the store and by records: both are read as they were written."""

from __future__ import annotations

from dataclasses import asdict

from pydantic import TypeAdapter

from cook.record.record import ControlOutcome, RecountOutcome


def test_a_recount_is_read_as_it_was_written() -> None:
    found = RecountOutcome(4, 4, 90, 50, 91, 51, passed_over=1)
    assert TypeAdapter(RecountOutcome).validate_python(asdict(found)) == found


def test_a_control_is_read_from_an_artifact_that_counts_its_replies() -> None:
    found = ControlOutcome(5, 300, 1, 0.001, 0.02, 0.3, 0.01)
    document = asdict(found) | {"replies": 12}
    assert TypeAdapter(ControlOutcome).validate_python(document) == found
    assert found.near_tie_gap == 0.04
