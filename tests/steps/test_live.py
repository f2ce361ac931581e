"""A server that is asked: what a tool leaves out shows, and so does others' use of processors."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cook.engines.base import DraftSettings, ModelArgs, ServerJob
from cook.engines.process.supervisor import Supervisor
from cook.engines.server import Server
from cook.engines.server_api import Completion, DepthCount
from cook.engines.speculation import NgramSettings, NgramType
from cook.errors import StepError
from cook.formats.heads import HeadKind
from cook.formats.sampling import Sampling
from cook.graph.step import Workbench, source
from cook.paths import demo_dir
from cook.prompts.prompt_set import Prompt
from cook.record.record import TOLERATED_CORES, PromptRun
from cook.steps import live
from cook.steps.deal import DealStep
from cook.steps.live import PARTING_TOKENS, WARM_UP, LiveStep, Timed, Watch
from tests.conftest import STANDINS
from tests.workbench import live_step

PROMPT = 'def add(a, b):\n    """Return the sum of a and b.\n'
HEADS: dict[str, Any] = json.loads((STANDINS / "heads.json").read_text())
"""What real servers of both engines wrote and answered where a head did not draft, the last lines:
llama.cpp 0c1e570, ik_llama.cpp 8337e4cd; those that serve on as a build may that drops it."""


@pytest.mark.parametrize("case", HEADS)
def test_a_head_that_does_not_draft_is_an_error_before_the_first_prompt(
    case: str, standin_engine: Callable[..., Any], tiny_model: Path, bench: Workbench
) -> None:
    """Next to no draft, which runs: none of them becomes a second run without a draft."""
    found = HEADS[case]
    fault = {"tool": "server", "fault": "recorded_server", "when": "--spec-type", **found}
    plain = {**fault, "when": "", "log": "", "speculative": False}
    for name in ("status", "signal", "types", "counts"):
        plain.pop(name, None)
    engine = standin_engine(flavour=found["flavour"], faults=[fault, plain])
    target, first = source([tiny_model]), found.get("first")
    bare = live_step(engine, target=target, draft=None, max_tokens=16)
    head = replace(
        bare,
        name="head",
        draft=target,
        settings=DraftSettings(2),
        head=HeadKind.MTP,
        ngram=NgramSettings(NgramType(first)) if first else None,
    )
    dealt = DealStep((bare, head), 0, together=True).run(bench).dealt
    assert dealt[0].outcome is not None, dealt[0].failure
    assert dealt[1].outcome is None
    assert re.search(found["message"], dealt[1].failure or "")


@pytest.mark.ik
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


