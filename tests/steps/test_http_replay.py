"""Replay through a stock server: the same counts as from a whole pass over the reply."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cook.engines.base import DraftSettings, Engine, ModelArgs, ServerJob
from cook.engines.process.supervisor import Supervisor
from cook.engines.server import Server
from cook.engines.server_api import Completion
from cook.engines.worker.messages import ModelLoad
from cook.engines.worker.worker import Worker
from cook.errors import InputError, StepError
from cook.paths import demo_dir
from cook.scoring.simulate import Positions, Profile, positions_of, simulate
from cook.steps.http_replay import agreement, continuations, positions_over_http

EOG = frozenset({0})
ROLLOUT = 12


def says(text: Sequence[int]) -> tuple[int, float]:
    """A small draft: its next token and how sure it is, from the last two tokens."""
    chance = random.Random(f"{list(text[-2:])}")
    return chance.randrange(3), 0.1 * chance.randrange(1, 11)


def continues(text: Sequence[int], wanted: int) -> list[tuple[int, float]]:
    found: list[tuple[int, float]] = []
    for _ in range(wanted):
        found.append(says([*text, *(t for t, _ in found)]))
    return found


def server(text: Sequence[int], wanted: int) -> Completion:
    """As llama-server: it stops after an end of generation."""
    told = continues(text, wanted)
    for k, (token, _) in enumerate(told):
        if token in EOG:
            told = told[: k + 1]
            break
    tokens = tuple(t for t, _ in told)
    return Completion("", tokens, 1, 1.0, len(tokens), 1.0, None, None, "limit", False)


def whole(prompt: list[int], tokens: list[int], reply: int, n_predict: int) -> Positions:
    """What a pass over the whole reply gives, rollouts included."""
    first = [says([*prompt, *tokens[:i]]) for i in range(len(tokens))]
    match = np.array([t == tokens[i] for i, (t, _) in enumerate(first)])
    rollout = {
        i: np.array(
            [c for _, c in continues([*prompt, *tokens[:i], first[i][0]], ROLLOUT)], np.float32
        )
        for i in range(1, len(tokens))
        if not match[i]
    }
    return Positions(
        prompt=len(prompt),
        reply=reply,
        match=match,
        confidence=np.array([c for _, c in first], np.float32),
        eog=np.isin(tokens, list(EOG)),
        rollout=rollout,
        tail=np.array([c for _, c in continues([*prompt, *tokens], ROLLOUT)], np.float32),
        n_predict=n_predict,
    )


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.integers(0, 2), min_size=2, max_size=24),
    st.integers(1, 6),
    st.sampled_from(list(Profile)),
    st.booleans(),
)
def test_counts_are_those_of_a_whole_pass(
    noise: list[int], n_max: int, profile: Profile, follows: bool
) -> None:
    prompt = [1, 2]
    tokens: list[int] = []
    for token in noise:  # some text that the draft is often right about
        tokens.append(says([*prompt, *tokens])[0] if follows and token else token)
    setting, n_predict = DraftSettings(n_max), len(tokens)
    found, requests = positions_over_http(
        server,
        prompt,
        tokens,
        setting,
        profile,
        reply=len(tokens),
        eog=EOG,
        n_predict=n_predict,
    )
    ours = simulate(found, setting, profile)
    theirs = simulate(whole(prompt, tokens, len(tokens), n_predict), setting, profile)
    assert ours.start.tolist() == theirs.start.tolist()
    assert ours.length.tolist() == theirs.length.tolist()
    assert ours.accepted.tolist() == theirs.accepted.tolist()
    assert requests >= ours.cycles


@pytest.mark.parametrize("setting", [DraftSettings(4, 2), DraftSettings(4, 0, 0.5)])
def test_what_cannot_be_scored_is_refused(setting: DraftSettings) -> None:
    with pytest.raises(InputError, match="neither n_min nor p_min"):
        positions_over_http(
            server, [1], [1, 2, 1], setting, Profile.MAINLINE_2026_10, reply=3, eog=EOG
        )


def test_a_server_that_tells_no_token_ids_is_refused() -> None:
    def without_ids(text: Sequence[int], wanted: int) -> Completion:
        return Completion("x", None, 1, 1.0, 1, 1.0, None, None, "limit", False)

    with pytest.raises(StepError, match="no token ids"):
        positions_over_http(
            without_ids,
            [1],
            [1, 2, 1],
            DraftSettings(4),
            Profile.MAINLINE_2026_10,
            reply=3,
            eog=EOG,
        )


def test_agreement_counts_equal_replies() -> None:
    found = agreement([(8, 4), (4, 1)], [(8, 4), (4, 2)])
    assert (found.replies, found.equal, found.http, found.worker) == (2, 1, (12, 5), (12, 6))
    assert found.error_points == pytest.approx(-100 / 12)
    assert "1 of 2 replies have equal counts" in str(found)
    assert agreement([(0, 0)], [(0, 0)]).error_points is None


@pytest.mark.engine
def test_a_real_server_agrees_with_the_worker(bundled: Engine, tmp_path: Path) -> None:
    """On the demo pair; a near-tie may fall otherwise at another batch shape, so few differ."""
    supervisor = Supervisor(tmp_path / "logs")
    draft, target = demo_dir() / "draft-f16.gguf", demo_dir() / "target-q8_0.gguf"
    setting, profile = DraftSettings(4), Profile.MAINLINE_2026_10
    texts = [f"def add_{i}(a, b):\n    " for i in range(6)]
    replies = []
    with Worker.open(bundled, supervisor) as worker:
        info = worker.load(ModelLoad(target, context=512))
        for text in texts:
            prompt = worker.tokenize(text)
            said = worker.generate(prompt, n_predict=40, extra=6)
            replies.append((text, prompt, said.tokens.tolist(), said.emitted))
        worker.load(ModelLoad(draft, context=512))
        theirs = []
        for _, prompt, tokens, reply in replies:
            found = worker.replay(prompt, tokens)
            positions = positions_of(
                found,
                np.array(tokens, np.int32),
                prompt=len(prompt),
                reply=reply,
                eog=info.eog,
                n_predict=40,
                context=512,
            )
            run = simulate(positions, setting, profile)
            theirs.append((run.draft_n, run.draft_n_accepted))
    job = ServerJob(draft, ModelArgs(threads=1, threads_batch=1), 512)
    ours = []
    with Server(bundled, job, supervisor) as running:
        for _, prompt, tokens, reply in replies:
            positions, _ = positions_over_http(
                continuations(running),
                prompt,
                tokens,
                setting,
                profile,
                reply=reply,
                eog=info.eog,
                n_predict=40,
                context=512,
            )
            run = simulate(positions, setting, profile)
            ours.append((run.draft_n, run.draft_n_accepted))
    told = agreement(ours, theirs)
    assert told.worker[0] > 50
    assert told.equal >= told.replies - 1
    assert told.error_points is not None
    assert abs(told.error_points) < 5
