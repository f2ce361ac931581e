"""A given trace in the place of one to be recorded: what fits, and every reason why not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cook.errors import InputError
from cook.formats.sampling import Sampling
from cook.formats.trace_file import Reply, ReplyHead, TraceFile, TraceWriter
from cook.job.lay_score import adopt
from cook.prompts.prompt_set import Prompt, PromptSet, subset
from cook.steps.trace import given_trace
from cook.trace.session import prompts_digest, sha256
from tests.traces import blank_reply, server_header

PROMPTS = tuple(
    Prompt(f"p{i}", "code", f"text {i}", "report" if i % 2 else "pick") for i in range(4)
)
SET = subset(PromptSet("mine", PROMPTS, ""), PROMPTS)


def write(path: Path, *, sampler: Sampling | None = None, digest: str | None = None) -> Path:
    header = server_header(
        template_sha256=sha256(""),
        prompts_sha256=digest or prompts_digest(PROMPTS[:3]),
        sampler=sampler or Sampling(0.0, seed=1).applied("server"),
    )
    with TraceWriter(path, header) as writer:
        for prompt in PROMPTS[:3]:
            writer.append(reply(prompt))
    return path


def reply(prompt: Prompt) -> Reply:
    head = ReplyHead(
        id=prompt.id,
        category=prompt.category,
        half=prompt.half,
        rendered_sha256=sha256(prompt.text),
        stop="limit",
        prompt_tokens=1,
        tokens=2,
        emitted=2,
    )
    return blank_reply(head, known=False)


GREEDY = Sampling(0.0, seed=99).applied()


def adopted(path: Path, prompts: PromptSet = SET, sampler: Sampling = GREEDY) -> PromptSet:
    return adopt(TraceFile(path), None, prompts, sampler)


def test_the_recorded_prompts_of_a_set(tmp_path: Path) -> None:
    path = write(tmp_path / "t.trace")
    assert [p.id for p in adopted(path).prompts] == ["p0", "p1", "p2"]
    assert (given_trace(path).replies, given_trace(path).tokens) == (3, 24)


def test_a_part_of_another_selection_is_recognised_by_its_texts(tmp_path: Path) -> None:
    path = write(tmp_path / "t.trace", digest="another selection")
    assert len(adopted(path).prompts) == 3
    changed = subset(SET, (replace(PROMPTS[0], text="edited"), *PROMPTS[1:]))
    with pytest.raises(InputError, match="prompt p0 of mine may be another"):
        adopted(path, changed)
    with pytest.raises(InputError, match="none of the prompts"):
        adopted(path, subset(SET, PROMPTS[3:]))


def test_another_chain_is_refused(tmp_path: Path) -> None:
    greedy = write(tmp_path / "g.trace")
    with pytest.raises(InputError, match=r"greedy, not temperature 0\.8"):
        adopted(greedy, sampler=Sampling(0.8, seed=1).applied())
    warm = write(tmp_path / "w.trace", sampler=Sampling(0.8, seed=1).applied("server"))
    adopted(warm, sampler=Sampling(0.8, seed=1).applied())
    for other in (Sampling(0.8, seed=2).applied(), Sampling(0.8, seed=1, top_p=0.9).applied()):
        with pytest.raises(InputError, match="another sampling chain"):
            adopted(warm, sampler=other)


def test_what_is_no_trace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        adopted(tmp_path / "absent.trace")
