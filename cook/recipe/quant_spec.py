"""The recipe's words for candidates: rules, quants, sweeps, ready-made drafts."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    GetJsonSchemaHandler,
    field_validator,
    model_validator,
)
from pydantic_core import CoreSchema

from cook.recipe.fields import (
    BaseType,
    Line,
    Name,
    SourceField,
    Spec,
    TensorType,
    fault,
    one_or_many,
    tensor_type,
)
from cook.recipe.groups import Group
from cook.recipe.pattern import PatternError, PatternTimeout, parse_pattern
from cook.recipe.rules import FORCE_PATTERN

MAX_RULES = 512
MAX_QUANTS = 256

# Names as long and as varied as real ones: what hangs on these hangs on a model.
_PROBES = (
    "token_embd.weight",
    "blk.0.attn_output.weight",
    "blk.61.ffn_gate_up_exps.weight",
    "per_layer_token_embd.weight",
)
_GROUP_SLIPS = {
    "attn": "attention",
    "dense": "dense_ffn",
    "ffn": "dense_ffn",
    "experts": "routed_experts",
    "exps": "routed_experts",
    "shexp": "shared_experts",
    "shared": "shared_experts",
    "routed": "routed_experts",
    "embedding": "embeddings",
    "embd": "embeddings",
    "head": "output",
}


def check_selector(selector: str) -> str:
    """A group's name or a valid pattern, else a located fault."""
    if selector in frozenset(Group):
        return selector
    forced = selector.startswith(FORCE_PATTERN)
    body = selector.removeprefix(FORCE_PATTERN)
    if not forced and (group := _misspelt_group(selector)):
        hint = f"did you mean the group `{group}`? A pattern of this text is `re:{selector}`"
        raise fault(f"unknown tensor group `{selector}`", hint=hint)
    shift = len(FORCE_PATTERN) if forced else 0
    try:
        pattern = parse_pattern(body)
        for name in _PROBES:
            pattern.search(name)
    except PatternError as error:
        message = f"bad pattern: {error.message} (at character {error.offset + 1})"
        raise fault(message, hint=error.hint, offset=shift + error.offset) from None
    except PatternTimeout:
        message = f"pattern `{body[:60]}` takes too long to match: it backtracks catastrophically"
        raise fault(message, hint="remove nested repeats such as `(a*)*`") from None
    return selector


def _misspelt_group(selector: str) -> str | None:
    """The group that a bare word was meant to be. Tensor-name words (attn_q) stay patterns."""
    from difflib import get_close_matches

    if not re.fullmatch(r"[A-Za-z_ -]+", selector):
        return None
    word = selector.lower().replace("-", "_").replace(" ", "_")
    if word in frozenset(Group):
        return word
    if word in _GROUP_SLIPS:
        return _GROUP_SLIPS[word]
    close = get_close_matches(word, list(Group), n=1, cutoff=0.8)
    return close[0] if close else None


class RuleSpec(Spec):
    """One rule, written `selector: type`, for example `attention: q8_0` or `attn_v: q6_K`."""

    selector: Annotated[str, Field(min_length=1, max_length=1040)]
    """A tensor group, or a pattern that is searched in the tensor's name.

    The name of a group alone is the group (`re:` before it makes it a pattern). A pattern is
    ECMAScript as both engines read it, unanchored and case-sensitive."""
    type: TensorType
    """The tensor type that the tensors get."""

    @model_validator(mode="before")
    @classmethod
    def _from_pair(cls, value: object) -> object:
        if isinstance(value, RuleSpec) or (
            isinstance(value, dict) and value.keys() == {"selector", "type"}
        ):
            return value
        if isinstance(value, str):
            hint = "write `selector: type` with a colon and a space"
            raise fault("a rule is `selector: type`", hint=hint)
        if not isinstance(value, dict) or len(value) != 1:
            hint = "one rule a list item: `- attention: q8_0`"
            raise fault("a rule has exactly one selector and its type", hint=hint)
        ((selector, type_name),) = value.items()
        return {"selector": selector, "type": type_name}

    @field_validator("selector")
    @classmethod
    def _valid_selector(cls, value: str) -> str:
        return check_selector(value)

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {
            "type": "object",
            "description": cls.__doc__,
            "minProperties": 1,
            "maxProperties": 1,
            "propertyNames": {"minLength": 1, "maxLength": 1040},
            "properties": {group.value: {"type": "string"} for group in Group},
            "additionalProperties": {"type": "string", "minLength": 1, "maxLength": 32},
        }


