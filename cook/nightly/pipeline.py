"""Pipeline files, version 1: which recipes run on which engines, and what counts as worse.

Attribute names are the YAML's keys. :func:`load_pipeline` reads, checks, and reports every fault at
once, each with file, line and column.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, ValidationError

from cook.documents.located import yaml_document
from cook.documents.spec import Name, Spec, TextLine, one_or_many
from cook.documents.tree import Locations, read_text
from cook.errors import InputError, PipelineError, Problem
from cook.paths import cook_home, data_dir
from cook.recipe.load import LoadedRecipe, load_recipe, shipped_recipes
from cook.recipe.schema import PromptsField, ScoreSpec

Percent = Annotated[float, Field(ge=0, lt=100)]
Engines = Annotated[
    tuple[Name, ...],
    BeforeValidator(one_or_many, json_schema_input_type=Name | list[Name]),
    Field(max_length=16),
]


class EntrySpec(Spec):
    """One recipe, a file (relative to the pipeline) or a shipped one; a name alone stands for
    `{recipe: name}`. What is absent is as the pipeline says."""

    recipe: TextLine
    engines: Engines | None = None
    demo: bool | None = None


class NightScoreSpec(Spec):
    """Settings of every recipe's score that the nights replace."""

    prompts: PromptsField | None = None
    categories: Annotated[tuple[str, ...], Field(min_length=1, max_length=64)] | None = None
    limit: Annotated[int, Field(ge=1, le=100_000)] | None = None
    max_tokens: Annotated[int, Field(ge=1, le=131_072)] | None = None
    repeats: Annotated[int, Field(ge=1, le=100)] | None = None
    live_minutes: Annotated[float, Field(gt=0, le=100_000)] | None = None


class GatesSpec(Spec):
    """What is worse enough to matter: points of acceptance (62 % to 59 % is 3), per cent of the
    rest. ``confidence``: that a night of a cell on which nothing got slower raises no alarm."""

    confidence: Annotated[float, Field(ge=0.5, lt=1)] = 0.99
    acceptance_points: Percent = 1.0
    speed_percent: Percent = 2.0
    no_draft_percent: Percent = 4.0
    perplexity_percent: Percent = 1.0
    kld_percent: Percent = 10.0
    size_percent: Percent = 0.5


class PipelineSpec(Spec):
    """Nights to run: every recipe on every engine, each pair a cell.

    ``engines`` absent: those that each recipe names; ``history`` absent: `history/NAME.jsonl` in
    COOK_HOME. ``reference``: engine -> folder of a build of it that you keep; every live candidate
    runs on both builds in turn, so that speeds are compared at the same moment.
    """

    version: Literal[1]
    name: Name
    description: Annotated[str, Field(max_length=10_000)] | None = None
    recipes: Annotated[
        tuple[
            Annotated[
                EntrySpec, BeforeValidator(lambda v: {"recipe": v} if isinstance(v, str) else v)
            ],
            ...,
        ],
        Field(min_length=1, max_length=64),
    ]
    engines: Engines = ()
    demo: bool = False
    max_age_hours: Annotated[float, Field(gt=0, le=24 * 366)] = 20.0
    history: TextLine | None = None
    score: NightScoreSpec = NightScoreSpec()
    gates: GatesSpec = GatesSpec()
    reference: Annotated[dict[Name, TextLine], Field(max_length=16, default_factory=dict)]


@dataclass(frozen=True)
class Cell:
    """One recipe on one engine (None: the one it names). ``name`` is safe as a file name."""

    loaded: LoadedRecipe
    engine: str | None
    demo: bool

    @property
    def engines(self) -> tuple[str, ...]:
        """What `--engine` would say; empty: what the recipe names."""
        return (self.engine,) if self.engine else ()

    @property
    def engine_label(self) -> str:
        named = self.engine or self.loaded.recipe.engine or "default"
        return named if isinstance(named, str) else "+".join(named)

    @property
    def name(self) -> str:
        return f"{self.loaded.recipe.name}-{self.engine_label}{'-demo' if self.demo else ''}"


@dataclass(frozen=True)
class LoadedPipeline:
    """A valid pipeline, its file, and its cells in order."""

    pipeline: PipelineSpec
    path: Path
    cells: tuple[Cell, ...]

    @property
    def history(self) -> Path:
        """Where its nights are kept."""
        if (stated := self.pipeline.history) is None:
            return cook_home() / "history" / f"{self.pipeline.name}.jsonl"
        return self.path.resolve().parent / Path(stated).expanduser()

    def reference(self, cell: Cell) -> dict[str, Path]:
        """Engine -> the reference build that ``cell`` also runs on."""
        builds, folder = self.pipeline.reference, self.path.resolve().parent
        names = [name for name in cell.engine_label.split("+") if name in builds]
        return {name: folder / Path(builds[name]).expanduser() for name in names}

    def cell(self, name: str) -> Cell:
        """The cell of that name; InputError when there is none."""
        cells = {cell.name: cell for cell in self.cells}
        if name not in cells:
            hint = _close(name, cells, f"it has {', '.join(cells)}")
            raise InputError(f"{self.path}: no cell {name}", hint=hint)
        return cells[name]


