"""Replay of the trained head against a live server, and of the head inside of the target's file."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from cook.engines.base import DraftSettings, ModelArgs
from cook.formats.heads import HeadKind
from cook.formats.quant_types import Flavour
from cook.formats.sampling import Sampling
from cook.graph.step import source
from cook.prompts.prompt_set import load_prompts
from cook.scoring.simulate import PROFILES, simulate
from cook.steps.head_replay import HeadReplayStep, RowsStep, head_replies
from cook.steps.live import LiveStep
from cook.steps.trace import TraceStep
from tests.demo_heads import write_demo_heads
from tests.workbench import executor

pytestmark = pytest.mark.engine

CONTEXT, TOKENS, ONE = 1024, 64, ModelArgs(threads=1)
PROMPTS = tuple(
    p for p in load_prompts("demo").prompts if p.category in ("docstring", "tests", "literal")
)[::3]
SETTINGS = [DraftSettings(n_max, p_min=p_min) for n_max in (1, 2, 4) for p_min in (0.0, 0.5)]
LIVE = ("head-f16", "head-q8_0")
Counts = list[tuple[int, int]]
"""Drafted and accepted, a request."""


@dataclass(frozen=True)
class Counted:
    """By head's file and settings."""

    replayed: dict[tuple[str, DraftSettings], Counts]
    live: dict[tuple[str, DraftSettings], Counts]


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory, bundled: Any) -> Counted:
    folder = write_demo_heads(tmp_path_factory.mktemp("trained"))
    file = {path.stem: source([path]) for path in folder.glob("*.gguf")}
    trunk, profile = file["trunk"], PROFILES[Flavour(bundled.flavour)]
    trace = TraceStep(bundled, trunk, ONE, CONTEXT, PROMPTS, TOKENS, Sampling(), chat=False)
    rows = RowsStep(bundled, trunk, ONE, trace)
    args = bundled.as_draft(ONE, ONE, CONTEXT)
    replays = {
        name: HeadReplayStep(bundled, name, file[name], trace, rows, args, depth=4, floor=0.5)
        for name in (*LIVE, "whole")
    }
    bare = LiveStep(
        *(bundled, "live", trunk, ONE, CONTEXT, None, ONE, None, PROMPTS, TOKENS, Sampling()),
        chat=False,
        head=HeadKind.MTP,
    )
    live = {
        (name, one): replace(
            bare, name=f"{name} {one.n_max} {one.p_min}", draft=file[name], settings=one
        )
        for name in LIVE
        for one in SETTINGS
    }
    with executor(folder / "home") as running:
        outcomes = running.run([*replays.values(), *live.values()])
    assert not outcomes.failures
    replayed = {}
    for name, step in replays.items():
        artifacts = outcomes.artifact(trace), outcomes.artifact(step)
        texts = [t for _, t in head_replies(step, *artifacts, n_predict=TOKENS, context=CONTEXT)]
        for settings in SETTINGS:
            runs = [simulate(text, settings, profile) for text in texts]
            replayed[name, settings] = [(run.draft_n, run.draft_n_accepted) for run in runs]
    ran = {
        key: [(run.draft_n or 0, run.draft_n_accepted or 0) for run in outcomes.result(step).runs]
        for key, step in live.items()
    }
    return Counted(replayed, ran)


def accepted(counts: Counts) -> float:
    """Of the drafted."""
    return sum(a for _, a in counts) / sum(d for d, _ in counts)


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: f"{s.n_max}-{s.p_min}")
@pytest.mark.parametrize("name", LIVE)
def test_a_replay_counts_as_a_server(counted: Counted, name: str, settings: DraftSettings) -> None:
    """Requests part at near ties alone, since a state of whole batches feeds the next: sums stay.
    A mix of rows with and without outputs moved them by nine points, with a trained head alone."""
    replayed, live = counted.replayed[name, settings], counted.live[name, settings]
    assert len(replayed) == len(live) == len(PROMPTS)
    equal = sum(one == other for one, other in zip(replayed, live, strict=True))
    assert equal > len(PROMPTS) // 2
    assert accepted(replayed) == pytest.approx(accepted(live), abs=0.005)


def test_the_head_inside_counts_as_its_own_file(counted: Counted) -> None:
    for settings in SETTINGS:
        inside, apart = (counted.replayed[name, settings] for name in ("whole", "head-q8_0"))
        assert inside == apart


def test_the_head_is_trained(counted: Counted) -> None:
    """Least squares alone give 61 and 32 % on all of the demo's prompts."""
    first, fourth = (counted.live["head-q8_0", DraftSettings(n_max)] for n_max in (1, 4))
    assert accepted(first) > 0.75
    assert accepted(fourth) > 0.6