Rules = Annotated[tuple[RuleSpec, ...], Field(max_length=MAX_RULES)]
Mixture = Literal["engine", "pure"]


class QuantSpec(Spec):
    """One candidate quantization of the source model."""

    name: Name
    """Its name in tables and file names."""
    type: BaseType | None = None
    """The base type of `llama-quantize` (`Q4_K_M`, `IQ1_KT` ...), inherited if absent.

    It is stored as the file's type, and decides tensors that no rule hits (see `mixture`)."""
    extends: Name | None = None
    """Another quant of this recipe whose `type`, `rules` and other settings this one inherits.

    Its own rules go before the inherited ones, so they win."""
    rules: Rules = ()
    """Rules in order: the first that hits a tensor decides its type."""
    drop_rules: Annotated[tuple[Line, ...], Field(max_length=MAX_RULES)] = ()
    """Selectors of inherited rules to leave out."""
    mixture: Mixture | None = None
    """What happens to tensors that no rule hits.

    `engine`: the engine's built-in mixture for the base type; sizes are then known only from the
    engine. `pure`: the base type's own tensor type, stated for every tensor. Absent: `engine` for
    a quant without rules (so `type: Q4_K_M` alone is the well-known Q4_K_M), `pure` for one with
    rules (so that what the recipe says is all there is)."""
    imatrix: bool | None = None
    """Whether to quantize with the recipe's imatrix, where it has one. Default: yes."""


_TypeName = Annotated[str, Field(min_length=1, max_length=32)]
Types = Annotated[
    tuple[_TypeName, ...],
    BeforeValidator(one_or_many, json_schema_input_type=_TypeName | list[_TypeName]),
    Field(min_length=1, max_length=64),
]


class SweepSpec(Spec):
    """A grid of quants: one for every combination of the types in `over`."""

    name: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    """Template of the names: `{group}` or `{type}` stands for the type chosen there, `{1}`,
    `{2}` ... for the first, second axis. Default: the chosen types, joined by `-`."""
    type: BaseType | None = None
    """Base type of all of them, unless `type` is an axis or inherited."""
    extends: Name | None = None
    """A quant whose settings and rules all of them inherit (their own rules go first)."""
    over: Annotated[dict[str, Types], Field(min_length=1, max_length=8)]
    """The axes, in order: selector (or `type`, the base type) -> the types to try.

    The rules of the axes go before `rules`."""
    rules: Rules = ()
    """Rules that all of them share, after those of the axes."""
    mixture: Mixture | None = None
    """As in a quant."""
    imatrix: bool | None = None
    """As in a quant."""

    @field_validator("over")
    @classmethod
    def _valid_axes(cls, over: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        from cook.errors import InputError
        from cook.recipe.fields import base_type

        checked = {}
        for selector, types in over.items():
            spell = base_type if selector == "type" else tensor_type
            if selector != "type":
                check_selector(selector)
            try:
                checked[selector] = tuple(spell(t) for t in types)
            except InputError as error:
                raise fault(f"`{selector}`: {error.message}", hint=error.hint) from None
            if len(set(checked[selector])) < len(types):
                raise fault(f"`{selector}` lists a value twice")
        return checked

    @property
    def count(self) -> int:
        """How many quants the grid has."""
        total = 1
        for types in self.over.values():
            total *= len(types)
        return total


class DraftFileSpec(Spec):
    """A ready-made GGUF to score beside the quants, as it is."""

    name: Name
    """Its name in tables."""
    source: SourceField
    """The file (shard 1 if split): a path or `hf://org/name[@revision]/file`."""
