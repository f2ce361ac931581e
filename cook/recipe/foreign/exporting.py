"""Recipes as what the field's tools read: ``--custom-q``, scripts, ``.recipe``, rule lists.

With a model's tensors the rules name them (:mod:`cook.recipe.engine_rules`), which every format
can say. Without, a quant's own patterns are written, and groups as patterns that hit the same
tensors; what a format cannot say so is refused, with the reason.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cook.documents.tree import Location
from cook.errors import InputError, Problem, RecipeError
from cook.formats.quant_types import IK_LLAMA_CPP, LLAMA_CPP
from cook.recipe.foreign.format import Format
from cook.recipe.foreign.importing import PATTERNS, PLACEHOLDER
from cook.recipe.groups import Group
from cook.recipe.rules import FORCE_PATTERN, Quant, Rule, resolve

if TYPE_CHECKING:
    from cook.recipe.load import LoadedRecipe
    from cook.recipe.rules import ModelTensors

IMATRIX = "imatrix.dat"
"""What a script calls an imatrix that the recipe does not name as a local file."""


@dataclass(frozen=True)
class Exported:
    """``notes`` say what the text does not hold and whoever uses it must know."""

    text: str
    flavour: str
    notes: tuple[str, ...]


@dataclass(frozen=True)
class RuleLine:
    """One rule to write; ``at`` is the rule of the recipe that it comes from."""

    pattern: str
    type: str
    at: Location
    comment: str | None = None


def export_quant(
    loaded: LoadedRecipe, name: str | None, wanted: Format, model: ModelTensors | None = None
) -> Exported:
    """The quant called ``name`` (or the only one) in the format ``wanted``.

    RecipeError, at the rule's place, for what the format or its engine cannot say.
    """
    quant = _chosen(loaded, name)
    flavour = _flavour(loaded, quant, wanted)
    where = quant.at or Location(str(loaded.path), 1, 1)
    if model is not None:
        lines = _named_tensors(quant, flavour, model, where)
    else:
        lines = _first_of_each(_patterns(quant, where))
        _refuse(quant, wanted, flavour, lines)
    problems = [*_lacking(quant, flavour, wanted, lines, where)]
    if problems:
        raise RecipeError(problems)
    text = _WRITERS[wanted](loaded, quant, flavour, lines)
    return Exported(text, flavour, tuple(_notes(loaded, quant, wanted, lines, model is None)))


def _chosen(loaded: LoadedRecipe, name: str | None) -> Quant:
    names = [quant.name for quant in loaded.quants]
    if not names:
        raise InputError(f"{loaded.path} makes no quants: nothing to export")
    if name is None and len(names) > 1:
        raise InputError(f"which quant of {loaded.path}?", hint=f"--quant {' | '.join(names)}")
    for quant in loaded.quants:
        if name in (None, quant.name):
            return quant
    raise InputError(f"{loaded.path} has no quant {name}", hint=f"it has {', '.join(names)}")


def _flavour(loaded: LoadedRecipe, quant: Quant, wanted: Format) -> str:
    if wanted is Format.CUSTOM_Q:
        return IK_LLAMA_CPP
    if wanted is Format.TENSOR_TYPE_FILE:
        return LLAMA_CPP
    from cook.recipe.lint import flavour_of

    return flavour_of(loaded)


def _named_tensors(
    quant: Quant, flavour: str, model: ModelTensors, where: Location
) -> list[RuleLine]:
    from cook.recipe.engine_rules import to_engine_rules

    resolution = resolve(model.tensors, quant, flavour, model.architecture)
    if any(p.severity == "error" for p in resolution.problems):
        raise RecipeError(resolution.problems)
    return [RuleLine(rule.pattern, rule.type, where) for rule in to_engine_rules(resolution)]


def _first_of_each(lines: Iterable[RuleLine]) -> list[RuleLine]:
    """Without rules whose pattern an earlier one has: the first match wins."""
    first: dict[str, RuleLine] = {}
    for line in lines:
        first.setdefault(line.pattern, line)
    return list(first.values())


def _patterns(quant: Quant, where: Location) -> Iterator[RuleLine]:
    problems: list[Problem] = []
    for rule in quant.rules:
        at = rule.at or where
        group = rule.group
        if group is None:
            yield RuleLine(rule.selector.removeprefix(FORCE_PATTERN), rule.type, at)
        elif group in PATTERNS:
            yield RuleLine(PATTERNS[group], rule.type, at, comment=str(group))
        else:
            message = f"no pattern says `{group}` for every model"
            problems.append(at.problem(message, hint=_WITH_MODEL))
    if problems:
        raise RecipeError(problems)
    if quant.rules and quant.mixture == "pure" and not _catches_all(quant.rules[-1]):
        yield RuleLine(".*", quant.default_type, where, comment="everything else")


_WITH_MODEL = "--model GGUF|tensors.tsv names the tensors themselves instead"


def _catches_all(rule: Rule) -> bool:
    return rule.selector.removeprefix(FORCE_PATTERN) in (".*", ".+")


def _refuse(quant: Quant, wanted: Format, flavour: str, lines: Sequence[RuleLine]) -> None:
    """RecipeError for patterns that the format would change or cut."""
    problems = []
    for line in lines:
        for broken, why in _limits(wanted, flavour):
            if broken(line.pattern):
                message = f"{wanted} cannot say `{line.pattern[:60]}`: {why}"
                problems.append(line.at.problem(message, hint=_WITH_MODEL))
                break
    if problems:
        raise RecipeError(problems)


def _limits(wanted: Format, flavour: str) -> list[tuple[Callable[[str], bool], str]]:
    limits: list[tuple[Callable[[str], bool], str]] = [
        (lambda p: "=" in p, "everything before the first `=` is the pattern")
    ]
    if wanted is Format.RECIPE:
        limits.append((lambda p: re.search(r"\s", p) is not None, "it holds a blank"))
        limits.append((lambda p: p.startswith("#"), "a line that begins with # is a comment"))
        return limits
    if flavour == IK_LLAMA_CPP:
        limits.append((lambda p: "," in p, "ik_llama.cpp splits the rules at every comma"))
        limits.append((lambda p: p.startswith("#"), "a line that begins with # is a comment"))
    else:
        limits.append((lambda p: p != p.lower(), "llama.cpp makes patterns lower-case"))
        limits.append((lambda p: re.search(r"\s", p) is not None, "it holds a blank"))
    return limits


def _lacking(
    quant: Quant, flavour: str, wanted: Format, lines: Sequence[RuleLine], where: Location
) -> Iterator[Problem]:
    """Types that the engine which reads the format lacks, each once."""
    from cook.formats.quant_types import by_name, ftype_by_name

    told = set()
    for line in lines:
        found = by_name(line.type)
        if flavour not in found.engines and found.name not in told:
            told.add(found.name)
            (other,) = found.engines
            message = f"{wanted} is read by {flavour}, which has no {found.name} ({other} has it)"
            yield line.at.problem(message)
    base = ftype_by_name(quant.ftype)
    known = base.default not in told and base.name.lower() not in {name.lower() for name in told}
    if wanted is Format.SCRIPT and flavour not in base.engines and known:
        yield where.problem(f"{flavour} has no base type {base.name}")
    if lines and base.default in ("f32", "f16", "bf16") and wanted is not Format.RECIPE:
        message = f"with the base type {base.name} the engine ignores every rule"
        yield where.problem(message, hint="cook itself quantizes such quants; a script cannot")


def _notes(
    loaded: LoadedRecipe, quant: Quant, wanted: Format, lines: Sequence[RuleLine], general: bool
) -> Iterator[str]:
    from pathlib import Path

    model, imatrix = loaded.recipe.model, loaded.recipe.imatrix
    script = wanted is Format.SCRIPT
    if not script:
        yield f"the base type {quant.ftype} is not part of it: give it to llama-quantize"
    elif model is not None and not isinstance(model.source, Path):
        yield f"{PLACEHOLDER} stands for {model.source}: download and convert it first"
    if script and imatrix is not None and imatrix.file is None and quant.use_imatrix:
        yield f"{IMATRIX} stands for the imatrix that cook computes from {imatrix.corpus}"
    if quant.experts or quant.prune_layers:
        yield "`experts` and `prune_layers` are not part of it: it makes the whole quant"
    if general and any(line.comment in frozenset(Group) for line in lines):
        yield (
            "groups are written as patterns; layers for multi-token prediction are told from "
            "others only by the model (--model)"
        )


def _custom_q(loaded: LoadedRecipe, quant: Quant, flavour: str, lines: Sequence[RuleLine]) -> str:
    return ",".join(_rule(line) for line in lines) + "\n"


def _recipe(loaded: LoadedRecipe, quant: Quant, flavour: str, lines: Sequence[RuleLine]) -> str:
    head = [
        f"## {loaded.recipe.name}: {quant.name}, written by `cook recipes export`",
        f"# Base type: {quant.ftype}",
    ]
    source = loaded.recipe.model.source if loaded.recipe.model else None
    from cook.recipe.sources import HubRef

    if isinstance(source, HubRef):
        head.append(f"# Link to the original model: https://huggingface.co/{source.repo}")
    return "\n".join([*head, "", *_block(lines)]) + "\n"


def _tensor_types(
    loaded: LoadedRecipe, quant: Quant, flavour: str, lines: Sequence[RuleLine]
) -> str:
    return "".join(f"{_rule(line)}\n" for line in lines)


def _script(loaded: LoadedRecipe, quant: Quant, flavour: str, lines: Sequence[RuleLine]) -> str:
    recipe = loaded.recipe
    source = _written_path(recipe.model.source if recipe.model else None, PLACEHOLDER)
    words = ["llama-quantize"]
    if recipe.model is not None and recipe.model.allow_requantize:
        words.append("--allow-requantize")
    if recipe.imatrix is not None and quant.use_imatrix:
        words.append(f"--imatrix {_written_path(recipe.imatrix.file, IMATRIX)}")
    head = ["#!/usr/bin/env bash", f"# {recipe.name}: {quant.name}, by `cook recipes export`", ""]
    if not lines and quant.mixture == "pure":
        words.append("--pure")
    if lines and flavour == IK_LLAMA_CPP:
        block = [line.replace("'", "'\\''") for line in _block(lines)]
        head += ["custom='", *block, "'", "", "custom=$("]
        head += ["""  echo "$custom" | grep -v '^#' | \\"""]
        head += ["  sed -Ez 's:\\n+:,:g;s:,$::;s:^,::'", ")", ""]
        words.append('--custom-q "$custom"')
    else:
        words += [f"--tensor-type {shlex.quote(_rule(line))}" for line in lines]
    output = shlex.quote(f"{recipe.name}-{quant.name}.gguf")
    words += [source, output, quant.ftype, '"$(nproc)"']
    return "\n".join([*head, " \\\n    ".join(words)]) + "\n"


_WRITERS = {
    Format.CUSTOM_Q: _custom_q,
    Format.SCRIPT: _script,
    Format.RECIPE: _recipe,
    Format.TENSOR_TYPE_FILE: _tensor_types,
}


def _rule(line: RuleLine) -> str:
    return f"{line.pattern}={line.type}"


def _block(lines: Sequence[RuleLine]) -> list[str]:
    out: list[str] = []
    for line in lines:
        out += [f"# {line.comment}"] if line.comment else []
        out.append(_rule(line))
    return out


def _written_path(source: object, absent: str) -> str:
    """A local file's path; a name that stands for what is not a local file yet."""
    from pathlib import Path

    return shlex.quote(str(source) if isinstance(source, Path) else absent)
