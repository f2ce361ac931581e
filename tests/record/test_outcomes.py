"""Outcomes are kept by the store and by records: both are read as they were written."""

from __future__ import annotations

from dataclasses import asdict

import pytest
from pydantic import TypeAdapter

from cook.record.outcomes import ControlOutcome, SelfCheckOutcome


@pytest.mark.parametrize("names", [("fast_drafted", "fast_accepted"), None])
def test_a_recount_is_read_by_either_name(names: tuple[str, str] | None) -> None:
    found = SelfCheckOutcome(4, 4, 90, 50, 91, 51, passed_over=1)
    document = asdict(found)
    if names is not None:  # an artifact of the store
        document |= {
            "fast": 3,
            names[0]: document.pop("replay_drafted"),
            names[1]: document.pop("replay_accepted"),
        }
    assert TypeAdapter(SelfCheckOutcome).validate_python(document) == found


def test_a_recount_is_written_by_the_records_names() -> None:
    written = TypeAdapter(SelfCheckOutcome).dump_python(SelfCheckOutcome(4, 4, 90, 50, 91, 51))
    assert {"replay_drafted": 91, "replay_accepted": 51}.items() <= written.items()
    assert "fast" not in written


def test_a_control_is_read_from_an_artifact_that_counts_its_replies() -> None:
    found = ControlOutcome(5, 300, 1, 0.001, 0.02, 0.3, 0.01)
    document = asdict(found) | {"replies": 12}
    assert TypeAdapter(ControlOutcome).validate_python(document) == found
    assert found.near_tie_gap == 0.04