def shipped_pipelines() -> Mapping[str, Path]:
    """Name -> file of the pipelines that come with cook, sorted by name."""
    return {p.stem: p for p in sorted(data_dir("pipelines").glob("*.yaml"))}


def load_pipeline(name: Path | str, *, unsafe_args: bool = False) -> LoadedPipeline:
    """Read the pipeline at a path, or the shipped one of that name, and all of its recipes.

    InputError when there is no such file; PipelineError with every fault of it, RecipeError with
    those of a recipe.
    """
    path, shipped = Path(name).expanduser(), shipped_pipelines()
    if not path.is_file():
        if (stem := str(name).removesuffix(".yaml")) not in shipped:
            hint = _close(str(name), shipped, f"shipped: {', '.join(shipped) or 'none'}")
            raise InputError(f"no pipeline {name}", hint=hint)
        path = shipped[stem]
    return parse_pipeline(read_text(path, PipelineError), path, unsafe_args=unsafe_args)


def parse_pipeline(text: str, path: Path, *, unsafe_args: bool = False) -> LoadedPipeline:
    """A pipeline from its text; ``path`` names it in errors and anchors its relative paths.

    ``unsafe_args``: of all its recipes, as :func:`cook.recipe.load.load_recipe`.
    """
    document = yaml_document(text, path, PipelineError)
    pipeline = document.validated(PipelineSpec)
    if pipeline is None:
        raise document.fault()
    places, problems = document.locations, document.problems
    cells = _cells(pipeline, path, places, problems, unsafe_args)
    loaded = LoadedPipeline(pipeline, path, cells)
    builds = {name: build for cell in cells for name, build in loaded.reference(cell).items()}
    for name in pipeline.reference:
        at = places.at("reference", name)
        if name not in builds:
            problems.append(at.problem(f"no cell runs on the engine {name}"))
        elif not builds[name].is_dir():
            hint = "the folder of an engine build, as `cook build --engine` takes it"
            problems.append(at.problem(f"no folder {builds[name]}", hint=hint, kind="file"))
    if problems:
        raise document.fault()
    return loaded


def _close(name: str, known: Collection[str], otherwise: str) -> str:
    """The hint after a name that is not among the ``known`` ones."""
    close = get_close_matches(name, known, n=1)
    return f"did you mean `{close[0]}`?" if close else otherwise


def _cells(
    pipeline: PipelineSpec,
    path: Path,
    places: Locations,
    problems: list[Problem],
    unsafe_args: bool,
) -> tuple[Cell, ...]:
    cells: dict[str, Cell] = {}
    shipped = shipped_recipes()
    for index, entry in enumerate(pipeline.recipes):
        at = places.at("recipes", index, "recipe")
        file: Path | None = path.resolve().parent / Path(entry.recipe).expanduser()
        if file is None or not file.is_file():
            file = shipped.get(entry.recipe.removesuffix(".yaml"))
        if file is None:
            hint = _close(entry.recipe, shipped, "`cook recipes ls` lists those shipped")
            problems.append(at.problem(f"no recipe {entry.recipe}", hint=hint, kind="file"))
            continue
        loaded = load_recipe(file, unsafe_args=unsafe_args)
        try:
            loaded = with_score(loaded, pipeline.score)
        except ValidationError as error:
            text = f"{loaded.recipe.name}: {error.errors()[0]['msg']}"
            problems.append(places.at("score").problem(text))
            continue
        demo = pipeline.demo if entry.demo is None else entry.demo
        engines = pipeline.engines if entry.engines is None else entry.engines
        for engine in engines or (None,):
            cell = Cell(loaded, engine, demo)
            if cell.name in cells:
                problems.append(at.problem(f"the cell {cell.name} is listed twice"))
            cells[cell.name] = cell
    return tuple(cells.values())


def with_score(loaded: LoadedRecipe, night: NightScoreSpec) -> LoadedRecipe:
    """``loaded`` with the nights' score settings; ValidationError where they do not fit it."""
    score = loaded.recipe.score
    changes = {k: v for k in NightScoreSpec.model_fields if (v := getattr(night, k)) is not None}
    if score is None or not changes:
        return loaded
    if (minutes := changes.pop("live_minutes", None)) is not None:
        changes["live_budget"] = score.live_budget.model_copy(update={"minutes": minutes})
    kept = {name: getattr(score, name) for name in ScoreSpec.model_fields}
    # Validated, not copied: settings that are fine alone may not fit each other.
    changed = ScoreSpec(**{**kept, **changes})
    return replace(loaded, recipe=loaded.recipe.model_copy(update={"score": changed}))
