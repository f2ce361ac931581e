"""A target behind llama-server: what it says is checked and joined on ids, drafting refused."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cook.engines.base import DraftSettings, Engine, ModelArgs, ServerJob
from cook.engines.process.supervisor import Supervisor
from cook.engines.server import Server, free_port
from cook.engines.server_api import Completion, Remote, TokenProbability, TopToken
from cook.engines.worker.kept_workers import KeptWorkers
from cook.errors import CookError, InputError, StepError
from cook.formats.sampling import Sampling
from cook.formats.trace_file import TraceFile
from cook.graph.step import source
from cook.paths import demo_dir
from cook.prompts.prompt_set import Prompt
from cook.trace.server_target import (
    ServerTarget,
    Tokenizer,
    align,
    reply_of_completion,
    server_facts,
)
from cook.trace.session import Dropped, TracePlan, record
from cook.trace.worker_target import WorkerTarget
from tests.http_server import Status

KEY = "a-key-of-the-test"
PROPS = {"default_generation_settings": {"n_ctx": 64}, "build_info": "b1-abc", "model_path": "/x/t"}
PLAN = TracePlan(
    (Prompt("p", "code", "hi", "pick"),), 4, 64, Sampling(0.0, seed=1).applied("server"), top=2
)


def completion(tokens: list[int] | None, **changes: Any) -> dict[str, Any]:
    count = len(tokens or [1])
    timings = {"prompt_n": 2, "prompt_ms": 1.0, "predicted_n": count, "predicted_ms": 1.0}
    answer: dict[str, Any] = {"content": "text", "timings": timings, "stop_type": "limit"}
    if tokens is not None:
        answer["tokens"] = tokens
    return {**answer, **changes}


def answers(**more: Any) -> dict[str, Any]:
    known = {
        "/props": PROPS,
        "/slots": [{"id": 0, "speculative": False}],
        "/v1/models": {"data": [{"id": "t", "meta": {"n_vocab": 50}}]},
        "/tokenize": lambda body: {"tokens": [i % 50 for i in range(len(body["content"]))]},
        "/detokenize": lambda body: {"content": "x" * len(body["tokens"])},
        "/completion": lambda body: completion([7] * body["n_predict"]),
    }
    return known | {f"/{name}": answer for name, answer in more.items()}


def target(url: str) -> ServerTarget:
    remote = Remote(url)
    facts = server_facts(remote)
    assert facts is not None
    return ServerTarget(remote, facts, None)


MODELS = [{"id": "big", "aliases": []}, {"id": "little", "aliases": ["small"]}]
ROUTER = {
    "/v1/models": {"data": MODELS},
    "/props": {
        "role": "router",
        "model_path": "none",
        "default_generation_settings": {"n_ctx": 0},
    },
}


def test_a_router_is_asked_for_one_of_its_models(fake: Any) -> None:
    """The context is the child's, and every request names the model."""
    loaded = {"id": "little", "aliases": ["small"], "meta": {"n_vocab": 50}}
    listed = {"data": [{"id": "big", "meta": {"n_vocab": 9}}, loaded]}
    of_child = {f"{path}?model=small": answer for path, answer in answers().items()}
    posts = {path: answers()[path] for path in ("/tokenize", "/completion")}
    server = fake({**ROUTER, **of_child, **posts, "/v1/models?model=small": listed})
    remote = Remote(server.url, model="small")
    facts = server_facts(remote)
    assert facts is not None
    assert (facts.context, facts.vocabulary_size, facts.model) == (64, 50, "t")
    reply = ServerTarget(remote, facts, None).reply(PLAN.prompts[0], PLAN)
    assert not isinstance(reply, Dropped)
    asked = [body["model"] for path, body in server.asked if path in posts]
    assert len(asked) >= 2
    assert set(asked) == {"small"}


@pytest.mark.parametrize(
    ("model", "error", "message", "hint"),
    [
        (None, InputError, "is a router of several models", "--model NAME.*: big, little, small"),
        ("mid", InputError, "has no model 'mid'", "it has big, little, small"),
        ("big", StepError, "model name=big failed to load", ""),
    ],
)
def test_a_router_s_models_are_named_where_none_of_them_is_asked(
    model: str | None, error: type[CookError], message: str, hint: str, fake: Any
) -> None:
    failed = {"error": {"code": 500, "message": "model name=big failed to load"}}
    of_models = {f"/v1/models?model={name}": ROUTER["/v1/models"] for name in ("mid", "big")}
    server = fake({**ROUTER, **of_models, "/props?model=big": Status(500, failed)})
    with pytest.raises(error, match=message) as caught:
        server_facts(Remote(server.url, model=model))
    assert re.search(hint, caught.value.hint or "")


