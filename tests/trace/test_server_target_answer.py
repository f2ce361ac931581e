"""Replies recorded over HTTP: joined on ids, holes marked, and the same as the worker's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cook.engines.base import Engine, ModelArgs, ServerJob
from cook.engines.process.supervisor import Supervisor
from cook.engines.server import Server
from cook.engines.server_api import Completion, TokenProbability, TopToken
from cook.engines.worker.messages import ModelLoad
from cook.engines.worker.worker import Worker
from cook.errors import InputError
from cook.formats.sampling import Sampling
from cook.trace.server_target import align, reply_of_completion

GREEDY = Sampling(0.0, seed=1).applied("server")


def test_alignment_marks_what_cannot_be_told_apart() -> None:
    assert align([5, 6, 7], [5, 6, 7]) == [0, 1, 2]
    assert align([5, 6, 7], [5, 7]) == [0, None, 1]
    assert align([5, 6, 6, 7], [5, 6, 7]) == [0, None, None, 2]
    assert align([5, 6], [9]) == [None, None]
    assert align([5, 6], []) == [None, None]
    assert align([5, 6], [None]) == [None, None]


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=20))
def test_alignment_is_never_wrong(pairs: list[tuple[int, bool]]) -> None:
    tokens = [t for t, _ in pairs]
    kept = [i for i, (_, keep) in enumerate(pairs) if keep]
    found = align(tokens, [tokens[i] for i in kept])
    for at, entry in enumerate(found):
        if entry is not None:
            assert kept[entry] == at
    if len(kept) == len(tokens):
        assert found == list(range(len(tokens)))


def answer(tokens: tuple[int, ...] | None, probabilities: list[TokenProbability]) -> Completion:
    return Completion("", tokens, 3, 1.0, 3, 1.0, None, None, "limit", False, tuple(probabilities))


def chance(token: int, logprob: float) -> TokenProbability:
    chosen = TopToken(token, "", logprob)
    return TokenProbability(chosen, (chosen, TopToken(9, "", logprob - 1)))


def test_a_hole_is_marked() -> None:
    told = answer((4, 5, 6), [chance(4, -0.5), chance(6, -0.25)])
    reply = reply_of_completion(told, (1, 2), name="x", category="c", top=2, sampler=GREEDY)
    assert reply.known.tolist() == [True, False, True]
    assert reply.logp.tolist() == [-0.5, 0.0, -0.25]
    assert reply.margin.tolist() == [1.0, 0.0, 1.0]
    assert reply.top_ids.tolist() == [[4, 9], [-1, -1], [6, 9]]
    with pytest.raises(InputError, match="no token ids"):
        reply_of_completion(answer(None, []), (1,), name="x", category="c", top=2, sampler=GREEDY)


@pytest.mark.engine
def test_a_server_and_the_worker_record_the_same(
    bundled: Engine, tiny_model: Path, tmp_path: Path
) -> None:
    supervisor = Supervisor(tmp_path / "logs")
    prompt = (1, 40, 41, 42)
    args = ModelArgs(threads=1, threads_batch=1)
    with Server(bundled, ServerJob(tiny_model, args, 512), supervisor) as server:
        told = server.complete(prompt, 24, n_probs=8)
    over_http = reply_of_completion(told, prompt, name="x", category="c", top=8, sampler=GREEDY)
    with Worker.open(bundled, supervisor) as worker:
        worker.load(ModelLoad(tiny_model, context=512))
        said = worker.generate(prompt, n_predict=24, top=8)
    assert over_http.tokens.tolist() == said.tokens.tolist()
    known = over_http.known
    assert known.mean() > 0.5  # byte tokens leave holes
    assert np.abs(over_http.logp - said.logp)[known].max() < 1e-2
    assert said.top_ids is not None
    assert (over_http.top_ids[known][:, 0] == said.top_ids[known][:, 0]).all()
