"""Simulated counts of draft-free methods against real servers: a short share of the study."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.ngram_counts import agreement, methods, replies, two_stage_methods
from cook.engines.base import DraftSettings
from cook.engines.process.supervisor import Supervisor
from cook.prompts.prompt_set import load_prompts

TEXTS = [p.text for p in load_prompts("demo").prompts if len(p.text) < 1500][:5]
TOKENS = 64


def test_counts_are_the_servers(engine: Any, tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path / "logs")
    written = replies(engine, TEXTS, TOKENS, supervisor)
    drafted = 0
    for settings in methods(engine):
        found = agreement(engine, settings, written, TOKENS, supervisor)
        assert found.exact == found.requests == len(TEXTS), str(found)
        drafted += found.live[0]
    assert drafted > 100


def test_two_stages_are_the_servers(engine: Any, tmp_path: Path) -> None:
    """A draft model's near tie may fall otherwise: a request of the five at most."""
    supervisor = Supervisor(tmp_path / "logs")
    written = replies(engine, TEXTS, TOKENS, supervisor)
    given = (engine, two_stage_methods(engine)[0], written, TOKENS, supervisor)
    found = agreement(*given, then=DraftSettings(4))
    assert found.exact >= len(TEXTS) - 1, str(found)
    assert found.live[0] > agreement(*given).live[0], "the draft model drafts the rest"
