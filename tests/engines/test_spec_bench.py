"""ik's llama-spec-bench: the real one, and stand-ins that lie."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cook.engines.base import DraftSettings, ModelArgs, ServerJob
from cook.engines.process.supervisor import Supervisor
from cook.engines.server import Server
from cook.engines.spec_bench import (
    BenchPrompt,
    BenchRun,
    UnprintableReply,
    require_spec_bench,
    run_spec_bench,
)
from cook.errors import InputError, PrerequisiteError, StepError
from cook.formats.sampling import Sampling
from cook.paths import demo_dir

Make = Callable[..., Any]
GREEDY = Sampling()
ONE = ModelArgs(threads=1)
PROMPTS = (
    BenchPrompt("add", 'def add(a, b):\n    """Return the sum of a and b.\n', 24),
    BenchPrompt("read", "import os\n\n\ndef read(path):\n", 24),
)


@pytest.fixture
def supervisor(tmp_path: Path) -> Supervisor:
    return Supervisor(tmp_path / "logs")


def demo_job(draft: bool = True) -> ServerJob:
    target = demo_dir() / "target-q8_0.gguf"
    if not draft:
        return ServerJob(target, ONE, 1024)
    return ServerJob(target, ONE, 1024, demo_dir() / "draft-f16.gguf", ONE, DraftSettings(4))


# ------------------------------------------------------------------ the real one


@pytest.mark.ik
def test_it_counts_as_the_server_does(ik_engine: Any, supervisor: Supervisor) -> None:
    """Same prompts, same greedy text; the counts differ at the end of a reply at most."""
    seen: list[int] = []
    found = run_spec_bench(
        ik_engine, demo_job(), PROMPTS, GREEDY, supervisor, template=False, on_row=seen.append
    )
    assert [a.id for a in found.attempts] == ["add", "read"]
    assert seen[-1] == 3, "two rows and the summary"
    for attempt, prompt in zip(found.attempts, PROMPTS, strict=True):
        assert attempt.error is None
        assert attempt.prompt == prompt.text
        assert attempt.generated == 24
        assert attempt.drafted
        assert attempt.accepted is not None
        assert 0 < attempt.prompt_ms + attempt.decode_ms <= attempt.total_ms * 1.001
        with Server(ik_engine, demo_job(), supervisor) as server:
            said = server.complete(prompt.text, 24, temperature=0.0, seed=1, sampling={"top_k": 1})
        assert attempt.prompt_n == said.prompt_n
        assert said.draft_n is not None
        # The server leaves the last cycle's text out where the limit falls into it.
        assert attempt.text.startswith(said.text)
        assert abs(attempt.drafted - said.draft_n) <= 4


@pytest.mark.ik
def test_without_a_draft(ik_engine: Any, supervisor: Supervisor) -> None:
    found = run_spec_bench(
        ik_engine, demo_job(draft=False), PROMPTS, GREEDY, supervisor, template=False
    )
    assert [(a.drafted, a.accepted) for a in found.attempts] == [(None, None)] * 2


@pytest.mark.ik
def test_the_template_renders_as_the_servers(
    ik_engine: Any, supervisor: Supervisor, make_tiny_model: Make, tmp_path: Path
) -> None:
    template = (
        "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + "
        "message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
    )
    model = make_tiny_model(tmp_path / "chat.gguf", template=template)
    job = ServerJob(model, ONE, 512)
    prompt = BenchPrompt("hello", "tea root stone?", 4)
    found = run_spec_bench(ik_engine, job, [prompt], GREEDY, supervisor, template=True)
    with Server(ik_engine, job, supervisor) as server:
        rendered = server.apply_template(prompt.text)
    assert rendered != prompt.text
    assert found.attempts[0].prompt == rendered
    bare = run_spec_bench(ik_engine, job, [prompt], GREEDY, supervisor, template=False)
    assert bare.attempts[0].prompt == prompt.text


@pytest.mark.ik
def test_one_prompt_that_does_not_fit_fails_alone(ik_engine: Any, supervisor: Supervisor) -> None:
    long = BenchPrompt("long", "def f():\n    pass\n" * 400, 8)
    found = run_spec_bench(
        ik_engine, demo_job(), [long, PROMPTS[0]], GREEDY, supervisor, template=False
    )
    assert found.attempts[0].error is not None
    assert "context" in found.attempts[0].error
    assert found.attempts[1].error is None


# ------------------------------------------------------------- before anything runs


@pytest.mark.engine
def test_mainline_has_none(bundled: Any) -> None:
    with pytest.raises(PrerequisiteError, match="no llama-spec-bench") as caught:
        require_spec_bench(bundled)
    assert "--engine ik=DIR" in (caught.value.hint or "")


def test_a_repeated_prompt_is_refused(standin_engine: Make, supervisor: Supervisor) -> None:
    engine = with_bench(standin_engine, [])
    again = dataclasses.replace(PROMPTS[0], id="again")
    for prompts in ((PROMPTS[0], again), (PROMPTS[0], PROMPTS[0]), ()):
        with pytest.raises(InputError, match="every prompt once"):
            run_spec_bench(engine, demo_job(), prompts, GREEDY, supervisor, template=False)


# --------------------------------------------------------------------- stand-ins


def with_bench(
    make: Make, rows: list[Any], *, code: int = 0, complaint: str = "", name: str = "standin"
) -> Any:
    """A stand-in engine whose llama-spec-bench prints ``rows`` and ends with ``code``."""
    engine = make(flavour="ik_llama.cpp", name=name)
    path = Path(engine.facts.bin_dir) / "llama-spec-bench"
    text = "".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows)
    end = "os.abort()" if code < 0 else f"sys.exit({code})"
    path.write_text(
        f"#!{sys.executable} -IS\nimport os, sys\nsys.stdout.write({text!r})\n"
        f"sys.stderr.write({complaint!r})\nsys.stdout.flush()\nsys.stderr.flush()\n{end}\n"
    )
    path.chmod(0o755)
    flags = {**engine.facts.flags, "spec-bench": (*engine.facts.flags["server"], *FLAGS)}
    return type(engine)(engine.name, dataclasses.replace(engine.facts, flags=flags))


