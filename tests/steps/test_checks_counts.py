"""Our counts against the real bundled ``llama-server``, request by request, on the demo pair."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cook.engines.base import DraftSettings, Engine, ModelArgs, ServerJob
from cook.engines.process.supervisor import Supervisor
from cook.engines.server import Server
from cook.engines.worker.messages import ModelLoad
from cook.engines.worker.worker import Worker
from cook.paths import demo_dir
from cook.prompts.prompt_set import Prompt
from cook.record.record import RecountOutcome
from cook.scoring.simulate import Profile
from cook.steps.checks import LiveRequest, check_counts
from cook.steps.live import run_of

pytestmark = pytest.mark.engine

CONTEXT = 2048
# A likely end of generation puts it inside drafts, where the two counts are most easily wrong.
ENDING = {"logit_bias": [[0, 9.0]]}


@dataclass(frozen=True)
class Pair:
    target: Path
    draft: Path


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """The demo pair, copied: a run takes minutes, and the files may be replaced meanwhile."""
    folder = tmp_path_factory.mktemp("pair")
    names = ("target-q8_0.gguf", "draft-f16.gguf")
    return Pair(*(Path(shutil.copy(demo_dir() / name, folder)) for name in names))


def fast_error(found: RecountOutcome) -> float:
    """Acceptance by one-pass replay minus live, a fraction."""
    return found.replay_accepted / found.replay_drafted - found.live_accepted / found.live_drafted


def count(
    engine: Engine,
    supervisor: Supervisor,
    pair: Pair,
    setting: DraftSettings,
    *,
    requests: int,
    n_predict: int = 96,
    temperature: float = 0.0,
    sampling: Mapping[str, Any] | None = None,
) -> tuple[RecountOutcome, list[LiveRequest]]:
    """Ask so many prompts live, and recount what was answered."""
    args = ModelArgs(threads=1, threads_batch=1)
    job = ServerJob(pair.target, args, CONTEXT, pair.draft, args, setting)
    lines = (demo_dir() / "data" / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    live = []
    with Server(engine, job, supervisor) as server:
        for seed in range(1, requests + 1):
            text = json.loads(lines[(seed - 1) % len(lines)])["prompt"]
            prompt = server.tokenize(text, add_special=True)
            answer = server.complete(
                prompt, n_predict, temperature=temperature, seed=seed, sampling=sampling
            )
            assert answer.tokens is not None, "mainline returns token ids"
            asked = run_of(Prompt(str(seed), "any", "any", "pick"), answer, answer.predicted_ms)
            live.append(LiveRequest(tuple(prompt), answer.tokens, n_predict, asked))
    with Worker.open(engine, supervisor) as worker:
        info = worker.load(ModelLoad(pair.draft, context=CONTEXT, threads=1))
        found = check_counts(worker, info, live, setting, Profile.MAINLINE_2026_10, context=CONTEXT)
    return found, live


@pytest.mark.parametrize(
    ("setting", "temperature"),
    [(DraftSettings(4), 0.0), (DraftSettings(8, 0, 0.3), 0.8)],
    ids=["greedy", "sampled-p_min"],
)
def test_counts_equal_the_servers(
    bundled: Engine, supervisor: Supervisor, pair: Pair, setting: DraftSettings, temperature: float
) -> None:
    found, live = count(
        bundled, supervisor, pair, setting, requests=4, n_predict=48, temperature=temperature
    )
    assert found.passed, found
    assert all(r.run and r.run.stop in ("limit", "eos") for r in live)
    assert abs(fast_error(found)) < 0.02


def test_an_end_within_drafts(bundled: Engine, supervisor: Supervisor, pair: Pair) -> None:
    found, live = count(
        bundled, supervisor, pair, DraftSettings(6), requests=6, temperature=0.8, sampling=ENDING
    )
    assert found.passed, found
    assert any(r.run and r.run.stop == "eos" for r in live)


@pytest.mark.soak
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("p_min", [0.0, 0.3])
@pytest.mark.parametrize("n_max", [4, 8])
def test_sixty_requests(
    bundled: Engine,
    supervisor: Supervisor,
    pair: Pair,
    n_max: int,
    p_min: float,
    temperature: float,
) -> None:
    setting = DraftSettings(n_max, 0, p_min)
    found, _ = count(bundled, supervisor, pair, setting, requests=60, temperature=temperature)
    print(found)
    assert found.passed, found
    assert abs(fast_error(found)) <= 0.005
