"""Drafts over a limit of ``pick.subject_to``: known early, and in nobody's way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.build.fabricated import World
from tests.build.whole import built

GOOD = {f"d{i}": 1_000 + i for i in range(8)}
OVER = {"big": 9_000, "huge": 9_500}
WORLD = World(
    accuracy={**{n: 0.6 + 0.01 * i for i, n in enumerate(GOOD)}, **dict.fromkeys(OVER, 0.99)},
    draft_ms={**dict.fromkeys(GOOD, 1.0), **dict.fromkeys(OVER, 0.2)},
)
"""Two that nobody can race against, and eight that drafting pays with."""
LIMITS: list[dict[str, float]] = [{"size_gib": 8e-6}, {"memory_gib": 8e-6}]


@pytest.mark.parametrize("limit", LIMITS, ids=str)
@pytest.mark.parametrize("method", ["replay", "live"])
def test_drafts_over_a_limit_throw_nobody_out_and_never_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: dict[str, float], method: str
) -> None:
    asked: dict[str, Any] = {
        "score": {"method": method, "live_budget": {"minutes": 600}},
        "pick": {"subject_to": limit},
    }
    found = built(tmp_path, monkeypatch, WORLD, sizes={**GOOD, **OVER}, **asked)
    pick = found.record.pick
    assert (pick.candidate or "").split(" ")[0] in GOOD
    ran = [s.label for s in found.record.steps if s.state != "not run"]
    assert {f"memory {name} (bundled)" for name in OVER} == {
        label for label in ran if any(name in label for name in OVER)
    }
    excluded = {e.candidate: e.reason for e in pick.excluded}
    (name,) = limit
    for candidate in (c for c in found.record.candidates if c.draft in OVER):
        assert candidate.live is None
        assert candidate.reason == excluded[candidate.name]
        assert candidate.reason.startswith(name)
        assert "is over the limit" in candidate.reason
    assert {c.draft for c in found.record.candidates if c.draft} == {*GOOD, *OVER}


def test_where_every_draft_is_over_no_draft_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = built(tmp_path, monkeypatch, pick={"subject_to": {"size_gib": 1e-9}})
    record = found.record
    assert record.pick.candidate == "no draft"
    assert len(record.pick.excluded) == 6
    ran = {s.kind for s in record.steps if s.state != "not run"}
    assert ran == {"memory", "live"}
    assert not any("predicted" in warning for warning in record.warnings)


def test_where_nothing_qualifies_the_limits_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {"maximize": "acceptance", "subject_to": {"size_gib": 1e-9}}
    pick = built(tmp_path, monkeypatch, pick=asked).record.pick
    assert pick.candidate is None
    assert "is over the limit of 1e-09" in pick.sentence
