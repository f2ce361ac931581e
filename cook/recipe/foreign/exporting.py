"""Recipes as what the field's tools read: ``--custom-q``, scripts, ``.recipe``, rule lists.

With a model's tensors the rules name them (:mod:`cook.recipe.engine_rules`), which every format
can say. Without, a quant's own patterns are written, and groups as patterns that hit the same
tensors; what a format cannot say so is refused, with the reason.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cook.documents.tree import Location
from cook.errors import InputError, Problem, RecipeError
from cook.formats.quant_types import IK_LLAMA_CPP, LLAMA_CPP, by_name, ftype_by_name
from cook.recipe.engine_rules import to_engine_rules
from cook.recipe.foreign import Format
from cook.recipe.foreign.quants import PLACEHOLDER
from cook.recipe.groups import Group
from cook.recipe.rules import FORCE_PATTERN, ModelTensors, Quant, Rule
from cook.recipe.sources import HubRef

if TYPE_CHECKING:
    from cook.recipe.load import LoadedRecipe

IMATRIX = "imatrix.dat"
"""What a script calls an imatrix that the recipe does not name as a local file."""
_BLOCK = r"^(enc\.|dec\.)?blk\.[0-9]+\."
# As cook.recipe.groups tells them, for the tensors that an engine quantizes at all (so without
# norms, biases and vectors). Each is true alone, so their order does not matter. Which layers
# are for multi-token prediction no name tells: `mtp` has no pattern, and neither has `other`.
PATTERNS: Mapping[str, str] = {
    Group.ATTENTION: rf"{_BLOCK}((cross_)?attn_(?!rel_b|sinks)|indexer[._])",
    Group.DENSE_FFN: rf"{_BLOCK}ffn_((gate|up|down|up_gate|gate_up)\.weight$|latent_|routed_)",
    Group.SHARED_EXPERTS: rf"{_BLOCK}ffn_(?!gate_inp)[a-z0-9_]+_shexps?\.",
    Group.ROUTED_EXPERTS: (
        rf"{_BLOCK}ffn_((?!gate_inp)[a-z0-9_]+_(exps|chexps|exp)\.|(gate|up|down)\.[0-9]+\.)"
    ),
    Group.ROUTER: rf"{_BLOCK}(ffn_gate_inp|ffn_gate_tid2eid|exp_probs_b)",
    Group.EMBEDDINGS: r"^(token_embd|per_layer_token_embd|position_embd|token_types)\.",
    Group.OUTPUT: r"^(output|output_extra|cls|cls\.output|dense_2_out|dense_3_out)\.weight$",
}


@dataclass(frozen=True)
class Exported:
    """``notes`` say what the text does not hold and whoever uses it must know."""

    text: str
    flavour: str
    notes: tuple[str, ...]


def export_quant(
    loaded: LoadedRecipe, name: str | None, wanted: Format, model: ModelTensors | None = None
) -> Exported:
    """The quant called ``name`` (or the only one) in the format ``wanted``.

    RecipeError, at the rule's place, for what the format or its engine cannot say.
    """
    from cook.recipe.lint import flavour_of

    quant = _chosen(loaded, name)
    flavours = {Format.CUSTOM_Q: IK_LLAMA_CPP, Format.TENSOR_TYPE_FILE: LLAMA_CPP}
    flavour = flavours.get(wanted) or flavour_of(loaded)
    where = quant.at or Location(str(loaded.path), 1, 1)
    if model is None:
        rules = _pattern_rules(quant, wanted, flavour, where)
    else:
        resolution = model.resolve(quant, flavour)
        if any(p.severity == "error" for p in resolution.problems):
            raise RecipeError(resolution.problems)
        rules = [Rule(rule.pattern, rule.type, at=quant.at) for rule in to_engine_rules(resolution)]
    if problems := [*_missing_types(quant, flavour, wanted, rules, where)]:
        raise RecipeError(problems)
    match wanted:
        case Format.CUSTOM_Q:
            text = ",".join(map(_line, rules)) + "\n"
        case Format.TENSOR_TYPE_FILE:
            text = "".join(f"{_line(rule)}\n" for rule in rules)
        case Format.RECIPE:
            head = f"## {loaded.recipe.name}: {quant.name}, written by `cook recipes export`\n"
            head += f"# Base type: {quant.ftype}\n"
            source = loaded.recipe.model.source if loaded.recipe.model else None
            if isinstance(source, HubRef):
                head += f"# Link to the original model: https://huggingface.co/{source.repo}\n"
            text = "\n".join([head, *_block(rules)]) + "\n"
        case Format.SCRIPT:
            text = _script(loaded, quant, flavour, rules)
    return Exported(text, flavour, tuple(_notes(loaded, quant, wanted, model is None)))


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


def _pattern_rules(quant: Quant, wanted: Format, flavour: str, where: Location) -> list[Rule]:
    """The quant's own rules, with patterns for groups; RecipeError for what cannot be said so."""
    problems: list[Problem] = []
    rules: dict[str, Rule] = {}  # the first of each pattern: the first match wins
    for rule in quant.rules:
        group = rule.group
        pattern = PATTERNS.get(group) if group else rule.selector.removeprefix(FORCE_PATTERN)
        if pattern is None:
            why = f"no pattern says `{group}` for every model"
        elif reason := _why_not(pattern, wanted, flavour):
            why = f"{wanted} cannot say `{pattern[:60]}`: {reason}"
        else:
            rules.setdefault(pattern, Rule(pattern, rule.type, at=rule.at))
            continue
        hint = "--model GGUF|tensors.tsv names the tensors themselves instead"
        problems.append((rule.at or where).problem(why, hint=hint))
    if problems:
        raise RecipeError(problems)
    last = quant.rules[-1].selector.removeprefix(FORCE_PATTERN) if quant.rules else ".*"
    if quant.mixture == "pure" and last not in (".*", ".+"):
        rules.setdefault(".*", Rule(".*", quant.default_type, at=where))
    return [*rules.values()]


