"""A recording: only what is missing is asked, and what cannot be asked is dropped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from cook.engines.base import Engine, ModelArgs
from cook.engines.process.supervisor import Supervisor
from cook.engines.worker.kept_workers import KeptWorkers
from cook.errors import InputError, StepError
from cook.formats.sampling import Sampling
from cook.formats.trace_file import Reply, ReplyHead, TraceFile, TraceHeader
from cook.formats.vocabulary import Vocabulary
from cook.graph.step import source
from cook.prompts.prompt_set import Prompt
from cook.trace.session import Dropped, TracePlan, prompts_digest, record, sha256
from cook.trace.worker_target import WorkerTarget
from tests.traces import blank_reply, server_header

PROMPTS = tuple(Prompt(f"p{i}", "code", f"text {i}", "pick") for i in range(4))
PLAN = TracePlan(PROMPTS, 8, 64, Sampling(0.0, seed=1).applied(), top=0)


class Parrot:
    """Says one token; ``fails_at`` breaks off there, ``drops`` has no answer."""

    vocabulary: Vocabulary | None = None

    def __init__(self, fails_at: str = "", drops: str = "") -> None:
        self.fails_at, self.drops = fails_at, drops
        self.prepared: list[str] = []
        self.asked: list[str] = []

    def header(self, plan: TracePlan) -> TraceHeader:
        return server_header(
            target_name="parrot",
            template_sha256=sha256(""),
            prompts_sha256=prompts_digest(plan.prompts),
            context=plan.context,
            n_predict=plan.max_tokens,
            top=plan.top,
            sampler=plan.sampler,
        )

    def prepare(self, prompts: Sequence[Prompt]) -> None:
        self.prepared = [p.id for p in prompts]

    def reply(self, prompt: Prompt, plan: TracePlan) -> Reply | Dropped:
        if prompt.id == self.fails_at:
            raise StepError("the server is gone")
        if prompt.id == self.drops:
            return Dropped(prompt.id, "no words")
        self.asked.append(prompt.id)
        head = ReplyHead(
            id=prompt.id, category="code", stop="eog", prompt_tokens=1, tokens=1, emitted=1
        )
        return blank_reply(head, known=True)


def test_only_what_is_missing_is_asked(tmp_path: Path) -> None:
    path = tmp_path / "t.trace"
    with pytest.raises(StepError, match="gone"):
        record(Parrot(fails_at="p2"), PLAN, path)
    again = Parrot()
    seen: list[int] = []
    found = record(again, PLAN, path, seen.append)
    assert again.prepared == again.asked == ["p2", "p3"]
    assert (found.replies, found.asked, found.ended, seen) == (4, 2, 4, [3, 4])
    nothing = Parrot()
    assert record(nothing, PLAN, path).asked == 0
    assert nothing.prepared == []


def test_a_dropped_prompt_is_asked_again_next_time(tmp_path: Path) -> None:
    path = tmp_path / "t.trace"
    found = record(Parrot(drops="p1"), PLAN, path)
    assert (found.replies, found.dropped) == (3, (Dropped("p1", "no words"),))
    assert record(Parrot(), PLAN, path).replies == 4
    with pytest.raises(InputError, match="prompts_sha256"):  # other prompts, other conditions
        record(Parrot(), replace(PLAN, prompts=PROMPTS[:2]), path)


@pytest.fixture
def target(bundled: Engine, tiny_model: Path, tmp_path: Path) -> Iterator[WorkerTarget]:
    logs, model = tmp_path / "logs", source([tiny_model])
    with (
        KeptWorkers(logs) as workers,
        WorkerTarget(bundled, model, ModelArgs(), 256, False, Supervisor(logs), workers) as found,
    ):
        yield found


@pytest.mark.engine
def test_the_width_of_batches_is_a_condition(target: WorkerTarget, tmp_path: Path) -> None:
    plan, path = replace(PLAN, context=256, top=4), tmp_path / "t.trace"
    assert record(target, replace(plan, batch_width=2), path).replies == len(PROMPTS)
    with pytest.raises(InputError, match="batch_width"):
        record(target, plan, path)
    assert TraceFile(path).header.batch_width == 2


@pytest.mark.engine
def test_a_prompt_too_long_for_the_context_is_dropped(target: WorkerTarget, tmp_path: Path) -> None:
    prompts = (PROMPTS[0], Prompt("long", "code", "word " * 400, "pick"))
    plan = replace(PLAN, prompts=prompts, context=256, top=4)
    found = record(target, plan, tmp_path / "t.trace")
    assert found.replies == 1
    assert [d.id for d in found.dropped] == ["long"]
    assert "do not fit a context of 256" in found.dropped[0].reason
