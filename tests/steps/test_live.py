"""On ik a prompt like the last one is drafted from its cache: what parts them must be drafted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cook.engines.base import DraftSettings, ModelArgs, ServerJob
from cook.engines.process.supervisor import Supervisor
from cook.engines.server import Server
from cook.paths import demo_dir
from cook.steps.live import PARTING_TOKENS, WARM_UP

pytestmark = pytest.mark.ik

PROMPT = 'def add(a, b):\n    """Return the sum of a and b.\n'


@pytest.mark.parametrize("n_min", [0, 2])
def test_a_drafted_request_makes_ik_forget(ik_engine: Any, tmp_path: Path, n_min: int) -> None:
    one = ModelArgs(threads=1)
    target, draft = demo_dir() / "target-q8_0.gguf", demo_dir() / "draft-f16.gguf"
    job = ServerJob(target, one, 1024, draft, one, DraftSettings(4, n_min))
    counts = []
    with Server(ik_engine, job, Supervisor(tmp_path / "logs")) as server:
        enough = PARTING_TOKENS + max(1, n_min)
        for parting in (0, enough, enough - 1):
            if parting:
                server.complete(WARM_UP, parting, temperature=0.0, seed=1)
            answer = server.complete(PROMPT, 48, temperature=0.0, seed=1)
            assert answer.draft_n is not None
            counts.append((answer.draft_n, answer.draft_n_accepted))
    fresh, parted, not_drafted = counts
    assert parted == fresh
    assert not_drafted != fresh, "one token less is not drafted, and the cache is still there"
