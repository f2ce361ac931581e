"""The pipeline, version 1: which recipes run on which engines, and what counts as worse.

Attribute names are the YAML's keys; parse with :func:`cook.sweep.load.load_pipeline`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from cook.recipe.fields import Line, Name, Spec, one_or_many
from cook.recipe.score_spec import PromptsField
from cook.report.gates import Policy

MAX_RECIPES = 64
Percent = Annotated[float, Field(ge=0, le=100)]
Engines = Annotated[
    tuple[Name, ...],
    BeforeValidator(one_or_many, json_schema_input_type=Name | list[Name]),
    Field(max_length=16),
]


def _named(value: Any) -> Any:
    """A lone name is an entry that says nothing else."""
    return {"recipe": value} if isinstance(value, str) else value


class EntrySpec(Spec):
    """One recipe of the sweep; a name alone stands for `{recipe: name}`."""

    recipe: Line
    """A file (relative to the pipeline) or the name of a shipped recipe."""
    engines: Engines | None = None
    """The engines to run it on. Absent: the pipeline's."""
    demo: bool | None = None
    """On the demo's models in place of its own. Absent: as the pipeline says."""


class NightScoreSpec(Spec):
    """What the score of every recipe says instead, at night."""

    prompts: PromptsField | None = None
    """A prompt set (`default`, `demo`) or a .jsonl file."""
    categories: Annotated[tuple[str, ...], Field(min_length=1, max_length=64)] | None = None
    """Only prompts of these categories."""
    limit: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """At most this many prompts. Acceptance needs many: see docs/nightly.md."""
    max_tokens: Annotated[int, Field(ge=1, le=131_072)] | None = None
    """Tokens generated for each prompt."""
    repeats: Annotated[int, Field(ge=1, le=100)] | None = None
    """Times each live run is repeated; speeds need 3."""
    live_minutes: Annotated[float, Field(gt=0, le=100_000)] | None = None
    """Minutes of live runs of each recipe."""


class GatesSpec(Spec):
    """What is worse enough to matter. It must also be more than noise to raise an alarm."""

    false_alarms: Annotated[float, Field(gt=0, le=0.5)] = 0.01
    """Share of nights with a false alarm, all gates of all cells together."""
    acceptance_points: Percent = 1.0
    """Points of acceptance: 62 % to 59 % is 3."""
    speed_percent: Percent = 2.0
    """Speed against no draft, and time of a cycle against a token's without one."""
    no_draft_percent: Percent = 4.0
    """Speed without a draft; nights differ by 1-3 % of themselves, so this gate is coarse."""
    perplexity_percent: Percent = 1.0
    """Perplexity of a quant."""
    kld_percent: Percent = 10.0
    """Mean KLD of a quant from its source."""
    size_percent: Percent = 0.5
    """Size of a quant's file."""

    def policy(self, cells: int) -> Policy:
        """The gates of one of ``cells`` cells."""
        return Policy(cells=cells, **self.model_dump())


class Pipeline(Spec):
    """A sweep: every recipe on every engine, each pair a cell."""

    version: Literal[1]
    """Version of the pipeline language."""
    name: Name
    """Names the sweep and its history."""
    description: Annotated[str, Field(max_length=10_000)] | None = None
    """What it is for."""
    recipes: Annotated[
        tuple[Annotated[EntrySpec, BeforeValidator(_named)], ...],
        Field(min_length=1, max_length=MAX_RECIPES),
    ]
    """What to run: names, or mappings."""
    engines: Engines = ()
    """One or a list: `bundled`, a flavour, or names of your configuration. Absent: the engine
    that each recipe names."""
    demo: bool = False
    """Run every recipe on the demo's models."""
    max_age_hours: Annotated[float, Field(gt=0, le=24 * 366)] = 20.0
    """A cell is stale when its last night is older, or when something it depends on changed."""
    history: Line | None = None
    """File of the nights. Absent: `history/NAME.jsonl` in COOK_HOME."""
    score: NightScoreSpec = NightScoreSpec()
    """Settings of every recipe's score that the nights replace."""
    gates: GatesSpec = GatesSpec()
    """What counts as worse."""
