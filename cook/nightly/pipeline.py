"""Pipeline files, version 1: which recipes run on which engines, and what counts as worse.

Attribute names are the YAML's keys. :func:`load_pipeline` reads, checks, and tells every fault at
once, each with file, line and column.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError

from cook.documents.located import yaml_document
from cook.documents.places import Locations
from cook.documents.spec import Name, Spec, TextLine, one_or_many
from cook.documents.tree import read_text
from cook.errors import InputError, PipelineError, Problem
from cook.nightly.gates import Policy
from cook.paths import cook_home, data_dir
from cook.recipe.load import LoadedRecipe, load_recipe, shipped_recipes
from cook.recipe.schema import PromptsField, ScoreSpec

MAX_RECIPES = 64
Percent = Annotated[float, Field(ge=0, le=100)]
Engines = Annotated[
    tuple[Name, ...],
    BeforeValidator(one_or_many, json_schema_input_type=Name | list[Name]),
    Field(max_length=16),
]


def _distinctly_named(value: Any) -> Any:
    """A lone name is an entry that says nothing else."""
    return {"recipe": value} if isinstance(value, str) else value


class EntrySpec(Spec):
    """One recipe of the pipeline; a name alone stands for `{recipe: name}`."""

    recipe: TextLine
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


class PipelineSpec(Spec):
    """Nights to run: every recipe on every engine, each pair a cell."""

    version: Literal[1]
    """Version of the pipeline language."""
    name: Name
    """Names the pipeline and its history."""
    description: Annotated[str, Field(max_length=10_000)] | None = None
    """What it is for."""
    recipes: Annotated[
        tuple[Annotated[EntrySpec, BeforeValidator(_distinctly_named)], ...],
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
    history: TextLine | None = None
    """File of the nights. Absent: `history/NAME.jsonl` in COOK_HOME."""
    score: NightScoreSpec = NightScoreSpec()
    """Settings of every recipe's score that the nights replace."""
    gates: GatesSpec = GatesSpec()
    """What counts as worse."""


@dataclass(frozen=True)
class Cell:
    """One recipe on one engine (None: the one it names). ``name`` is safe as a file name."""

    name: str
    loaded: LoadedRecipe
    engine: str | None
    demo: bool

    @property
    def engines(self) -> tuple[str, ...]:
        """What to ask for; empty: what the recipe names."""
        return (self.engine,) if self.engine else ()

    @property
    def engine_label(self) -> str:
        """The engine as people read it."""
        return self.engine or _named(self.loaded)


@dataclass(frozen=True)
class LoadedPipeline:
    """A valid pipeline, its file, and its cells in order."""

    pipeline: PipelineSpec
    path: Path
    cells: tuple[Cell, ...]

    @property
    def history(self) -> Path:
        """Where its nights are kept."""
        stated = self.pipeline.history
        if stated is None:
            return cook_home() / "history" / f"{self.pipeline.name}.jsonl"
        path = Path(stated).expanduser()
        return path if path.is_absolute() else self.path.resolve().parent / path

    def cell(self, name: str) -> Cell:
        """The cell of that name; InputError when there is none."""
        for cell in self.cells:
            if cell.name == name:
                return cell
        names = [cell.name for cell in self.cells]
        close = get_close_matches(name, names, n=1)
        hint = f"did you mean `{close[0]}`?" if close else f"it has {', '.join(names)}"
        raise InputError(f"{self.path}: no cell {name}", hint=hint)


def shipped_pipelines() -> Mapping[str, Path]:
    """Name -> file of the pipelines that come with cook, sorted by name."""
    return {p.stem: p for p in sorted(data_dir("pipelines").glob("*.yaml"))}


def load_pipeline(name: Path | str, *, unsafe_args: bool = False) -> LoadedPipeline:
    """Read the pipeline at a path, or the shipped one of that name, and all of its recipes.

    InputError when there is no such file; PipelineError with every fault of it, RecipeError with
    those of a recipe.
    """
    path = _find(name)
    return parse_pipeline(read_text(path, PipelineError), path, unsafe_args=unsafe_args)