@pytest.mark.ik
def test_slow_answers_of_ik_tell_how_long_the_draft_read(
    ik_engine: Any, bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = tuple(Prompt(n, "code", f"{n}: {PROMPT * 20}", "pick") for n in ("a", "b"))
    drafted = live_step(ik_engine, DraftSettings(3), prompts=prompts, max_tokens=48)

    def runs() -> tuple[PromptRun, ...]:
        (dealt,) = DealStep((drafted,), 0, False).run(bench).dealt
        return dealt.outcome.runs

    whole = runs()
    assert [run.late_reading_ms for run in whole] == [None, None], "each token takes a millisecond"
    monkeypatch.setattr(live, "STREAMED_MS", 0.0)
    streamed = runs()
    for run, same in zip(streamed, whole, strict=True):
        assert (run.draft_n, run.draft_n_accepted) == (same.draft_n, same.draft_n_accepted)
        assert run.late_reading_ms is not None
        assert run.late_reading_ms < run.predicted_ms
    bare = replace(drafted, draft=None, settings=None).run(bench).runs
    assert [run.late_reading_ms for run in bare] == [None, None], "nothing was drafted"


@pytest.mark.parametrize(
    ("token_ms", "prompt_tokens", "streamed"),
    [(10.0, 1, True), (9.0, 300, False), (9.0, 330, True), (0.1, 4_000, False)],
)
def test_late_readings_are_told_where_that_takes_less_than_they_are_off_by(
    step: LiveStep, token_ms: float, prompt_tokens: int, streamed: bool
) -> None:
    """On the machine of this test reading a token takes a sixth of writing it."""
    served = replace(step, max_tokens=48)
    server: Any = SimpleNamespace(tokenize=lambda _: (0,) * prompt_tokens)
    warmed: Any = SimpleNamespace(
        decode_tokens_per_s=1000 / token_ms, prompt_ms=20 * token_ms / 6, prompt_n=20
    )
    assert served.is_streamed(server, warmed, "a text") is streamed
    assert not replace(served, draft=None, settings=None).is_streamed(server, warmed, "a text")


@pytest.mark.parametrize(
    ("stop", "text_tokens", "counted", "past_end"),
    [("eos", 17, 20, 2), ("limit", 17, 20, 0), ("eos", 19, 20, 0), ("eos", 3, 20, 4)],
)
def test_what_ik_counts_past_an_end_is_taken_off(
    step: LiveStep, stop: str, text_tokens: int, counted: int, past_end: int
) -> None:
    """At most as many as its longest accepted draft: text says less of tokens that it hides."""
    depths = tuple(DepthCount(d, 4, 6 - d) for d in range(1, 7))
    answer = Completion(*("text", None, 10, 5.0, counted, 60.0, 24, 15, stop), by_depth=depths[:4])
    server: Any = SimpleNamespace(
        complete=lambda *_, **__: answer, tokenize=lambda _: (0,) * text_tokens
    )
    run = step.ask(server, step.prompts[0], "text")
    assert run.past_end == past_end
    assert (run.predicted_n, run.draft_n_accepted) == (counted - past_end, 15 - past_end)
    assert run.counted == (24, 15)
    assert run.cycles == 4


def test_a_draft_that_had_nothing_to_offer_drafted_nought(step: LiveStep) -> None:
    """Servers leave it out, and forecasts count it."""
    answer = Completion("text", None, 10, 5.0, 20, 60.0, None, None, "limit")
    server: Any = SimpleNamespace(complete=lambda *_, **__: answer)
    run = step.ask(server, step.prompts[0], "text")
    assert (run.draft_n, run.draft_n_accepted, run.cycles) == (0, 0, 19)
    bare = replace(step, draft=None, settings=None)
    assert bare.ask(server, step.prompts[0], "text").draft_n is None


def test_what_changes_answers_alone_has_another_key(step: LiveStep) -> None:
    assert step.params()["streamed"] is True
    assert "streamed" not in replace(step, draft=None, settings=None).params()
    sampled = replace(step, sampling=Sampling(0.7))
    assert sampled.params()["seeds"] == "by prompt"
    assert "seeds" not in step.params()
    assert "draft_context" not in step.params()
    assert replace(step, draft_context=256).key != step.key


@pytest.mark.engine
def test_every_prompt_is_sampled_with_random_numbers_of_its_own(
    bundled: Any, bench: Workbench
) -> None:
    prompts = tuple(Prompt(name, "prose", PROMPT, "pick") for name in ("a", "b"))
    sampled = live_step(bundled, prompts=prompts, sampling=Sampling(1.0, seed=7))
    first, second = sampled.run(bench).runs
    assert first.tokens != second.tokens, "one text, and other draws"
    assert [r.tokens for r in sampled.run(bench).runs] == [first.tokens, second.tokens]
    greedy = replace(sampled, sampling=Sampling()).run(bench)
    assert len({run.tokens for run in greedy.runs}) == 1


@pytest.fixture
def step(standin_engine: Callable[..., Any]) -> LiveStep:
    return live_step(standin_engine(flavour="ik_llama.cpp"), DraftSettings(4, 2))


SPIN = "import time\nend = time.monotonic() + 1.5\nwhile time.monotonic() < end: pass"


def test_a_busy_neighbour_is_seen_and_our_own_child_is_not() -> None:
    ours_s = iter([0.0, 0.0, 1.1])
    watch = Watch(lambda: next(ours_s))
    spinner = subprocess.Popen([sys.executable, "-c", SPIN])
    time.sleep(1.2)
    with_it, without_it = watch.others_cores(), watch.others_cores()
    spinner.wait()
    if with_it is None or without_it is None:
        pytest.skip("the kernel does not tell processor time here")
    assert with_it > 0.4
    assert without_it <= max(0.05, with_it - 0.4)


def test_unknown_is_unknown_and_little_is_no_warning() -> None:
    assert Watch(lambda: None).others_cores() is None
    timed = Timed()
    for cores in (None, TOLERATED_CORES):
        timed.others_cores = cores
        assert timed.warnings == ()
    timed.others_cores = 1.0
    assert "other programs kept 1.0 of" in timed.warnings[0]


@pytest.mark.engine
def test_a_request_that_fails_ends_the_others(bundled: Any, bench: Workbench) -> None:
    """At once, not after what they still have to write."""
    step = live_step(bundled, slots=2, max_tokens=900)
    long, short = (replace(p, text=p.text[:40]) for p in step.prompts[:2])
    too_long = replace(short, id="too long", text="word " * 2000)
    step = replace(step, prompts=(too_long, long, short))
    began = time.monotonic()
    with pytest.raises(StepError):
        step.run(bench)
    assert time.monotonic() - began < 30


@pytest.mark.engine
@pytest.mark.parametrize("settings", [None, DraftSettings(4)])
def test_slots_are_served_in_parallel_by_a_real_server(
    bundled: Any, bench: Workbench, settings: DraftSettings | None
) -> None:
    step = live_step(bundled, settings, slots=2)
    parallel = step.run(bench)
    alone = replace(step, slots=1).run(bench)
    assert [run.id for run in parallel.runs] == [prompt.id for prompt in step.prompts]
    for flag, value in (("--parallel", "2"), ("--ctx-size", "2048")):
        assert parallel.command[parallel.command.index(flag) + 1] == value
    assert parallel.busy_s is not None
    assert parallel.busy_s < sum(run.wall_ms for run in parallel.runs) / 1000, "side by side"
    same = sum(a.tokens == b.tokens for a, b in zip(parallel.runs, alone.runs, strict=True))
    assert same >= 2, "what is drafted and verified next to others is each one's own"
    assert all((run.draft_n is not None) == (settings is not None) for run in parallel.runs)
