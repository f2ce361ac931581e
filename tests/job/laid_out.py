"""Layouts of ready drafts on an engine that is not there, as a recipe's score lays them out."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from cook.job.lay_score import as_rivals, lay_candidates, lay_forecast
from cook.job.layout import DraftPlan, Layout
from cook.recipe.schema import ScoreSpec
from cook.steps.draft_quality import MemoryStep
from cook.steps.trace import TraceStep
from tests.job.fabricated import FakeEngine, prompt_set, source

SIZES = {"small": 1_000, "large": 3_000}
TARGET = source("target", 9_000)


def score(**changes: Any) -> ScoreSpec:
    document = {
        "target": {"source": "/models/target.gguf"},
        "context": 2048,
        "max_tokens": 24,
        "draft": {"n_max": [2, 4, 8]},
        **changes,
    }
    return ScoreSpec.model_validate_json(json.dumps(document))


def draft_plan(engine: Any, name: str, size: int) -> DraftPlan:
    model = source(name, size)
    memory = MemoryStep(engine, name, model, score().draft.args.to_model_args(), 2048)
    return DraftPlan(name, model, None, None, memory, size, 8 * size, {"q4_K": 3})


def layout(
    spec: ScoreSpec | None = None,
    sizes: dict[str, int] | None = None,
    engine: FakeEngine | None = None,
    suffix: str = "",
) -> Layout:
    """Every draft with every setting, forecast on a trace."""
    spec = spec or score()
    fake: Any = engine or FakeEngine()
    prompts = prompt_set()
    drafts = tuple(draft_plan(fake, name + suffix, n) for name, n in (sizes or SIZES).items())
    rivals = as_rivals(fake.flavour, spec.rivals, suffix)
    trace = TraceStep(
        engine=fake,
        target=TARGET,
        args=spec.target.args.to_model_args(),
        context=spec.context,
        prompts=prompts.prompts,
        max_tokens=spec.max_tokens,
        sampling=spec.sampling.to_sampling(),
        chat=False,
    )
    forecast = None
    if spec.method == "replay":
        forecast = lay_forecast(
            *(fake, spec, TARGET, prompts, drafts, trace), rivals=rivals, suffix=suffix
        )
        others = tuple(replace(trace, sampling=chain) for chain in spec.sampling.chains[1:])
        forecast = replace(forecast, chains=others)
    baseline, *grid = lay_candidates(
        *(fake, spec, TARGET, prompts, drafts), rivals=rivals, suffix=suffix, chat=False
    )
    return Layout(
        engine=fake,
        imatrix=None,
        reference=None,
        drafts=drafts,
        target=TARGET,
        prompts=prompts,
        baseline=baseline,
        grid=tuple(grid),
        warnings=("a warning of the layout",),
        forecast=forecast,
    )
