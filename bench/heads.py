"""Quants of the demo target's head: replay beside live servers, and what each costs.

Every quant drafts live at one length. Then the target reads its text once more and every head is
replayed, for lengths 1 to 8 and three p_min: acceptance at the one length is compared with the
live runs', and the time of it all with what these take for so many settings. Apart from these, in
turns: what a text with its hidden states, and a replay of the head, cost beside bare decoding.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from bench.counts import MAKING
from bench.study import Study, Turns, empty_executor, in_turns
from cook.demo.unpack import unpacked_target
from cook.engines.base import DraftSettings, ModelArgs
from cook.engines.discover import discover
from cook.engines.process.supervisor import Supervisor
from cook.engines.process.system import peak_rss_bytes
from cook.engines.worker.loading import head_load, model_load
from cook.engines.worker.messages import HeadReplay
from cook.engines.worker.worker import Worker
from cook.formats.gguf import read_gguf
from cook.formats.gguf_writer import write_copy
from cook.formats.heads import head_alone
from cook.job.layout import Layout
from cook.job.prepare import prepare
from cook.prompts.prompt_set import load_prompts
from cook.recipe.load import parse_recipe
from cook.scoring.simulate import simulate
from cook.steps.deal import DealStep
from cook.steps.head_replay import WAVE, head_replies
from cook.units import size

LENGTH, LENGTHS, P_MIN = 2, list(range(1, 9)), [0.0, 0.3, 0.6]
MOST_POINTS, MOST_COST, MOST_ROWS_COST, MOST_REPLAY_COST, ROUNDS = 0.5, 0.1, 1.15, 1.2, 9
RECIPE = """\
version: 1
name: heads
model: {source: "demo://target.gguf", allow_requantize: true}
imatrix: {corpus: "demo://data/calibration.txt", context: 512, chunks: 60, args: {threads: 1}}
quants:
  - {name: Q8_0, part: head, type: Q8_0, rules: [{embeddings: q8_0}, {output: q8_0}, {mtp: q8_0}]}
  - {name: Q8_0-OUT4, extends: Q8_0, drop_rules: [output], rules: [{output: q4_0}]}
  - {name: Q5_0, extends: Q8_0, rules: [{mtp: q5_0}]}
  - {name: Q4_0, extends: Q8_0, rules: [{mtp: q4_0}]}
  - {name: Q3_K, extends: Q8_0, rules: [{mtp: q3_K}]}
  - {name: Q2_K, extends: Q8_0, rules: [{mtp: q2_K}]}
  - {name: IQ2_XXS, extends: Q8_0, rules: [{mtp: iq2_xxs}]}
drafts: [{name: own, source: target}]
score:
  method: METHOD
  target: {source: "demo://target.gguf", args: {threads: 1}}
  prompts: demo
  limit: 12
  max_tokens: 96
  context: 2048
  draft: {n_max: LENGTHS, p_min: P_MIN, args: {threads: 1}}
"""


def heads() -> Study:
    """The bundled engine's."""
    ran, said, served, seconds = _counts()
    with TemporaryDirectory(prefix="cook-bench-") as folder:
        rows, head, memory = _costs(Path(folder))
    points = {name: 100 * (_accepted(said[name]) - _accepted(ran[name])) for name in ran}
    other = [
        f"{a} and {b}"
        for a, b in combinations(ran, 2)
        if (_accepted(ran[a]) - _accepted(ran[b])) * (_accepted(said[a]) - _accepted(said[b])) < 0
    ]
    within = max(map(abs, points.values())) <= MOST_POINTS and seconds <= MOST_COST * served
    lines = (
        f"heads by replay and live, n_max {LENGTH}: at most {MOST_POINTS} points each",
        *(
            f"  {name:10} live {_shown(ran[name])}, replay {_shown(said[name])}, {off:+.2f} points"
            for name, off in points.items()
        ),
        f"  pairs that replay has in the other order: {', '.join(other) or 'none'}",
        f"trace, hidden states and replay of {len(ran)} heads, {len(LENGTHS)} lengths, "
        f"{len(P_MIN)} p_min: {seconds:.0f} s; live, as one length takes: {served:.0f} s; "
        f"{seconds / served:.3f}x, at most {MOST_COST}x",
        *(
            f"{what}: {found[0]:.3f}x (rounds {found[1]:.3f} to {found[2]:.3f}, n={ROUNDS}), at "
            f"most {most}x"
            for what, found, most in (
                ("a text with its hidden states beside bare", rows, MOST_ROWS_COST),
                ("a replay of the head beside its batches bare", head, MOST_REPLAY_COST),
            )
        ),
        f"memory at most: the worker of the head {memory}",
    )
    within &= rows[0] <= MOST_ROWS_COST and head[0] <= MOST_REPLAY_COST
    return Study(lines, within)