def _why_not(pattern: str, wanted: Format, flavour: str) -> str | None:
    """Why the format would change or cut the pattern."""
    reader = wanted if wanted is Format.RECIPE else flavour
    if "=" in pattern:
        return "everything before the first `=` is the pattern"
    if reader == IK_LLAMA_CPP and "," in pattern:
        return "ik_llama.cpp splits the rules at every comma"
    if reader == LLAMA_CPP and pattern != pattern.lower():
        return "llama.cpp makes patterns lower-case"
    if reader != IK_LLAMA_CPP and re.search(r"\s", pattern):
        return "it holds a blank"
    if reader != LLAMA_CPP and pattern.startswith("#"):
        return "a line that begins with # is a comment"
    return None


def _missing_types(
    quant: Quant, flavour: str, wanted: Format, rules: Sequence[Rule], where: Location
) -> Iterator[Problem]:
    """Types that the engine which reads the format does not have, each once."""
    missing: dict[str, Location] = {}
    for rule in rules:
        if flavour not in by_name(rule.type).engines and rule.type not in missing:
            missing[rule.type] = at = rule.at or where
            (other,) = by_name(rule.type).engines
            message = f"{wanted} is read by {flavour}, which has no {rule.type} ({other} has it)"
            yield at.problem(message)
    base = ftype_by_name(quant.ftype)
    stated = {name.lower() for name in missing} & {base.default.lower(), base.name.lower()}
    if wanted is Format.SCRIPT and flavour not in base.engines and not stated:
        yield where.problem(f"{flavour} has no base type {base.name}")
    if rules and base.default in ("f32", "f16", "bf16") and wanted is not Format.RECIPE:
        message = f"with the base type {base.name} the engine ignores every rule"
        yield where.problem(message, hint="cook itself quantizes such quants; a script cannot")


def _notes(loaded: LoadedRecipe, quant: Quant, wanted: Format, general: bool) -> Iterator[str]:
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
    if quant.part is not None:
        yield "`part: head` is not part of it: it is of a head alone (convert_hf_to_gguf.py --mtp)"
    if general and any(rule.group for rule in quant.rules):
        yield (
            "groups are written as patterns; which layers are for multi-token prediction "
            "only the model says (--model)"
        )


def _script(loaded: LoadedRecipe, quant: Quant, flavour: str, rules: Sequence[Rule]) -> str:
    recipe = loaded.recipe
    words = ["llama-quantize"]
    if recipe.model is not None and recipe.model.allow_requantize:
        words.append("--allow-requantize")
    if recipe.imatrix is not None and quant.use_imatrix:
        words.append(f"--imatrix {_written_path(recipe.imatrix.file, IMATRIX)}")
    head = ["#!/usr/bin/env bash", f"# {recipe.name}: {quant.name}, by `cook recipes export`", ""]
    if not rules and quant.mixture == "pure":
        words.append("--pure")
    if rules and flavour == IK_LLAMA_CPP:
        block = [line.replace("'", "'\\''") for line in _block(rules)]
        head += ["custom='", *block, "'", "", "custom=$("]
        head += ["""  echo "$custom" | grep -v '^#' | \\"""]
        head += ["  sed -Ez 's:\\n+:,:g;s:,$::;s:^,::'", ")", ""]
        words.append('--custom-q "$custom"')
    else:
        words += [f"--tensor-type {shlex.quote(_line(rule))}" for rule in rules]
    words.append(_written_path(recipe.model.source if recipe.model else None, PLACEHOLDER))
    words += [shlex.quote(f"{recipe.name}-{quant.name}.gguf"), quant.ftype, '"$(nproc)"']
    return "\n".join([*head, " \\\n    ".join(words)]) + "\n"


def _line(rule: Rule) -> str:
    return f"{rule.selector}={rule.type}"


def _block(rules: Sequence[Rule]) -> list[str]:
    """A line for each rule, behind what a comment says of it."""
    comments = {pattern: f"# {group}" for group, pattern in PATTERNS.items()}
    comments[".*"] = "# everything else"
    lines = ((comments.get(rule.selector), _line(rule)) for rule in rules)
    return [text for line in lines for text in line if text]


def _written_path(source: object, absent: str) -> str:
    """A local file's path; a name that stands for what is not a local file yet."""
    return shlex.quote(str(source) if isinstance(source, Path) else absent)
