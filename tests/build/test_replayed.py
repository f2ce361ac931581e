"""What every draft accepts of the trace, kept at a length that the recipe alone decides."""

from __future__ import annotations

from cook.build.replayed import replayed
from cook.graph.execute import Outcomes
from cook.record.record import Record
from tests.build.laid_out import layout, score


def test_every_draft_keeps_its_replayed_acceptance(record: Record) -> None:
    assert [(r.draft, r.engine, r.n_max) for r in record.replayed] == [
        ("small", "bundled", 4),
        ("large", "bundled", 4),
    ]
    for found in record.replayed:
        name = f"{found.draft} n_max=4"
        predicted = next(c.predicted for c in record.candidates if c.name == name)
        seen = dict(zip(found.ids, found.accepted, strict=True))
        reported = dict(zip(predicted.prompts.ids, predicted.prompts.accepted, strict=True))
        assert {i: seen[i] for i in reported} == reported
        assert len(seen) == len(reported) == 16, "every prompt"


def test_what_was_not_replayed_has_none() -> None:
    plan = layout(score()).forecast
    assert plan is not None
    assert list(replayed([plan], Outcomes())) == []