def test_a_server_of_one_model_has_no_other(fake: Any) -> None:
    known = {f"{path}?model=u": answer for path, answer in answers().items()}
    with pytest.raises(InputError, match="has no model 'u'"):
        server_facts(Remote(fake(known).url, model="u"))


def test_requests_are_those_of_a_recording(fake: Any) -> None:
    server = fake(answers())
    found = target(server.url).reply(PLAN.prompts[0], PLAN)
    assert not isinstance(found, Dropped)
    assert (found.prompt.tolist(), found.tokens.tolist()) == ([0, 1], [7] * 4)
    path, body = server.asked[-1]
    assert path == "/completion"
    wanted = {"prompt": [0, 1], "cache_prompt": False, "return_tokens": True, "n_probs": 2}
    assert {key: body[key] for key in wanted} == wanted
    assert (body["temperature"], body["top_k"], body["repeat_penalty"]) == (0.0, 1, 1.0)


def test_a_prompt_fits_the_context_that_is_asked_for(fake: Any) -> None:
    """The drafts are replayed in it, however large the server's is."""
    found = target(fake(answers()).url).reply(PLAN.prompts[0], replace(PLAN, context=5))
    assert isinstance(found, Dropped)
    assert found.reason == "its 2 tokens and 4 more do not fit the context of 5"


def test_something_else_is_not_taken_for_a_server(fake: Any) -> None:
    assert server_facts(Remote(fake({}).url)) is None
    assert server_facts(Remote(fake({"/props": []}).url)) is None


def test_drafting_is_refused_wherever_it_shows(fake: Any) -> None:
    by_slot = fake(answers(slots=[{"speculative": True}]))
    with pytest.raises(InputError, match=r"drafts .*/slots"):
        target(by_slot.url)
    timings = {**completion([7])["timings"], "draft_n": 3, "draft_n_accepted": 1}
    by_timing = fake(answers(completion=completion([7], timings=timings)))
    with pytest.raises(InputError, match=r"drafts .*draft_n"):
        target(by_timing.url).reply(PLAN.prompts[0], PLAN)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (completion([7, 7, 7, 7, 7]), "5 tokens for the 4 asked for"),
        (completion([7, 50]), "beyond its vocabulary of 50"),
        (completion([7, -1]), "tokens"),
        ({"content": "x"}, "timings: Field required"),
        (b"\xff", "no JSON object"),
    ],
)
def test_answers_that_lie_are_refused(fake: Any, answer: Any, message: str) -> None:
    server = fake(answers(completion=answer))
    with pytest.raises(StepError, match=message):
        target(server.url).reply(PLAN.prompts[0], PLAN)


def test_refusals_and_absence_are_step_errors(fake: Any) -> None:
    refusing = fake({"/props": Status(401, {})})
    with pytest.raises(StepError, match="refuses the key"):
        server_facts(Remote(refusing.url))
    with pytest.raises(StepError, match="Connect"):
        server_facts(Remote("http://127.0.0.1:9"))


def test_text_without_ids_is_tokenized_again_or_dropped(fake: Any) -> None:
    """As ik answers: no token ids."""
    same = completion(None, content="xxx")
    same["timings"]["predicted_n"] = 3
    server = fake(answers(completion=same))
    found = target(server.url).reply(PLAN.prompts[0], PLAN)
    assert not isinstance(found, Dropped)
    assert found.tokens.tolist() == [0, 1, 2]
    assert not found.known.any()

    long = Prompt("p", "code", "x" * 61, "pick")
    for text, prompt, reason in (
        ("abc", PLAN.prompts[0], "another text"),
        ("xx", PLAN.prompts[0], "2 tokens"),
        ("xxx", long, "do not fit"),
    ):
        server = fake(answers(completion={**same, "content": text}))
        dropped = target(server.url).reply(prompt, PLAN)
        assert isinstance(dropped, Dropped)
        assert reason in dropped.reason