FLAGS = (
    *("--prompts", "--repeat", "--retry", "--output-format", "--output-details", "--temp"),
    *("--seed", "--top-k", "--no-escape", "--in-prefix", "--model", "--ctx-size", "--threads"),
    *("--model-draft", "--spec-type", "--draft-params"),
)


def attempt(name: str, **changes: Any) -> dict[str, Any]:
    row: dict[str, Any] = {
        "row_type": "attempt",
        "task_id": name,
        "timing": {"prompt_s": 0.25, "decode_s": 0.5, "total_s": 0.75},
        "tokens": {"prompt": 9, "generated": 24},
        "speculative": {"draft_tokens": 40, "accepted_tokens": 15, "stages": [{"type": "draft"}]},
        "quality": {"ok": True, "error": None, "hit_eog": False},
        "prompt": "p",
        "output": "o",
    }
    return row | changes


def summary(**changes: Any) -> dict[str, Any]:
    row: dict[str, Any] = {
        "row_type": "summary",
        "attempts": 2,
        "failures": 0,
        "tokens": {"generated": 48},
        "speculative": {"draft_tokens": 80, "accepted_tokens": 30},
    }
    return row | changes


def run(engine: Any, supervisor: Supervisor) -> BenchRun:
    return run_spec_bench(engine, demo_job(), PROMPTS, GREEDY, supervisor, template=False)


def test_whole_rows_are_read(standin_engine: Make, supervisor: Supervisor) -> None:
    good = [attempt("add"), attempt("read"), summary()]
    found = run(with_bench(standin_engine, good), supervisor)
    first = found.attempts[0]
    assert (first.prompt_ms, first.decode_ms, first.total_ms) == (250.0, 500.0, 750.0)
    assert (first.drafted, first.accepted, first.generated, first.stop) == (40, 15, 24, "limit")
    command = found.command
    assert command[command.index("--repeat") + 1] == "1"
    assert command[command.index("--in-prefix") + 1] == ""


FAILED = {"quality": {"ok": False, "error": "decode failed", "hit_eog": False}}


def test_some_failed(standin_engine: Make, supervisor: Supervisor) -> None:
    rows = [attempt("add", **FAILED), attempt("read"), summary(failures=1)]
    found = run(with_bench(standin_engine, rows, code=2), supervisor)
    assert [a.error for a in found.attempts] == ["decode failed", None]


@pytest.mark.parametrize(
    ("rows", "code", "told"),
    [
        ([attempt("add"), summary()], 0, "1 of 2 rows"),
        ([attempt("add"), attempt("read")], 0, "no summary"),
        ([attempt("read"), attempt("add"), summary()], 0, "ids"),
        ([attempt("add"), attempt("read"), summary()], 2, "exit status"),
        ([attempt("add", **FAILED), attempt("read"), summary(failures=1)], 0, "exit status"),
        ([attempt("add"), attempt("read"), summary(failures=1)], 0, "failures"),
        ([attempt("add"), attempt("read"), summary(attempts=3)], 0, "attempts"),
        ([attempt("add"), attempt("read"), summary(tokens={"generated": 9})], 0, "generated"),
        (
            [
                attempt("add", speculative={"draft_tokens": 0, "accepted_tokens": 0, "stages": []}),
                attempt("read"),
                summary(),
            ],
            0,
            "it drafted nothing",
        ),
        (
            [
                attempt(
                    "add", speculative={"draft_tokens": 1, "accepted_tokens": 2, "stages": [{}]}
                ),
                attempt("read"),
                summary(),
            ],
            0,
            "2 tokens accepted of 1",
        ),
        (
            [
                attempt(
                    "add",
                    speculative={
                        "draft_tokens": 9,
                        "accepted_tokens": 2,
                        "stages": [{"type": "ngram-mod"}, {"type": "draft"}],
                    },
                ),
                attempt("read"),
                summary(),
            ],
            0,
            "it drafted by ngram-mod",
        ),
        (
            [attempt("add", timing={"prompt_s": -1}), attempt("read"), summary()],
            0,
            "prompt_s is no time",
        ),
        ([attempt("add", tokens=3), attempt("read"), summary()], 0, "tokens is no object"),
        (["[" * 100_000 + "\n"], 0, "not whole"),
        (["no json\n", attempt("read"), summary()], 0, "not whole"),
        ([], 0, "not whole"),
        ([], 1, "exit status 1"),
    ],
)
def test_what_does_not_add_up_is_refused(
    standin_engine: Make, supervisor: Supervisor, rows: list[Any], code: int, told: str
) -> None:
    with pytest.raises(StepError, match=told):
        run(with_bench(standin_engine, rows, code=code), supervisor)


def test_a_reply_that_cannot_be_printed(standin_engine: Make, supervisor: Supervisor) -> None:
    said = (
        "terminate called after throwing an instance of 'nlohmann::detail::type_error'\n"
        "  what():  [json.exception.type_error.316] invalid UTF-8 byte at index 3: 0x2E\n"
    )
    with pytest.raises(UnprintableReply):
        run(with_bench(standin_engine, [], code=-6, complaint=said), supervisor)
    with pytest.raises(StepError, match="SIGABRT"):
        run(with_bench(standin_engine, [], code=-6, name="silent"), supervisor)
