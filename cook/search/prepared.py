"""What a search is asked for, what it has to work with once the recipe is prepared, and the recipe
that it writes: the one it was given, with the mix that was found as a quant."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from cook.engines.base import DraftSettings, Engine
from cook.engines.mixture import mixture_types
from cook.errors import InputError, InternalError, StepError
from cook.formats.gguf import GgufFile, header
from cook.formats.quant_types import Flavour, by_name, bytes_as, ftype_by_name, needs_imatrix
from cook.formats.sensitivity_csv import Sensitivities, read_sensitivities
from cook.job.layout import DraftPlan, Layout
from cook.job.prepare import Prepared
from cook.prompts.prompt_set import load_prompts, split_for_calibration
from cook.recipe.engine_rules import to_engine_rules
from cook.recipe.load import LoadedRecipe, parse_recipe
from cook.recipe.rules import ModelTensors, Resolution
from cook.record.record import Objective
from cook.search.evaluate import BASE, Budget, Deployed
from cook.search.space import LADDERS, Space
from cook.steps.quantize import QuantizeStep
from cook.steps.replay import ReplayStep
from cook.units import plural, short_size, size

EVALUATIONS = 120
"""The budget where none is given."""
MORE_HEADER = 4096
"""Bytes that a quantized file's header has over its source's, at most."""


@dataclass(frozen=True)
class SearchRequest:
    """What a command line asks for. ``floor``: the least type of small groups; ``types`` to choose
    from, () for the engine's ladder and those of the recipe's quants."""

    recipe: Path
    size_bytes: int
    output: Path
    maximize: Objective = Objective.ACCEPTANCE_LENGTH
    memory_bytes: int | None = None
    floor: str | None = None
    types: tuple[str, ...] = ()
    from_csv: Path | None = None
    budget: Budget = field(default_factory=lambda: Budget(EVALUATIONS))
    engine: str | None = None
    demo: bool = False
    jobs: int = 1
    threads: int | None = None
    unsafe_args: bool = False
    replaces: bool = False
    """Whether an output that exists may go."""

    def require_place(self) -> None:
        """InputError where the recipe could not be written: hours before it is."""
        path = self.output
        if path.is_dir():
            raise InputError(f"{path} is a folder", hint=f"-o {path / 'searched.yaml'}")
        if path.exists() and not self.replaces:
            raise InputError(f"{path} exists", hint="-o another file, or --force")
        if not (folder := path.parent).is_dir():
            raise InputError(f"{path}: there is no folder {folder}", hint=f"mkdir {folder}")


@dataclass(frozen=True, eq=False)
class PreparedSearch:
    """A prepared search. ``drafts`` are the recipe's own quants; ``prompts`` (ids) those that the
    search sees, ``verdict`` those of the final."""

    request: SearchRequest
    prepared: Prepared
    layout: Layout
    drafts: tuple[DraftPlan, ...]
    deployed: Deployed
    prompts: tuple[str, ...]
    verdict: tuple[str, ...]

    @classmethod
    def of(cls, request: SearchRequest, prepared: Prepared) -> PreparedSearch:
        """InputError where the recipe does not say what a search needs."""
        layout = prepared.layouts[0]
        models = (d for d in layout.drafts if d.quantize is not None and d.head is None)
        whole = (d for d in models if d.reduction is None)
        drafts = tuple({d.model.key: d for d in whole}.values())  # once, whatever its contexts
        if not drafts:
            raise InputError(
                f"{prepared.loaded.path}: has no quant to search from",
                hint="a model and a quant such as {name: Q4_K_M, type: Q4_K_M}",
            )
        if layout.forecast is None or layout.prompts is None:
            raise InputError(
                f"{prepared.loaded.path}: a search replays drafts, so it needs a target to draft "
                "for",
                hint="score: {target: {source: TARGET.gguf}, prompts: default}",
            )
        plan = layout.forecast
        making = drafts[0].quantize
        assert making is not None, "chosen above"
        imatrices = (d.quantize.imatrix for d in drafts if d.quantize and d.quantize.imatrix)
        engine, source = layout.engine, making.source
        lengths = tuple(sorted({settings.n_max for settings in plan.settings}))
        deployed = Deployed(
            file=header(source.path),
            mix=QuantizeStep(
                *(engine, "mix", source, next(imatrices, None), BASE, (), (), None),
                allow_requantize=making.allow_requantize,
            ),
            replay=ReplayStep(engine, "source", source, plan.trace, plan.drafts[0].replay.args),
            verify=plan.verify,
            lengths=lengths,
            settings=DraftSettings(lengths[len(lengths) // 2]),
            profile=plan.profile,
            n_predict=plan.n_predict,
            context=plan.context,
        )
        seen, verdict = (
            tuple(p.id for p in layout.prompts.prompts if p.half == half)
            for half in ("pick", "report")
        )
        return cls(request, prepared, layout, drafts, deployed, seen, verdict)

    @cached_property
    def space(self) -> Space:
        """Of the types asked for, or the engine's ladder, and those of the recipe's quants."""
        flavour, has = self.layout.engine.flavour, self.layout.engine.facts.types
        asked = [by_name(t).name for t in self.request.types]
        if missing := [t for t in asked if t not in has]:
            raise InputError(f"{self.layout.engine.name} has no {', '.join(missing)}")
        own = {
            t
            for d in self.drafts
            if d.quantize is not None
            for _, t in d.quantize.expected
            if by_name(t).quantizable and by_name(t).bpw < 16
        }
        types = asked or [t for t in (*LADDERS[flavour], *own) if t in has]
        return Space.of(
            self.deployed.file,
            flavour,
            dict.fromkeys(types),
            imatrix=self.deployed.mix.imatrix is not None,
            floor=self.request.floor,
            header_bytes=self.deployed.file.data_offset + MORE_HEADER,
        )

    @property
    def calibrating(self) -> tuple[str, ...]:
        """Ids of the prompts that the imatrix was made on; none where it is of a text."""
        recipe = self.prepared.recipe
        if recipe.imatrix is None or recipe.imatrix.corpus != "trace" or recipe.score is None:
            return ()
        split = split_for_calibration(recipe.score.prompts, load_prompts(recipe.score.prompts))
        return tuple(p.id for p in split.calibration.prompts)

    @property
    def found_name(self) -> str:
        """What the mix that is found is called."""
        size_text = short_size(self.request.size_bytes) or ""
        name = f"SEARCHED-{size_text.replace(' ', '')}"
        taken = {quant.name for quant in self.prepared.loaded.quants}
        again = (f"{name}-{number}" for number in itertools.count(2))
        return name if name not in taken else next(n for n in again if n not in taken)

    def size_of(self, types: Mapping[str, str]) -> int:
        """Of a file of these types."""
        tensors = self.space.tensors
        return self.space.fixed_bytes + sum(bytes_as(types[t.name], t.shape) for t in tensors)

    def given(self) -> Iterator[tuple[DraftPlan, Mapping[str, str]]]:
        """The recipe's quants, those whose types are known before they are made."""
        for draft in self.drafts:
            assert draft.quantize is not None, "chosen so"
            types = dict(draft.quantize.expected)
            if all(t.name in types for t in self.space.tensors):
                yield draft, types

    def mixtures(self) -> Iterator[tuple[str, Mapping[str, str]]]:
        """The engine's own mixtures, those that it would make with the imatrix that there is."""
        engine, mix = self.layout.engine, self.deployed.mix
        covered = mix.imatrix is not None
        for name in sorted(engine.facts.ftypes):
            base = ftype_by_name(name)
            if base.default in ("f32", "f16", "bf16") or name == "COPY":
                continue
            step = replace(mix, quant=name, ftype=name)
            job = step.job(Path("unused"), Path("imatrix") if covered else None, 1)
            try:
                types = mixture_types(engine, job, mix.source.key)
            except StepError:
                continue  # this base type needs an imatrix, and there is none
            if not covered and any(
                needs_imatrix(tensor, type_name, BASE, engine.flavour)
                for tensor, type_name in types.items()
            ):
                continue
            yield name, types

    def published(self) -> Sensitivities | None:
        """The costs in the table that is asked for; InputError where it is of another model."""
        if (path := self.request.from_csv) is None:
            return None
        table = read_sensitivities(path)
        columns = {name for row in table.rows.values() for name in row}
        if not any(t.name in columns for t in self.space.tensors):
            raise InputError(
                f"{path}: none of its {plural(len(columns), 'column')} is a tensor of "
                f"{self.deployed.file.path.name}",
                hint="give the table of this model, or measure: leave --from-csv out",
            )
        return table

    def require_room(self, limit: int, option: str = "--size", others: int = 0) -> None:
        """InputError where no mix fits into ``limit`` bytes; ``others``: what of the ``option`` is
        taken by other things."""
        smallest = self.space.least_bytes(self.space.spans())
        if smallest > limit:
            least = smallest + others
            taken = f", and KV cache and buffers take {size(others)}" if others else ""
            raise InputError(
                f"no mix fits into {option} {size(limit + others)}: the smallest has "
                f"{size(smallest)}{taken}",
                hint=f"{option} {short_size(least + least // 20)}, or smaller types: --type",
            )

    def recipe_with(self, types: Mapping[str, str]) -> str:
        """The text to write: the recipe with the mix of these types of tensors."""
        return with_quant(
            *(self.prepared.loaded, self.found_name, types, self.space, self.deployed.file),
            *(self.layout.engine, self.request.output),
        )


