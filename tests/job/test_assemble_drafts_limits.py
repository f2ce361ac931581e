"""Drafts over a limit of ``pick.subject_to``: known early, and never in the way of others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cook.job.assemble import GIB, over_limits
from cook.recipe.schema import SubjectToSpec as Limits
from cook.record.record import Quality
from tests.bare_records import DRAFT
from tests.job.fabricated import World
from tests.job.whole import Building

MEASURED = replace(
    DRAFT,
    file_bytes=2 * GIB,
    memory_bytes=3 * GIB,
    bpw=4.5,
    quality=Quality(12.0, 0.1, 4, 512, perplexity_ratio=1.2, mean_kld=0.05),
)


@pytest.mark.parametrize(
    ("limit", "kept", "passed"),
    [
        ("size_gib", 2.0, 1.9),
        ("memory_gib", 3.0, 2.9),
        ("bpw", 4.5, 4.4),
        ("perplexity_ratio", 1.2, 1.1),
        ("kld", 0.05, 0.04),
    ],
)
def test_a_draft_may_be_at_a_limit_and_not_over_it(limit: str, kept: float, passed: float) -> None:
    assert over_limits(MEASURED, Limits(**{limit: kept})) is None
    why = over_limits(MEASURED, Limits(**{limit: passed}))
    assert why == f"{limit} {kept:.4g} is over the limit of {passed:g}"
    assert over_limits(MEASURED, Limits()) is None


def test_memory_is_the_device_s_where_there_is_one() -> None:
    placed = replace(MEASURED, device_bytes=GIB)
    assert over_limits(placed, Limits(memory_gib=1.5)) is None
    assert over_limits(replace(placed, device_bytes=0), Limits(memory_gib=1.5)) is not None


def test_what_was_not_measured_keeps_no_limit_on_it() -> None:
    assert over_limits(DRAFT, Limits(kld=0.1)) == (
        "kld is limited to 0.1 but was not measured (not asked for)"
    )
    assert over_limits(DRAFT, Limits(bpw=4)) == "bpw is limited to 4 but was not measured"


@pytest.mark.parametrize(
    ("method", "limit"), [("replay", {"size_gib": 8e-6}), ("live", {"memory_gib": 8e-6})]
)
def test_drafts_over_a_limit_throw_nobody_out_and_never_run(
    built: Building, limit: dict[str, float], method: str
) -> None:
    """Two that no other could keep up with, and eight that drafting pays with."""
    good, over = {f"d{i}": 1_000 + i for i in range(8)}, {"big": 9_000, "huge": 9_500}
    world = World(
        accuracy={**{n: 0.6 + 0.01 * i for i, n in enumerate(good)}, **dict.fromkeys(over, 0.99)},
        draft_ms={**dict.fromkeys(good, 1.0), **dict.fromkeys(over, 0.2)},
    )
    score = {"method": method, "live_budget": {"minutes": 600}}
    record = built(
        world,
        sizes={**good, **over},
        score=score,
        pick={"subject_to": limit},
        again="big n_max=4",
    ).record
    assert (record.pick.candidate or "").split(" ")[0] in good
    ran = [s.label for s in record.steps if s.state != "not run"]
    assert {f"memory {name} (bundled)" for name in over} == {
        label for label in ran if any(name in label for name in over)
    }
    excluded = {e.candidate: e.reason for e in record.pick.excluded}
    (name,) = limit
    for candidate in (c for c in record.candidates if c.draft in over):
        assert candidate.live is None
        assert candidate.reason == excluded[candidate.name]
        assert candidate.reason.startswith(name)
        assert "is over the limit" in candidate.reason
    assert {c.draft for c in record.candidates if c.draft} == {*good, *over}


def test_where_every_draft_is_over_no_draft_is_left_if_it_qualifies(built: Building) -> None:
    limits = {"subject_to": {"size_gib": 1e-9}}
    record = built(pick=limits).record
    assert record.pick.candidate == "no draft"
    assert len(record.pick.excluded) == 6
    assert {s.kind for s in record.steps if s.state != "not run"} == {"memory", "deal"}
    assert not any("predicted" in warning for warning in record.warnings)
    pick = built(pick={"maximize": "acceptance", **limits}).record.pick
    assert pick.candidate is None
    assert "is over the limit of 1e-09" in pick.sentence
