"""Scoring a server that already runs: real ones, and ones that misbehave."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from cook.engines.base import DraftSettings, ModelArgs, ServerJob
from cook.engines.process.supervisor import Supervisor
from cook.engines.server import Server, free_port
from cook.engines.server_api import Remote
from cook.errors import CookError, InputError, StepError
from cook.paths import demo_dir
from cook.prompts.prompt_set import Prompt, PromptSet, load_prompts, select
from cook.score_url import UrlScore, score_url
from cook.steps.live import WARM_UP
from tests.attacks.servers import liar

ML = {
    "build_info": "b1-abc",
    "model_path": "/m/T.gguf",
    "default_generation_settings": {"n_ctx": 512},
}
IK = {"model_path": "/m/T.gguf", "n_ctx": 512, "default_generation_settings": {"n_ctx": 512}}


def prompts(*texts: str) -> PromptSet:
    made = tuple(Prompt(f"p{i}", "ab"[i % 2], text, "pick") for i, text in enumerate(texts))
    return PromptSet("mine", made, "0" * 64)


@pytest.fixture
def fake() -> Iterator[Callable[..., tuple[str, list[Any]]]]:
    """``fake(props, timings, slots=[], settings=None)`` -> (url, the /completion payloads)."""
    with ExitStack() as stack:

        def start(
            props: Any, timings: Any, slots: Any = (), settings: Any = None
        ) -> tuple[str, list[Any]]:
            asked: list[Any] = []

            def completion(payload: Any) -> Any:
                asked.append(payload)
                times = timings(len(asked)) if callable(timings) else timings
                answer = {"content": "x", "timings": times, "stop_type": "limit"}
                return answer | {"generation_settings": settings}

            answers = {"/props": props, "/slots": slots, "/completion": completion}
            return stack.enter_context(liar(answers)).url, asked

        yield start


def timings(drafted: int | None, accepted: int | None, n: int = 41, ms: float = 1000.0) -> Any:
    drafts = {} if drafted is None else {"draft_n": drafted, "draft_n_accepted": accepted}
    return {"prompt_n": 5, "prompt_ms": 10.0, "predicted_n": n, "predicted_ms": ms, **drafts}


def test_figures_by_category_with_their_totals(fake: Any) -> None:
    counts = {2: (40, 30), 3: (40, 10), 4: (20, 20), 5: (50, 20)}
    url, asked = fake(ML, lambda turn: timings(*counts.get(turn, (1, 1))))
    with Remote(url) as remote:
        score = score_url(remote, prompts("one", "two", "three", "four"), max_tokens=41)
    assert [a["prompt"] for a in asked] == [WARM_UP, "one", "two", "three", "four"]
    assert all(a["cache_prompt"] is False and a["top_k"] == 1 for a in asked)
    assert (score.flavour, score.build, score.model) == ("llama.cpp", "b1-abc", "T.gguf")
    assert score.warnings == ()
    first, second, whole = score.categories["a"], score.categories["b"], score.total
    assert (first.acceptance.numerator, first.acceptance.denominator) == (50, 60)
    assert (second.acceptance.numerator, second.acceptance.denominator) == (30, 90)
    assert whole.acceptance.value == 80 / 150
    assert whole.acceptance.low is None, "four requests are too few for an interval"
    assert whole.decode.value == pytest.approx(40.0)
    assert whole.end_to_end is not None
    assert (whole.requests, whole.drafting) == (4, 4)


def scored(server: tuple[str, Any], *texts: str) -> UrlScore:
    with Remote(server[0]) as remote:
        return score_url(remote, prompts(*texts))


def test_a_server_that_drafts_nothing(fake: Any) -> None:
    score = scored(fake(ML, timings(None, None)), "one", "two")
    assert score.total.acceptance is None
    assert score.total.decode is not None
    assert "drafted nothing" in score.warnings[0]


def test_ik_and_repeated_prompts(fake: Any) -> None:
    server = fake(IK, timings(40, 30))
    score = scored(server, "one", "one more")
    assert "p1 repeats or continues" in score.warnings[0]
    assert scored(server, "one", "two").warnings == ()
    assert "others ask it" in scored(server, "one").warnings[0]
    assert score.flavour == "ik_llama.cpp"


def test_prompts_too_long_for_the_server_are_left_out(fake: Any) -> None:
    url, asked = fake(ML, timings(4, 3))
    score = scored((url, asked), "one", "x" * 500, "two")
    with pytest.raises(InputError, match="no prompt fits"):
        scored((url, asked), "x" * 500)
    assert "1 of 3 prompts left out" in score.warnings[0]
    assert [a["prompt"] for a in asked] == [WARM_UP, "one", "two"]


def test_a_busy_server_is_named(fake: Any) -> None:
    server = fake(ML, timings(4, 3), slots=[{"id": 0, "is_processing": True}])
    assert "is serving other requests" in scored(server, "one", "two").warnings[0]


@pytest.mark.parametrize(
    ("props", "times", "kind"),
    [
        (None, timings(4, 3), InputError),
        ({"default_generation_settings": {}}, timings(4, 3), StepError),
        (ML, timings(4, 5), StepError),
        (ML, timings(4, 3, n=0), StepError),
        (ML, {"predicted_n": 4}, StepError),
        (ML, timings(4, 3, ms=-1.0), StepError),
    ],
)
def test_what_cannot_be_scored(fake: Any, props: Any, times: Any, kind: type[CookError]) -> None:
    with pytest.raises(kind):
        scored(fake(props, times), "one", "two")


def test_a_real_server_with_a_draft(engine: Any, tmp_path: Path) -> None:
    one = ModelArgs(threads=1)
    draft, target = demo_dir() / "draft-f16.gguf", demo_dir() / "target-q8_0.gguf"
    job = ServerJob(target, one, 1024, draft, one, DraftSettings(4, 0, 0.0))
    port, supervisor = free_port(), Supervisor(tmp_path / "logs")
    chosen = select(load_prompts("demo"), 4)
    with Server(engine, job, supervisor, port=port, key="sesame"):
        url = f"http://127.0.0.1:{port}"
        with Remote(url) as stranger, pytest.raises(StepError, match="refuses the key"):
            score_url(stranger, chosen)
        with Remote(url, "sesame") as remote:
            first = score_url(remote, chosen, max_tokens=32)
            again = score_url(remote, chosen, max_tokens=32)
    assert [r.draft_n for r in first.runs] == [r.draft_n for r in again.runs]
    assert [r.draft_n_accepted for r in first.runs] == [r.draft_n_accepted for r in again.runs]
    found = first.total.acceptance
    assert found.numerator == sum(r.draft_n_accepted or 0 for r in first.runs) > 0
    assert first.warnings == ()


@pytest.mark.parametrize(
    ("kinds", "drafted", "warning"),
    [
        ("ngram-mod", 0, "by ngram-mod: no figure here is a draft model's alone"),
        ("ngram-mod,draft-simple", 9, "by ngram-mod: no figure here is a draft model's alone"),
        ("draft-simple", 0, "the server drafted nothing, though it speculates by draft-simple"),
        ("draft-simple", 9, ""),
    ],
)
def test_a_server_s_kinds_of_speculation_are_named(
    fake: Any, kinds: str, drafted: int, warning: str
) -> None:
    counts = timings(drafted or None, drafted // 3)
    score = scored(fake(ML, counts, settings={"speculative.types": kinds}), "a", "b")
    assert score.speculators == tuple(kinds.split(","))
    assert bool(score.warnings) == bool(warning)
    assert warning in "".join(score.warnings[:1])
