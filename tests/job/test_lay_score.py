"""A given trace in the place of one to be recorded: what fits, and every reason why not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cook.errors import InputError
from cook.formats.sampling import Sampling
from cook.formats.trace_file import ReplyHead, TraceFile, TraceWriter
from cook.job.lay_score import adopt
from cook.prompts.prompt_set import Prompt, PromptSet, subset
from cook.steps.trace import given_trace
from cook.trace.session import prompts_digest, sha256
from tests.traces import blank_reply, server_header

PROMPTS = tuple(
    Prompt(f"p{i}", "code", f"text {i}", "report" if i % 2 else "pick") for i in range(4)
)
SET = subset(PromptSet("mine", PROMPTS, ""), PROMPTS)


GREEDY = Sampling(0.0, seed=99).applied()


def write(path: Path, sampler: Sampling, digest: str = "") -> Path:
    header = server_header(
        template_sha256=sha256(""),
        prompts_sha256=digest or prompts_digest(PROMPTS[:3]),
        sampler=sampler.applied("server"),
    )
    with TraceWriter(path, header) as writer:
        for prompt in PROMPTS[:3]:
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
            writer.append(blank_reply(head, known=False))
    return path


def adopted(path: Path, prompts: PromptSet = SET, sampler: Sampling = GREEDY) -> list[str]:
    return [p.id for p in adopt(TraceFile(path), None, prompts, sampler).prompts]


def test_the_recorded_prompts_of_a_set(tmp_path: Path) -> None:
    path = write(tmp_path / "t.trace", Sampling(0.0, seed=1))
    assert adopted(path) == ["p0", "p1", "p2"]
    assert (given_trace(path).replies, given_trace(path).tokens) == (3, 24)
    with pytest.raises(InputError, match="none of the prompts"):
        adopted(path, subset(SET, PROMPTS[3:]))
    with pytest.raises(InputError, match="cannot be read"):
        adopted(tmp_path / "absent.trace")


def test_a_part_of_another_selection_is_recognised_by_its_texts(tmp_path: Path) -> None:
    path = write(tmp_path / "t.trace", Sampling(0.0, seed=1), digest="another selection")
    assert len(adopted(path)) == 3
    changed = subset(SET, (replace(PROMPTS[0], text="edited"), *PROMPTS[1:]))
    with pytest.raises(InputError, match="prompt p0 of mine may be another"):
        adopted(path, changed)


def test_another_chain_is_refused(tmp_path: Path) -> None:
    warm = Sampling(0.8, seed=1)
    with pytest.raises(InputError, match=r"greedy, not temperature 0\.8"):
        adopted(write(tmp_path / "g.trace", Sampling(0.0, seed=1)), sampler=warm.applied())
    path = write(tmp_path / "w.trace", warm)
    adopted(path, sampler=warm.applied())
    for other in (Sampling(0.8, seed=2), Sampling(0.8, seed=1, top_p=0.9)):
        with pytest.raises(InputError, match="another sampling chain"):
            adopted(path, sampler=other.applied())