def parse_pipeline(text: str, path: Path, *, unsafe_args: bool = False) -> LoadedPipeline:
    """A pipeline from its text; ``path`` names it in errors and anchors its relative paths.

    ``unsafe_args``: of all its recipes, as :func:`cook.recipe.load.load_recipe`.
    """
    document = yaml_document(text, path, PipelineError)
    pipeline = document.validated(PipelineSpec)
    if pipeline is None:
        raise document.fault()
    cells, more = _cells(pipeline, path, document.locations, unsafe_args)
    document.problems.extend(more)
    if document.problems:
        raise document.fault()
    return LoadedPipeline(pipeline, path, cells)


def _find(name: Path | str) -> Path:
    path = Path(name).expanduser()
    if path.is_file():
        return path
    shipped = shipped_pipelines()
    if (known := shipped.get(str(name).removesuffix(".yaml"))) is not None:
        return known
    close = get_close_matches(str(name), list(shipped), n=1)
    hint = f"did you mean `{close[0]}`?" if close else f"shipped: {', '.join(shipped) or 'none'}"
    raise InputError(f"no pipeline {name}", hint=hint)


def _cells(
    pipeline: PipelineSpec, path: Path, locations: Locations, unsafe_args: bool
) -> tuple[tuple[Cell, ...], list[Problem]]:
    cells: dict[str, Cell] = {}
    problems: list[Problem] = []
    for index, entry in enumerate(pipeline.recipes):
        file = _recipe_file(entry.recipe, path)
        at = locations.at("recipes", index, "recipe")
        if file is None:
            close = get_close_matches(entry.recipe, list(shipped_recipes()), n=1)
            hint = (
                f"did you mean `{close[0]}`?" if close else "`cook recipes ls` lists those shipped"
            )
            problems.append(at.problem(f"no recipe {entry.recipe}", hint=hint, kind="file"))
            continue
        loaded = load_recipe(file, unsafe_args=unsafe_args)
        try:
            loaded = with_score(loaded, pipeline.score)
        except ValidationError as error:
            problems.append(locations.at("score").problem(f"{loaded.recipe.name}: {_first(error)}"))
            continue
        demo = pipeline.demo if entry.demo is None else entry.demo
        engines = pipeline.engines if entry.engines is None else entry.engines
        for engine in engines or (None,):
            name = f"{loaded.recipe.name}-{engine or _named(loaded)}"
            name += "-demo" if demo else ""
            if name in cells:
                problems.append(at.problem(f"the cell {name} is listed twice"))
            cells[name] = Cell(name, loaded, engine, demo)
    return tuple(cells.values()), problems


def _named(loaded: LoadedRecipe) -> str:
    named = loaded.recipe.engine
    return "+".join([named] if isinstance(named, str) else named or ["default"])


def _recipe_file(name: str, pipeline: Path) -> Path | None:
    beside = pipeline.resolve().parent / Path(name).expanduser()
    if beside.is_file():
        return beside
    return shipped_recipes().get(name.removesuffix(".yaml"))


def with_score(loaded: LoadedRecipe, night: NightScoreSpec) -> LoadedRecipe:
    """``loaded`` with the nights' score settings; ValidationError where they do not fit it."""
    from dataclasses import replace

    score = loaded.recipe.score
    changes = {k: v for k in NightScoreSpec.model_fields if (v := getattr(night, k)) is not None}
    if score is None or not changes:
        return loaded
    if (minutes := changes.pop("live_minutes", None)) is not None:
        changes["live_budget"] = score.live_budget.model_copy(update={"minutes": minutes})
    kept = {name: getattr(score, name) for name in ScoreSpec.model_fields}
    # Built anew, not copied: settings that are fine alone may not fit each other.
    changed = ScoreSpec(**{**kept, **changes})
    return replace(loaded, recipe=loaded.recipe.model_copy(update={"score": changed}))


def _first(error: ValidationError) -> str:
    return str(error.errors()[0]["msg"])
