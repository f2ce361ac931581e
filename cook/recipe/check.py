"""``cook recipes check``: every finding about a recipe, and what each quant would come to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from cook.errors import InputError, Problem
from cook.formats.gguf import is_gguf, read_gguf, read_tensor_list
from cook.recipe.lint import flavour_of, lint, raise_problems
from cook.recipe.load import LoadedRecipe
from cook.recipe.rules import ModelTensors, Quant, Resolution, predicted_bpw, predicted_bytes
from cook.recipe.traps import models_at, trap_problems

if TYPE_CHECKING:
    from cook.documents.tree import Keys
    from cook.engines.base import Engine
    from cook.formats.gguf import GgufFile
    from cook.formats.imatrix_file import Imatrix


@dataclass(frozen=True)
class QuantCheck:
    """A quant on the given tensors; sizes are None for the reason of ``size_absent``.

    ``tensors_of_type`` counts tensors by the type they get, ``"?"`` where that is not known.
    """

    name: str
    type: str
    mixture: str
    size_bytes: int | None
    bpw: float | None
    tensors_of_type: Mapping[str, int]
    size_absent: str | None = None


@dataclass(frozen=True)
class CheckResult:
    """``problems`` are sorted by place; ``quants`` is empty without tensors."""

    path: Path
    flavour: str
    problems: tuple[Problem, ...]
    quants: tuple[QuantCheck, ...]


def check_recipe(
    loaded: LoadedRecipe, engine: str | None = None, tensors: Path | None = None
) -> CheckResult:
    """Check against an engine (by its specification) and a GGUF or a tensor list (.tsv).

    PrerequisiteError if nothing is wrong but that the engine lacks types.
    """
    model = read_tensors(tensors) if tensors is not None else None
    imatrix = _ready_imatrix(loaded) if model is not None else None
    flavour = flavour_of(loaded)
    found: Engine | None = None
    if engine is None:
        problems = lint(loaded, model=model, flavour=flavour, imatrix=imatrix)
    else:
        from cook.engines.discover import discover

        found = discover(engine)
        flavour = str(found.flavour)
        problems = lint(
            loaded,
            model=model,
            flavour=flavour,
            capabilities=found.capabilities,
            engine_name=found.name,
            imatrix=imatrix,
        )
    if any(p.kind == "prerequisite" for p in problems):
        raise_problems(problems)
    headers, unread = _headers(loaded)
    traps = trap_problems(loaded.recipe, loaded.locations, flavour, headers)
    problems = tuple(
        sorted({*problems, *unread, *traps}, key=lambda p: (p.line, p.column, p.message))
    )
    quants = tuple(_quants(loaded, model, flavour, found, tensors)) if model is not None else ()
    return CheckResult(loaded.path, flavour, problems, quants)


def _ready_imatrix(loaded: LoadedRecipe) -> Imatrix | None:
    """The recipe's own, where it is on this disk."""
    from cook.formats.imatrix_file import read_imatrix

    path = loaded.recipe.imatrix.file if loaded.recipe.imatrix else None
    return read_imatrix(path) if isinstance(path, Path) and path.is_file() else None


def _headers(
    loaded: LoadedRecipe,
) -> tuple[Mapping[Keys, GgufFile], list[Problem]]:
    """Of every model that the recipe names and that is on this disk, and those that cannot be
    read."""
    found: dict[Keys, GgufFile] = {}
    unread = []
    for place, ref in models_at(loaded.recipe).items():
        if isinstance(ref, Path) and ref.is_file():
            try:
                found[place] = read_gguf(ref)
            except InputError as error:
                at = loaded.locations.at(*place)
                unread.append(at.problem(error.message, hint=error.hint))
    return found, unread


def read_tensors(path: Path) -> ModelTensors:
    """The tensors of a GGUF, or of a list (``name <tab> shape <tab> type`` lines)."""
    if path.suffix == ".tsv":
        return ModelTensors(read_tensor_list(path))
    file = read_gguf(path)
    return ModelTensors(file.tensors, file.architecture)


def _quants(
    loaded: LoadedRecipe,
    model: ModelTensors,
    flavour: str,
    engine: Engine | None,
    source: Path | None,
) -> Iterator[QuantCheck]:
    for quant in loaded.quants:
        resolution = model.resolve(quant, flavour)
        fits = all(p.severity != "error" for p in resolution.problems)
        absent = None if fits else "its rules do not fit the tensors"
        if fits and not resolution.complete:
            if engine is not None and source is not None and is_gguf(source):
                types = _mixture(engine, loaded, quant, resolution, source)
                resolution = replace(resolution, types={**resolution.types, **types})
            else:
                absent = "the engine's own mixture decides: --engine NAME and a GGUF ask it"
        counts = Counter(t or "?" for t in resolution.types.values())
        yield QuantCheck(
            name=quant.name,
            type=quant.ftype,
            mixture=quant.mixture,
            size_bytes=predicted_bytes(model.tensors, resolution) if fits else None,
            bpw=predicted_bpw(model.tensors, resolution) if fits else None,
            tensors_of_type=dict(counts.most_common()),
            size_absent=absent,
        )


def _mixture(
    engine: Engine, loaded: LoadedRecipe, quant: Quant, resolution: Resolution, source: Path
) -> Mapping[str, str]:
    """What the engine would give every tensor, by a dry run of its own tool."""
    from cook.engines.base import QuantizeJob
    from cook.engines.mixture import mixture_types
    from cook.recipe.engine_rules import to_engine_rules

    recipe = loaded.recipe
    job = QuantizeJob(
        source=source,
        output=Path("unused"),
        ftype=quant.ftype,
        rules=to_engine_rules(resolution),
        imatrix=Path("imatrix") if recipe.imatrix is not None and quant.use_imatrix else None,
        threads=1,
        expected={},
        allow_requantize=recipe.model is not None and recipe.model.allow_requantize,
    )
    return mixture_types(engine, job, read_gguf(source).header_digest)