@pytest.mark.engine
def test_a_server_and_the_worker_record_the_same_trace(bundled: Engine, tmp_path: Path) -> None:
    """Token for token on the demo target, what lies beyond an end of reply included."""
    supervisor = Supervisor(tmp_path / "logs")
    model = demo_dir() / "target-q8_0.gguf"
    texts = ("def add(a, b):\n    return", "import os\n", "# The end.\n", "class Tree:\n")
    prompts = tuple(Prompt(f"p{i}", "code", text, "pick") for i, text in enumerate(texts))
    args = ModelArgs(threads=1, threads_batch=1)

    def plan(draws: Any) -> TracePlan:
        return TracePlan(prompts, 24, 512, Sampling(0.0, seed=1).applied(draws), top=8, extra=5)

    here, there = tmp_path / "here.trace", tmp_path / "there.trace"
    with (
        KeptWorkers(tmp_path / "logs") as workers,
        WorkerTarget(bundled, source([model]), args, 512, False, supervisor, workers) as local,
    ):
        record(local, plan("worker"), here)
    port = free_port()
    with (
        Server(bundled, ServerJob(model, args, 512), supervisor, port=port, key=KEY),
        Tokenizer(bundled, model, supervisor) as tokenizer,
    ):
        remote = Remote(f"http://127.0.0.1:{port}", KEY)
        facts = server_facts(remote)
        assert facts is not None
        found = record(ServerTarget(remote, facts, tokenizer), plan("server"), there)
    assert (found.replies, found.dropped) == (4, ())
    ours, theirs = TraceFile(here), TraceFile(there)
    assert theirs.header.tokenizer_sha256 == ours.header.tokenizer_sha256
    assert theirs.header.template_sha256 == ours.header.template_sha256
    for one, other in zip(ours, theirs, strict=True):
        assert one.prompt.tolist() == other.prompt.tolist()
        assert one.tokens.tolist() == other.tokens.tolist()
        assert one.head.emitted == other.head.emitted
        known = other.known
        assert known[: other.head.emitted].mean() > 0.5
        assert np.abs(one.logp - other.logp)[known].max() < 1e-2
        assert (one.top_ids[known][:, 0] == other.top_ids[known][:, 0]).all()


@pytest.mark.engine
def test_a_real_drafting_server_is_refused(bundled: Engine, tmp_path: Path) -> None:
    model, draft = (demo_dir() / name for name in ("target-q8_0.gguf", "draft-f16.gguf"))
    one = ModelArgs(threads=1)
    job = ServerJob(model, one, 512, draft, one, DraftSettings(2))
    port = free_port()
    with (
        Server(bundled, job, Supervisor(tmp_path / "logs"), port=port, key=KEY),
        pytest.raises(InputError, match="drafts"),
    ):
        server_facts(Remote(f"http://127.0.0.1:{port}", KEY))


def test_alignment_marks_what_cannot_be_told_apart() -> None:
    assert align([5, 6, 7], [5, 6, 7]) == [0, 1, 2]
    assert align([5, 6, 7], [5, 7]) == [0, None, 1]
    assert align([5, 6, 6, 7], [5, 6, 7]) == [0, None, None, 2]
    assert align([5, 6], [9]) == align([5, 6], []) == align([5, 6], [None]) == [None, None]


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


def chance(token: int, logprob: float) -> TokenProbability:
    top = [TopToken(id=token, logprob=logprob), TopToken(id=9, logprob=logprob - 1)]
    return TokenProbability(id=token, logprob=logprob, top_logprobs=top)


def test_a_hole_is_marked() -> None:
    asked, known = (PLAN.prompts[0], "hi", (1, 2), PLAN), (chance(4, -0.5), chance(6, -0.25))
    said = Completion("", (4, 5, 6), 3, 1.0, 3, 1.0, None, None, "limit", known)
    reply = reply_of_completion(said, *asked)
    assert reply.known.tolist() == [True, False, True]
    assert reply.logp.tolist() == [-0.5, 0.0, -0.25]
    assert reply.margin.tolist() == [1.0, 0.0, 1.0]
    assert reply.top_ids.tolist() == [[4, 9], [-1, -1], [6, 9]]
    with pytest.raises(InputError, match="no token ids"):
        reply_of_completion(replace(said, tokens=None), *asked)
