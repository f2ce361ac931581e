"""Every finding about a recipe, the same to ``cook plan`` and ``cook recipes check``, and what each
quant would come to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from cook.documents.tree import Keys
from cook.engines.base import Engine, QuantizeJob
from cook.errors import InputError, Problem
from cook.formats.gguf import GgufFile, is_gguf, read_gguf, read_tensor_list
from cook.formats.heads import head_alone
from cook.formats.imatrix_file import Imatrix, read_imatrix
from cook.formats.quantized_file import require_output_type
from cook.recipe.lint import flavour_of, is_here, lint, raise_problems
from cook.recipe.load import LoadedRecipe
from cook.recipe.rules import ModelTensors, Quant, Resolution, predicted_bpw, predicted_bytes
from cook.recipe.sources import HubRef
from cook.recipe.traps import MODEL, models_at, trap_problems


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
    loaded: LoadedRecipe,
    engine: Engine | None = None,
    tensors: Path | None = None,
    *,
    strict: bool = False,
) -> CheckResult:
    """Check against an engine (else by the specification of the recipe's) and the models on this
    disk, quants against a GGUF or a tensor list (.tsv) in their source's place.

    PrerequisiteError if nothing is wrong but types that the engine does not have.
    """
    flavour = str(engine.flavour) if engine is not None else flavour_of(loaded)
    headers, unread = headers_of(loaded, on_this_disk)
    model = own = None
    if tensors is not None:
        model = read_tensors(tensors)
    elif (source := headers.get(MODEL)) is not None:
        own = ModelTensors(source.tensors, source.architecture)
    imatrix, ready = None, loaded.recipe.imatrix.file if loaded.recipe.imatrix else None
    if (model or own) and isinstance(ready, Path) and ready.is_file():
        imatrix = read_imatrix(ready)
    problems = recipe_problems(
        loaded,
        flavour,
        headers,
        engine=engine,
        model=model or own,
        imatrix=imatrix,
        strict=strict,
    )
    if any(p.kind == "prerequisite" for p in problems):
        raise_problems(problems)
    quants = tuple(_quants(loaded, model, flavour, engine, tensors)) if model is not None else ()
    return CheckResult(loaded.path, flavour, _sorted({*problems, *unread}), quants)


def recipe_problems(
    loaded: LoadedRecipe,
    flavour: str,
    headers: Mapping[Keys, GgufFile],
    *,
    engine: Engine | None = None,
    model: ModelTensors | None = None,
    imatrix: Imatrix | None = None,
    strict: bool = False,
) -> tuple[Problem, ...]:
    """All that is wrong with ``loaded`` on ``flavour``, by place; ``headers`` as far as they are at
    hand, ``strict`` makes warnings errors."""
    found = {
        *lint(
            loaded,
            model=model,
            flavour=flavour,
            facts=engine.facts if engine is not None else None,
            engine_name=engine.name if engine is not None else None,
            imatrix=imatrix,
        ),
        *_header_problems(loaded, flavour, headers),
        *trap_problems(loaded.recipe, loaded.locations, flavour, headers, loaded.quants),
    }
    return _sorted(replace(p, severity="error") if strict else p for p in found)


def _sorted(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    return tuple(sorted(problems, key=lambda p: (p.line, p.column, p.severity, p.message)))


def _header_problems(
    loaded: LoadedRecipe, flavour: str, headers: Mapping[Keys, GgufFile]
) -> Iterator[Problem]:
    """Experts and layers that a model has not, each reported once, and output heads that an engine
    of ``flavour`` cannot make of a ready draft's."""
    at = loaded.locations.at
    tried = [(q.name, q.at or at("quants"), MODEL, q.candidates) for q in loaded.quants]
    tried += [
        (d.name, at("drafts", i, "name"), ("drafts", i, "source"), d.candidates)
        for i, d in enumerate(loaded.recipe.drafts)
    ]
    for name, where, place, candidates in tried:
        seen = set()
        for reduction in candidates if place in headers else ():
            try:
                reduction.applied_to(headers[place])
            except InputError as error:
                if error.message not in seen:
                    yield where.problem(f"{name}: {error.message}", hint=error.hint)
                seen.add(error.message)
    for index, draft in enumerate(loaded.recipe.drafts):
        source = ("drafts", index, "source")
        for number, wanted in enumerate(draft.output if source in headers else ()):
            try:
                require_output_type(headers[source], wanted, flavour)
            except InputError as error:
                where = at("drafts", index, "output", number)
                yield where.problem(f"{draft.name}: {error.message}", hint=error.hint)


def headers_of(
    loaded: LoadedRecipe, read: Callable[[Keys, Path | HubRef], GgufFile | None]
) -> tuple[Mapping[Keys, GgufFile], list[Problem]]:
    """The header of every model that the recipe names, by ``read``, and a problem for each failure.

    A file that is not there is left to the lint.
    """
    found: dict[Keys, GgufFile] = {}
    unread = []
    for place, ref in models_at(loaded.recipe).items():
        if isinstance(ref, Path) and not is_here(ref):
            continue
        try:
            file = read(place, ref)
        except InputError as error:
            at = loaded.locations.at(*place)
            unread.append(at.problem(error.message, hint=error.hint))
        else:
            found |= {place: file} if file is not None else {}
    return found, unread


def on_this_disk(_: Keys, ref: Path | HubRef) -> GgufFile | None:
    """The header of a file of the user's own."""
    return read_gguf(ref) if isinstance(ref, Path) and ref.is_file() else None


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
        resolution, tensors = model.resolve(quant, flavour), model.of(quant).tensors
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
            size_bytes=predicted_bytes(tensors, resolution) if fits else None,
            bpw=predicted_bpw(tensors, resolution) if fits else None,
            tensors_of_type=dict(counts.most_common()),
            size_absent=absent,
        )


def _mixture(
    engine: Engine, loaded: LoadedRecipe, quant: Quant, resolution: Resolution, source: Path
) -> Mapping[str, str]:
    """What the engine would give every tensor, by a dry run of its own tool."""
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
    file = read_gguf(source)
    return mixture_types(engine, job, file.header_digest, head_alone(file) if quant.part else None)
