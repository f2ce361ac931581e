"""A head over a trace: with the target's hidden states from the store, or straight from it."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cook.cli.main import main
from cook.engines.base import ModelArgs
from cook.formats.gguf import GgufFile
from cook.formats.gguf_writer import write_copy
from cook.formats.sampling import Sampling
from cook.formats.trace_file import TraceFile
from cook.graph.step import source
from cook.job import lay_score
from cook.job.prepare import prepare
from cook.prompts.prompt_set import Prompt, load_prompts
from cook.steps import head_replay
from cook.steps.head_replay import (
    HEAD_FILE,
    HeadReplayOutcome,
    HeadReplayStep,
    RowsStep,
    broken_head,
    guessed_without,
)
from cook.steps.trace import TRACE_FILE, TraceStep, given_trace
from tests.demo_heads import head_arrays, write_changed, write_demo_heads
from tests.engines.tiny_heads import write_tiny_heads
from tests.workbench import executor

ONE = ModelArgs(threads=1)


def replays(engine: Any, folder: Path, *heads: str, tokens: int = 40) -> list[HeadReplayStep]:
    target = source([folder / "trunk.gguf"])
    prompts = tuple(Prompt(f"p{i}", "text", f"Say {i * i}, then {i}:", "pick") for i in range(6))
    trace = TraceStep(engine, target, ONE, 512, prompts, tokens, Sampling(), chat=False)
    rows = RowsStep(engine, target, ONE, trace)
    placed = trace, rows, engine.as_draft(ONE, ONE, 512), 4, 0.3
    files = {head: source([folder / f"{head}.gguf"]) for head in heads}
    return [HeadReplayStep(engine, head, file, *placed) for head, file in files.items()]


@pytest.mark.engine
def test_streamed_rows_are_stored_ones(
    bundled: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit, and none of them is on the disk; what is stored goes with the rest."""
    folder = write_tiny_heads(tmp_path)
    (stored,) = replays(bundled, folder, "head-q8_0")
    streamed = replace(stored, streams=True)
    assert stored.key != streamed.key
    monkeypatch.setenv("COOK_HOME", str(tmp_path))
    with executor(tmp_path) as running:
        running.run([streamed])
        held = {path.name for path in (tmp_path / "store").rglob("*.npz")}
        assert held == {HEAD_FILE}
        # A trace that lay there before anybody thought of heads is as good.
        file = running.outcomes.artifact(stored.trace).file(TRACE_FILE)
        given = given_trace(Path(shutil.copy(file, tmp_path / "old.trace")))
        old = replace(stored, trace=given, rows=replace(stored.rows, trace=given))
        outcomes = running.run([stored, old])
        assert not outcomes.failures
        one, *others = (
            dict(np.load(outcomes.artifact(step).file(HEAD_FILE)))
            for step in (stored, streamed, old)
        )
        for other in others:
            assert set(one) == set(other)
            assert all(np.array_equal(one[name], other[name]) for name in one)
        assert {path.name for path in (tmp_path / "store").rglob("*.npz")} > held
    assert main(["store", "gc", "--all"]) == 0
    assert not list((tmp_path / "store").rglob("*.npz"))