_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,15})?) ?([KMGT]?)(i?)B?", re.IGNORECASE)
_BUDGET = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(s|m|h|min)?")
_SECONDS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def bytes_of(text: str, option: str) -> int:
    """``24GiB``, ``900MB``, ``1900000``; InputError for what is no size above 0."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or float(match[1]) <= 0:
        raise InputError(f"{option} {text[:40]}: no size", hint=f"{option} 24GiB")
    base = 1024 if match[3] else 1000
    return int(float(match[1]) * base ** " KMGT".index(match[2].upper() or " "))


def budget_of(text: str | None) -> Budget:
    """``200`` evaluations, ``40m`` or ``4h`` of time; None is :data:`EVALUATIONS`."""
    if text is None:
        return Budget(EVALUATIONS)
    match = _BUDGET.fullmatch(text.strip())
    if match is None or float(match[1]) <= 0:
        raise InputError(f"--budget {text[:40]}: no budget", hint="--budget 200, or --budget 40m")
    if match[2] is None:
        return Budget(evaluations=float(match[1]))
    return Budget(seconds=float(match[1]) * _SECONDS[match[2]])


_HEADER = """\
# `cook search` wrote this: the recipe it was given, and the mix that it found as the last quant.
# Build it, and every quant is compared with the others: cook build {file}
"""


def with_quant(
    loaded: LoadedRecipe,
    name: str,
    types: Mapping[str, str],
    space: Space,
    file: GgufFile,
    engine: Engine,
    path: Path,
) -> str:
    """The text of ``loaded`` with a quant called ``name`` in which tensors have ``types``; to be
    kept in ``path``.

    Its rules name whole groups where one type holds throughout, else tensors.
    """
    import yaml

    document = loaded.recipe.model_dump(mode="json", exclude_unset=True)
    for quant in document.get("quants", []):
        if "rules" in quant:
            quant["rules"] = [{r["selector"]: r["type"]} for r in quant["rules"]]
    found = {
        "name": name,
        "type": base_type(types, space, engine),
        "rules": [{selector: type_name} for selector, type_name in rules(types, space)],
    }
    document["quants"] = [*document.get("quants", []), found]
    ordered = {"version": document.pop("version"), "name": document.pop("name", loaded.recipe.name)}
    body = yaml.safe_dump({**ordered, **document}, sort_keys=False, allow_unicode=True, width=100)
    text = _HEADER.format(file=path.name) + body
    own: Any = next(q for q in parse_recipe(text, path).quants if q.name == name)
    tensors = ModelTensors(file.tensors, file.architecture)
    resolved = tensors.resolve(own, engine.flavour).types
    wrong = [tensor for tensor, wanted in types.items() if resolved[tensor] != wanted]
    if wrong:
        raise InternalError(f"the recipe that was written has another type for {wrong[0]}")
    return text


def rules(types: Mapping[str, str], space: Space) -> list[tuple[str, str]]:
    """(selector, type) of every tensor that the space has."""
    found: list[tuple[str, str]] = []
    groups: dict[str, list[str]] = {}
    for tie in space.ties:
        groups.setdefault(tie.group, []).extend(t.name for t in tie.tensors)
    for group, names in groups.items():
        common = {types[name] for name in names}
        if len(common) == 1:
            found.append((group, common.pop()))
            continue
        of_group = {name: types[name] for name in names}
        others = dict.fromkeys((n for g, more in groups.items() if g != group for n in more))
        resolution = Resolution({**of_group, **others}, {}, frozenset())
        found += [(rule.pattern, rule.type) for rule in to_engine_rules(resolution)]
    return found


def base_type(types: Mapping[str, str], space: Space, engine: Engine) -> str:
    """The base type that the file is said to have: of the type of most of its weights, where that
    asks for no imatrix itself."""
    weights: dict[str, int] = {}
    for tie in space.ties:
        for tensor in tie.tensors:
            weights[types[tensor.name]] = weights.get(types[tensor.name], 0) + tensor.elements
    for type_name in sorted(weights, key=lambda t: -weights[t]):
        own = type_name.upper()
        for name in sorted(engine.facts.ftypes, key=lambda n: (n != own, len(n), n)):
            base = ftype_by_name(name)
            if base.default == type_name and Flavour(engine.flavour) not in base.imatrix:
                return base.name
    return "Q8_0"
