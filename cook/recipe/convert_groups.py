"""Regex rules and tensor groups: where one says what the other does.

Import writes a group where the rules give all its tensors one type (on given tensors); export
writes each group as a pattern that both engines read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from cook.errors import Problem
from cook.recipe.convert_rules import ForeignRule
from cook.recipe.groups import Group, group_of, mtp_layers_of
from cook.recipe.pattern import PatternTimeout, parse_pattern
from cook.recipe.quantizable import quantizable
from cook.recipe.rules import FORCE_PATTERN, Rule, Tensor, timeout_message

_BLOCK = r"^(enc\.|dec\.)?blk\.[0-9]+\."
# As cook.recipe.groups tells them, for the tensors that an engine quantizes at all (so without
# norms, biases and vectors). Each is true by itself, so their order does not matter. Which layers
# are for multi-token prediction no name tells: `mtp` has no pattern, and neither has `other`.
PATTERNS: Mapping[Group, str] = {
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
class WrittenRule:
    """A rule of the recipe to write, with the foreign rule that it stands for."""

    selector: str
    type: str
    of: ForeignRule
    comments: tuple[str | None, ...] = ()


@dataclass(frozen=True)
class Grouped:
    """``unused`` decide no tensor; ``covered``: every tensor that is quantized has a rule."""

    rules: tuple[WrittenRule, ...]
    unused: tuple[ForeignRule, ...] = ()
    covered: bool = False
    problems: tuple[Problem, ...] = ()


def selector_of(pattern: str) -> str:
    """The pattern as a recipe writes it: a text that is also a group's name is forced."""
    from pydantic_core import PydanticCustomError

    from cook.recipe.quant_spec import check_selector

    try:
        plain = check_selector(pattern) not in frozenset(Group)
    except PydanticCustomError:
        plain = False
    return pattern if plain and not pattern.startswith(FORCE_PATTERN) else FORCE_PATTERN + pattern


def as_written(rules: Sequence[ForeignRule]) -> Grouped:
    """Every rule as it is, where no tensors are known."""
    return Grouped(
        tuple(WrittenRule(selector_of(r.pattern), r.type, r, r.comments) for r in rules),
        covered=bool(rules) and rules[-1].pattern in (".*", ".+", "."),
    )


def grouped(
    rules: Sequence[ForeignRule], tensors: Sequence[Tensor], architecture: str, flavour: str
) -> Grouped:
    """The same types for every one of ``tensors``, by groups where the rules allow.

    A group stands where the first rule that decides any of its tensors stood. Every rule before
    that one decides none of them, so none is taken away from it or given to it.
    """
    names = [
        t.name for t in tensors if quantizable(t.name, t.shape, t.type_name, flavour, architecture)
    ]
    decided: dict[str, int] = {}
    for index, rule in enumerate(rules):
        try:
            hits = parse_pattern(rule.pattern).search_all(names)
        except PatternTimeout:
            problem = rule.at.problem(timeout_message(Rule(rule.pattern, rule.type)))
            return Grouped((), problems=(problem,))
        for name in hits:
            decided.setdefault(name, index)
    layers = mtp_layers_of(t.name for t in tensors)
    members: dict[Group, list[str]] = {}
    for name in names:
        members.setdefault(group_of(name, architecture, layers), []).append(name)
    by_group: dict[int, list[tuple[Group, str]]] = {}
    grouped_names: set[str] = set()
    for group, inside in members.items():
        types = {rules[decided[n]].type if n in decided else None for n in inside}
        if len(types) == 1 and None not in types:
            first = min(decided[n] for n in inside)
            by_group.setdefault(first, []).append((group, rules[first].type))
            grouped_names.update(inside)
    needed = {index for name, index in decided.items() if name not in grouped_names}
    order = list(Group)
    written: list[WrittenRule] = []
    for index, rule in enumerate(rules):
        groups = sorted(by_group.get(index, ()), key=lambda item: order.index(item[0]))
        here = [WrittenRule(str(group), type_name, rule) for group, type_name in groups]
        if index in needed:
            here.append(WrittenRule(selector_of(rule.pattern), rule.type, rule))
        if here:
            written += [replace(here[0], comments=rule.comments), *here[1:]]
    unused = tuple(r for i, r in enumerate(rules) if i not in set(decided.values()))
    return Grouped(tuple(written), unused, covered=len(decided) == len(names))