@pytest.mark.engine
def test_a_head_streams_where_rows_would_be_too_many(
    bundled: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tiny_heads(tmp_path)
    path = tmp_path / "r.yaml"
    path.write_text(
        "version: 1\nname: r\ndrafts: [{name: own, source: target}]\n"
        "score: {target: {source: whole.gguf}, prompts: demo, limit: 8}\n"
    )
    for most, streams in ((1 << 30, False), (1 << 20, True)):
        monkeypatch.setattr(lay_score, "MOST_BYTES", most)
        (layout,) = prepare(path, engines=["bundled"]).layouts
        (head,) = layout.forecast.heads
        assert head.replay.streams is streams
        assert any(isinstance(node, RowsStep) for node in head.replay.inputs().values()) != streams


@pytest.mark.engine
def test_broken_heads_are_named(bundled: Any, tmp_path: Path) -> None:
    """A projection of zeros is. The block of another model is right more seldom than its own, and
    not by chance alone: 3.7 % here, since the token's embedding still goes past it."""
    folder = write_tiny_heads(tmp_path)
    heads = ("head", "zeroed", "foreign")
    steps = replays(bundled, folder, *heads, tokens=60)
    with executor(tmp_path) as running:
        outcomes = running.run(steps)
    head, zeroed, foreign = (outcomes.result(step) for step in steps)
    assert head.right / head.drafts > 0.3
    assert broken_head(head.right, head.drafts) is None
    assert broken_head(zeroed.right, zeroed.drafts) is not None
    assert foreign.right / foreign.drafts < head.right / head.drafts / 4


@pytest.mark.engine
def test_a_copy_that_the_engine_does_not_load_leaves_the_replay(
    bundled: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(source: GgufFile, path: Path, zeros: Collection[str]) -> Path:
        assert zeros
        whole = write_copy(source, path).read_bytes()
        path.write_bytes(whole.replace(b"nextn.eh_proj", b"nextn.no_proj"))
        return path

    monkeypatch.setattr(head_replay, "write_copy", damaged)
    (step,) = replays(bundled, write_tiny_heads(tmp_path), "head", tokens=60)
    with executor(tmp_path) as running:
        outcomes = running.run([step])
    assert not outcomes.failures
    outcome = outcomes.result(step)
    assert outcome.right > 0
    assert outcome.tried == 0
    left = outcomes.artifact(step).file(HEAD_FILE).parent
    assert not [path for path in left.iterdir() if path.suffix == ".gguf"]


def test_few_drafts_show_nothing() -> None:
    assert broken_head(0, 199) is None
    assert broken_head(4, 200) is not None
    assert broken_head(5, 200) is None
    assert broken_head(100, 200, 99) is None
    assert "and 100 are right without it" in (broken_head(100, 200, 100) or "")


def test_a_block_is_idle_where_a_head_drafts_as_well_without_it() -> None:
    for tried, right, without, idle in (
        (600, 450, 420, True),
        (600, 450, 419, False),
        (199, 150, 150, False),
        (600, 450, 500, True),
        (0, 0, 0, False),
    ):
        outcome = HeadReplayOutcome(3_000, 2_200, 1, tried, right, without)
        assert bool(outcome.idle_block) is idle
    broken = HeadReplayOutcome(3_000, 60, 1, 600, 10, 10)
    assert broken.idle_block is None, "it is said already"


def test_a_guess_without_a_head_is_what_followed_most_often_before() -> None:
    replies = [np.array(reply, np.int32) for reply in ([1, 2, 1, 3], [1, 2, 1, 2, 1], [1, 2, 3])]
    # In the second 1 was followed by 2 and 3 alike, and the first one counts; 2 by 1.
    assert guessed_without(replies) == 4 + 1
    assert guessed_without(replies[:1]) == 0


@pytest.mark.engine
def test_damage_to_a_head_is_named_where_a_guess_is_as_good(bundled: Any, tmp_path: Path) -> None:
    """Zeros, the halves of eh_proj in the other order, and no hidden state are; another block is
    named as one that does nothing, since eh_proj alone still drafts. The head's norms are nearly
    alike: to exchange them does no harm, and is named where they are not."""
    folder = write_demo_heads(tmp_path)
    own, rng = head_arrays(folder), np.random.default_rng(3)
    eh, enorm, hnorm = (f"nextn.{name}.weight" for name in ("eh_proj", "enorm", "hnorm"))
    half = own[eh].shape[1] // 2
    scales = np.exp(rng.normal(0, 1, half)).astype(np.float32)
    unscaled = own[eh] / np.concatenate([scales, np.ones(half, np.float32)])
    damages = {
        "zeroed": {eh: 0 * own[eh]},
        "halves": {eh: np.roll(own[eh], half, axis=1)},
        "unheard": {hnorm: 0 * own[hnorm]},
        "norms": {enorm: own[hnorm], hnorm: own[enorm]},
        # The same head in other numbers, of which the norms are not alike; and these exchanged.
        "apart": {eh: unscaled, enorm: own[enorm] * scales},
        "exchanged": {eh: unscaled, enorm: own[hnorm], hnorm: own[enorm] * scales},
        "block": {
            name: array.std() * rng.standard_normal(array.shape, dtype=np.float32)
            for name, array in own.items()
            if array.ndim > 1 and "nextn" not in name
        },
    }
    for name, changed in damages.items():
        write_changed(folder, name, changed)
    target = source([folder / "trunk.gguf"])
    prompts = tuple(p for p in load_prompts("demo").prompts if len(p.text) < 900)[:24]
    trace = TraceStep(bundled, target, ONE, 1024, prompts, 64, Sampling(), chat=False)
    rows, args = RowsStep(bundled, target, ONE, trace), bundled.as_draft(ONE, ONE, 1024)
    names = ("head-q8_0", *damages)
    files = {name: source([folder / f"{name}.gguf"]) for name in names}
    steps = {n: HeadReplayStep(bundled, n, f, trace, rows, args, depth=1) for n, f in files.items()}
    with executor(tmp_path / "home") as running:
        outcomes = running.run(steps.values())
    assert not outcomes.failures
    recorded = TraceFile(outcomes.artifact(trace).file(TRACE_FILE))
    guessed = guessed_without(reply.tokens[: reply.head.emitted] for reply in recorded)
    found = {name: outcomes.result(step) for name, step in steps.items()}
    share = {name: one.right / one.drafts for name, one in found.items() if one}
    why = {name: broken_head(one.right, one.drafts, guessed) for name, one in found.items() if one}
    assert {name for name, one in why.items() if one} == {
        "zeroed",
        "halves",
        "unheard",
        "exchanged",
    }
    assert "are right without it" in (why["unheard"] or "")
    for name in ("norms", "apart"):
        assert share[name] == pytest.approx(share["head-q8_0"], abs=0.01)
    assert share["block"] < share["head-q8_0"] - 0.05
    idle = {name: one.idle_block for name, one in found.items() if one and not why[name]}
    assert {name for name, one in idle.items() if one} == {"block"}
    assert "with zeros for what the block gives" in (idle["block"] or "")
