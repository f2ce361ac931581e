"""The text that servers with a draft wrote, in the place of a trace's."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bench.written import alike, rewritten, written_by
from cook.formats.trace_file import Reply, ReplyHead, TraceFile, TraceWriter
from cook.record.prompt_runs import PromptRun
from tests.formats.test_trace_file import HEADER, VOCABULARY


def reply(name: str, tokens: list[int], top: int) -> Reply:
    """As a worker records one, with a token beyond its end."""
    n = len(tokens) + 1
    head = ReplyHead(
        id=name,
        category="all",
        half="pick",
        stop="limit",
        prompt_tokens=2,
        tokens=n,
        emitted=len(tokens),
    )
    return Reply(
        head=head,
        prompt=np.array([1, 2], np.int32),
        tokens=np.array([*tokens, 9], np.int32),
        known=np.ones(n, np.bool_),
        logp=np.full(n, -1.0, np.float32),
        chain_logp=np.full(n, -1.0, np.float32),
        logsumexp=np.zeros(n, np.float32),
        margin=np.zeros(n, np.float32),
        top_ids=np.zeros((n, top), np.int32),
        top_logp=np.full((n, top), -1.0, np.float32),
    )


def run(name: str, tokens: tuple[int, ...] | None) -> PromptRun:
    return PromptRun(name, "all", 2, 1.0, 3, 1.0, 2.0, 4, 1, tokens, "", "limit")


def test_most_servers_say_what_was_written() -> None:
    runs = [run("a", (1, 2, 3)), run("a", (1, 5, 3)), run("a", (1, 5, 3)), run("b", (4,))]
    assert written_by(runs) == {"a": (1, 5, 3), "b": (4,)}


def test_an_engine_that_tells_no_tokens_says_nothing() -> None:
    assert written_by([run("a", None)]) == {}


def test_texts_are_alike_until_their_first_other_token() -> None:
    recorded = reply("a", [1, 2, 3], 0)
    assert alike(recorded, (1, 2, 3)) == 3
    assert alike(recorded, (1, 5, 3)) == 1
    assert alike(recorded, (1, 2)) == 2


def test_a_rewritten_trace_has_the_texts_given_and_its_other_replies(tmp_path: Path) -> None:
    first, second = tmp_path / "first.trace", tmp_path / "second.trace"
    with TraceWriter(first, HEADER, VOCABULARY) as writer:
        writer.append(reply("a", [1, 2, 3], HEADER.top))
        writer.append(reply("b", [4, 5, 6], HEADER.top))
    for _ in range(2):  # it is made anew, not gone on with
        rewritten(TraceFile(first), {"a": (1, 5, 3)}, second)
        found = TraceFile(second)
        assert {one.head.id: one.tokens.tolist() for one in found} == {
            "a": [1, 5, 3],
            "b": [4, 5, 6],
        }
        assert [head.half for head in found.heads] == ["pick", "pick"]
        assert [head.emitted for head in found.heads] == [3, 3]
        assert not any(one.known.any() for one in found)
        assert found.vocabulary == VOCABULARY
