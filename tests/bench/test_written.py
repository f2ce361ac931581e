"""The text that servers with a draft wrote, in the place of a trace's."""

from __future__ import annotations

from pathlib import Path

from bench.written import recorded, rewrite, written_by
from cook.formats.trace_file import TraceFile, TraceWriter
from cook.record.prompt_runs import PromptRun
from tests.formats.test_trace_file import HEADER, VOCABULARY, reply


def run(name: str, tokens: tuple[int, ...] | None) -> PromptRun:
    return PromptRun(name, "all", 2, 1.0, 3, 1.0, 2.0, 4, 1, tokens, "", "limit")


def test_most_servers_say_what_was_written() -> None:
    runs = [run("a", (1, 2, 3)), run("a", (1, 5, 3)), run("a", (1, 5, 3)), run("b", (4,))]
    assert written_by(runs) == {"a": (1, 5, 3), "b": (4,)}


def test_an_engine_that_tells_no_tokens_says_nothing() -> None:
    assert written_by([run("a", None)]) == {}


def test_a_rewritten_trace_has_the_texts_given_and_its_other_replies(tmp_path: Path) -> None:
    first, second = tmp_path / "first.trace", tmp_path / "second.trace"
    replies = [reply("a", 5), reply("b", 6, seed=1)]
    with TraceWriter(first, HEADER, VOCABULARY) as writer:
        for one in replies:
            writer.append(one)
    before = recorded(TraceFile(first))
    assert before == {one.head.id: tuple(one.tokens.tolist()) for one in replies}
    ends: dict[tuple[int, ...], str] = {(1, 5, 3): "limit", (1, 5, HEADER.eog[0]): "eog"}
    for written, stop in ends.items():  # made anew, not gone on with
        rewrite(TraceFile(first), {"a": written}, second)
        found = TraceFile(second)
        assert recorded(found) == {"a": written, "b": before["b"]}
        assert found.reply("a").head.stop == stop
        assert found.reply("a").prompt.tolist() == replies[0].prompt.tolist()
        assert not any(one.known.any() for one in found)
        assert found.vocabulary == VOCABULARY
