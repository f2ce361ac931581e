"""What replay costs beside bare decoding of the same tokens, batches and logits mask.

On the demo draft, and on a random-weight model with a vocabulary of 150,000, where reducing the
logits costs most; texts and the target's top 64 as every replay has them. Each reply is done
bare and reduced in turn, wall-clock of the whole request, ratio of the medians over rounds.
Beside it the worker's peak memory for a trace and for one ten times as long.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from bench.study import Study, Turns, engines, in_turns
from cook.engines.base import Engine, ModelArgs
from cook.engines.process.supervisor import Supervisor
from cook.engines.process.system import peak_rss_bytes
from cook.engines.worker.loading import model_load
from cook.engines.worker.messages import ModelLoad
from cook.engines.worker.worker import Worker
from cook.formats.arrays import Floats32, Ids
from cook.paths import demo_dir
from tools.random_model import write_random_model

MOST_RATIO, MOST_GROWTH = 1.15, 1.2
ROUNDS, PROMPT, REPLY, TOP = 15, 128, 384, 64


@dataclass(frozen=True)
class Text:
    """A prompt, a reply, and a target's top candidates at each of its tokens."""

    prompt: Ids
    reply: Ids
    reference: tuple[Ids, Floats32]


def replay_cost() -> Study:
    """The bundled engine, and ik_llama.cpp's where COOK_ENGINE_IK names a build."""
    found = engines()
    lines, within = [], True
    with TemporaryDirectory(prefix="cook-bench-") as directory:
        random = write_random_model(Path(directory, "random.gguf"))
        models = {
            "demo draft f16": demo_dir() / "draft-f16.gguf",
            "random, vocabulary 150,000": random,
        }
        for engine in found:
            for name, model in models.items():
                for temperature in (None, 0.8):
                    ratio, low, high, reduced_s = _ratio(engine, model, directory, temperature)
                    within &= ratio <= MOST_RATIO
                    at = f"temperature {temperature}" if temperature else "greedy"
                    lines.append(
                        f"replay / bare decode, {engine.name}, {name}, {at}: {ratio:.3f}x (rounds "
                        f"{low:.3f} to {high:.3f}, n={ROUNDS}), at most {MOST_RATIO}x; "
                        f"{1e6 * reduced_s / (PROMPT + REPLY):.0f} us a token"
                    )
        short, long = (_peak_bytes(found[0], directory, replies) for replies in (4, 40))
        within &= long <= MOST_GROWTH * short
        lines.append(
            f"replay, peak memory of the worker: {short / 2**20:.1f} MiB for 4 replies, "
            f"{long / 2**20:.1f} MiB for 40: {long / short:.3f}x, at most {MOST_GROWTH}x"
        )
    return Study(tuple(lines), within)


def _ratio(engine: Engine, model: Path, directory: str, temperature: float | None) -> Turns:
    with Worker.open(engine, Supervisor(Path(directory, "logs"))) as worker:
        info = worker.load(_load(engine, model))
        text = _text(info.n_vocab, np.random.default_rng(2))
        return in_turns(
            lambda: worker.bare(text.prompt, text.reply),
            lambda: _replay(worker, text, temperature),
            ROUNDS,
        )


def _replay(worker: Worker, text: Text, temperature: float | None) -> None:
    worker.replay(text.prompt, text.reply, reference=text.reference, temperature=temperature)


def _peak_bytes(engine: Engine, directory: str, replies: int) -> int:
    """Peak resident memory of a worker that replayed so many replies."""
    with Worker.open(engine, Supervisor(Path(directory, "logs"))) as worker:
        info = worker.load(_load(engine, demo_dir() / "draft-f16.gguf"))
        rng = np.random.default_rng(3)
        for _ in range(replies):
            _replay(worker, _text(info.n_vocab, rng), None)
        return peak_rss_bytes(worker.pid)


def _text(vocabulary: int, rng: np.random.Generator) -> Text:
    def tokens(*shape: int) -> Ids:
        return rng.integers(3, vocabulary, size=shape, dtype=np.int32)

    logp = np.sort(rng.normal(-8, 2, size=(REPLY, TOP)).astype(np.float32))[:, ::-1]
    return Text(tokens(PROMPT), tokens(REPLY), (tokens(REPLY, TOP), np.ascontiguousarray(logp)))


def _load(engine: Engine, model: Path) -> ModelLoad:
    return model_load(engine, model, ModelArgs(threads=1, batch=512, ubatch=512), 2048)