Counted = dict[str, tuple[int, int]]
"""(drafted, accepted) tokens by head."""


def _counts() -> tuple[Counted, Counted, float, float]:
    """Live and by replay at the one length, and the seconds of all settings live and by replay."""
    live, traced = _laid_out("live", [LENGTH], [0.0]), _laid_out("replay", LENGTHS, P_MIN)
    plan = traced.forecast
    assert plan is not None, "laid out by replay"
    settings = DraftSettings(n_max=LENGTH, p_min=0.0)
    ran: Counted = {}
    said: Counted = {}
    served = 0.0
    with empty_executor() as executor:
        making = (step for draft in live.drafts for step in draft.making())
        executor.run(s for s in making if s.kind in MAKING or s.kind == "head-imatrix")
        for configuration in live.grid:
            dealing = DealStep((configuration.live,), 0, together=False)
            block = executor.run([dealing]).result(dealing)
            assert block is not None, "it ran"
            assert configuration.draft is not None, "the grid holds drafts"
            counts = [(run.draft_n or 0, run.draft_n_accepted or 0) for run in block.runs]
            ran[configuration.draft.name] = _sum(counts)
            served += sum(run.wall_ms for run in block.runs) / 1000
        started = time.perf_counter()
        executor.run(head.replay for head in plan.heads)
        seconds = time.perf_counter() - started
        trace = executor.outcomes.artifact(plan.trace)
        for head in plan.heads:
            replay = executor.outcomes.artifact(head.replay)
            limits = {"n_predict": plan.n_predict, "context": plan.context}
            found = head_replies(head.replay, trace, replay, **limits)
            simulated = [simulate(positions, settings, head.profile) for _, positions in found]
            said[head.draft.name] = _sum([(s.draft_n, s.draft_n_accepted) for s in simulated])
    return ran, said, served * len(LENGTHS) * len(P_MIN), seconds


def _laid_out(method: str, lengths: list[int], p_min: list[float]) -> Layout:
    text = RECIPE
    for word, value in {"METHOD": method, "LENGTHS": lengths, "P_MIN": p_min}.items():
        text = text.replace(word, str(value))
    recipe = parse_recipe(text, Path("study.yaml").absolute())
    return prepare(recipe, engines=["bundled"]).layouts[0]


def _sum(counts: Sequence[tuple[int, int]]) -> tuple[int, int]:
    drafted, accepted = np.sum(counts, axis=0).tolist()
    return drafted, accepted


def _accepted(counted: tuple[int, int]) -> float:
    return counted[1] / counted[0]


def _shown(counted: tuple[int, int]) -> str:
    return f"{counted[1]}/{counted[0]} = {_accepted(counted):.2%}"


def _costs(folder: Path) -> tuple[Turns, Turns, str]:
    """A text read with its hidden states beside bare; a replay of the head beside its batches
    decoded bare; and the memory of both workers."""
    engine, one, logs = discover("bundled"), ModelArgs(threads=1), Supervisor(folder / "logs")
    whole = read_gguf(unpacked_target())
    alone = write_copy(head_alone(whole), folder / "head.gguf")
    texts, load = [], (engine, whole.path, one, 2048)
    with Worker.open(engine, logs) as bare, Worker.open(engine, logs) as giving:
        bare.load(model_load(*load))
        giving.load(model_load(*load, gives_rows=True))
        for prompt in load_prompts("demo").prompts[:4]:
            ids = giving.tokenize(prompt.text)
            tokens = giving.generate(ids, n_predict=96).tokens
            texts.append((ids, tokens, giving.rows(ids, tokens)))
        ids, tokens, _ = texts[0]
        rows = in_turns(lambda: bare.bare(ids, tokens), lambda: giving.rows(ids, tokens), ROUNDS)
        target_bytes = peak_rss_bytes(giving.pid)
    with Worker.open(engine, logs) as worker:
        worker.load(head_load(engine, alone, one, 2048, WAVE, LENGTHS[-1]))
        found = [worker.replay_head(*text, depth=LENGTHS[-1]) for text in texts]

        def replay(known: Sequence[HeadReplay | None]) -> None:
            for text, one in zip(texts, known, strict=True):
                worker.replay_head(*text, depth=LENGTHS[-1], known=one)

        head = in_turns(lambda: replay(found), lambda: replay([None] * len(texts)), ROUNDS)
        sizes = size(peak_rss_bytes(worker.pid)), size(alone.stat().st_size), size(target_bytes)
    return rows, head, "{} (a file of {}), the target's {}".format(*sizes)
