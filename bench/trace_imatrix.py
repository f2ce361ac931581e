"""``python -m bench.trace_imatrix``: an imatrix from the target's text against a corpus's.

The demo draft at low bits, quantized with either imatrix and replayed on the same trace of the
demo target, over prompts that neither imatrix has seen. Prints accepted/drafted at n_max 4 and
the paired difference with its 95 % interval (prompts resampled within their category). COOK_HOME
keeps what was made.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cook.build.drafting import DraftLayout
from cook.build.locate import SourceReader
from cook.engines.base import DraftSettings, ModelArgs
from cook.engines.discover import discover
from cook.formats.gguf import read_gguf
from cook.formats.sampling import Sampling
from cook.graph.execute import Executor
from cook.graph.step import source
from cook.graph.store import Store
from cook.output import Output
from cook.paths import cook_home, demo_dir
from cook.prompts.calibration import split_for_calibration
from cook.prompts.prompt_set import PromptSet, load_prompts
from cook.recipe.load import parse_recipe
from cook.recipe.rules import resolve
from cook.scoring.simulate import Profile, simulate
from cook.steps.corpus import TraceCorpusStep, corpus_args
from cook.steps.imatrix import ImatrixStep
from cook.steps.replay import ReplayStep, replies
from cook.steps.trace import TraceStep

CONTEXT, MAX_TOKENS = 4096, 192
SETTING = DraftSettings(4)
RESAMPLES = 10_000
RULES = {
    "IQ1_S": ("q2_K", "iq2_xxs", "iq1_s"),
    "IQ2_XXS": ("q4_K", "iq2_xxs", "iq2_xxs"),
}
"""Base type -> types of attention, of the dense and shared feed-forward, of the routed experts."""


def main() -> int:
    """Print the comparison; 0 whichever way it goes."""
    output, home = Output(), cook_home()
    with Executor(Store(home / "store"), output, logs=home / "logs", threads=1) as executor:
        return _study(executor, output)


def _study(executor: Executor, output: Output) -> int:
    engine = discover("bundled")
    demo = demo_dir()
    split = split_for_calibration("demo", load_prompts("demo"))
    target = source([demo / "target-q8_0.gguf"])
    model = source([demo / "draft-f16.gguf"])
    args = ModelArgs(threads=1)

    def trace(prompts: PromptSet) -> TraceStep:
        chosen = prompts.prompts
        greedy = Sampling(0.0)
        return TraceStep(engine, target, args, CONTEXT, chosen, MAX_TOKENS, greedy, chat=False)

    corpus = TraceCorpusStep(engine, model, trace(split.calibration))
    written = ImatrixStep(engine, model, corpus, 512, None, False, 0.0, "warn", corpus_args(engine))
    executor.run([written])
    chunks = executor.outcomes.result(written)
    if chunks is None:
        return 1
    text = source([demo / "data" / "calibration.txt"])

    def of_text(count: int | None) -> ImatrixStep:
        return ImatrixStep(engine, model, text, 512, count, False, 0.0, "warn")

    imatrices = {
        "trace": written,
        f"text, {chunks.chunks} chunks": of_text(chunks.chunks),
        "text, 100 chunks": of_text(100),
    }
    scored = trace(split.scoring)
    found: dict[str, dict[str, Any]] = {}
    for name in RULES:
        counts = {
            label: _counts(executor, engine, name, imatrix, scored)
            for label, imatrix in imatrices.items()
        }
        found[name] = _compared(counts, split.scoring)
    print(json.dumps(found, indent=1))
    return 0


def _counts(
    executor: Executor, engine: Any, name: str, imatrix: ImatrixStep, scored: TraceStep
) -> np.ndarray[Any, Any]:
    """(accepted, drafted, matches, positions) of every prompt [prompts, 4]."""
    attention, dense, experts = RULES[name]
    recipe = {
        "version": 1,
        "name": "bench",
        "model": {"source": "demo://draft-f16.gguf"},
        "quants": [
            {
                "name": name,
                "type": name,
                "rules": [
                    {"attention": attention},
                    {"dense_ffn": dense},
                    {"shared_experts": dense},
                    {"routed_experts": experts},
                    {"embeddings": "q2_K"},
                    {"output": "q4_K"},
                ],
            }
        ],
    }
    loaded = parse_recipe(json.dumps(recipe), Path.cwd() / "bench.yaml")
    reader = SourceReader(plan_only=False)
    model = reader.model(demo_dir() / "draft-f16.gguf")
    file = read_gguf(demo_dir() / "draft-f16.gguf")
    (quant,) = loaded.quants
    resolution = resolve(file.tensors, quant, engine.flavour, file.architecture)
    drafting = DraftLayout(engine, loaded.recipe, reader, model, None)
    (plan,) = drafting.quants([(quant, resolution)], imatrix, None)
    replay = ReplayStep(engine, name, plan.model, scored, ModelArgs(threads=1))
    executor.run([replay])
    texts = replies(
        replay,
        executor.outcomes.artifact(scored),
        executor.outcomes.artifact(replay),
        n_predict=MAX_TOKENS,
        context=CONTEXT,
    )
    rows = []
    for _, text in texts:
        run = simulate(text, SETTING, Profile.MAINLINE_2026_10)
        matches = int(text.match[1 : text.reply].sum())
        rows.append((run.draft_n_accepted, run.draft_n, matches, text.reply - 1))
    return np.array(rows, float)


def _compared(counts: Mapping[str, np.ndarray[Any, Any]], prompts: PromptSet) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    groups = [
        [i for i, p in enumerate(prompts.prompts) if p.category == name]
        for name in prompts.categories
    ]
    picks = np.concatenate([rng.choice(group, (RESAMPLES, len(group))) for group in groups], axis=1)
    ours = counts["trace"]
    told: dict[str, Any] = {}
    for label, rows in counts.items():
        total = rows.sum(axis=0)
        told[label] = {
            "accepted": int(total[0]),
            "drafted": int(total[1]),
            "acceptance": round(total[0] / total[1], 4),
            "top-1 agreement": round(total[2] / total[3], 4),
        }
        if label == "trace":
            continue
        for what, over, under in (("acceptance", 0, 1), ("top-1 agreement", 2, 3)):
            drawn = [c[picks].sum(axis=1) for c in (ours, rows)]
            gaps = drawn[0][:, over] / drawn[0][:, under] - drawn[1][:, over] / drawn[1][:, under]
            low, high = np.quantile(gaps, (0.025, 0.975))
            own = ours.sum(axis=0)
            gap = own[over] / own[under] - total[over] / total[under]
            told[label][f"trace minus this, {what}, points"] = {
                "difference": round(100 * gap, 2),
                "interval 95 %": [round(100 * low, 2), round(100 * high, 2)],
            }
    return told


if __name__ == "__main__":
    sys.exit(main())
