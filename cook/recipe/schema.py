"""The recipe, version 1: the whole language as frozen models.

What is quantized (rules, quants, sweeps, ready drafts), how a model is placed and run, how drafts
are scored against a target, and what is picked. Attribute names are the YAML's keys. Field
docstrings are the reference: they go into the JSON Schema and the generated documentation. Parse
with :func:`cook.recipe.load.load_recipe`.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    GetJsonSchemaHandler,
    PlainSerializer,
    PlainValidator,
    StringConstraints,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic_core import CoreSchema

from cook.documents.spec import Name, Spec, TextLine, fault, one_or_many
from cook.errors import InputError
from cook.formats.gguf_writer import UNITS, SplitLimit
from cook.formats.quant_types import by_name, ftype_by_name
from cook.formats.reduction import Reduction, reductions
from cook.formats.sampling import Sampling
from cook.prompts.prompt_set import BUNDLED, OWN_SETS
from cook.recipe.groups import MTP_PARTS, SELECTORS, Group
from cook.recipe.pattern import PatternError, PatternTimeout, parse_pattern
from cook.recipe.rules import FORCE_PATTERN, TensorsFrom
from cook.recipe.sources import OWN_HEAD, HubRef, SourceRef, parse_source

if TYPE_CHECKING:
    from cook.engines.base import DraftSettings, ModelArgs
    from cook.engines.speculation import NgramSettings, NgramType


def _source(value: object, info: ValidationInfo) -> object:
    if isinstance(value, (Path, HubRef)):
        return value
    if not isinstance(value, str):
        raise fault("must be a path or an hf:// reference", hint="quote it")
    base = info.context.get("base") if isinstance(info.context, dict) else None
    try:
        return parse_source(value, base or Path())
    except ValueError as error:
        raise fault(str(error)) from None


SourceField = Annotated[
    SourceRef,
    PlainValidator(_source),
    PlainSerializer(str, return_type=str),
    WithJsonSchema({"type": "string", "minLength": 1, "maxLength": 4096}),
]
"""A path (relative to the recipe), ``demo://file``, or ``hf://org/name[@revision][/path]``."""


DraftSourceField = Annotated[
    SourceRef | Literal["target"],
    PlainValidator(lambda value, info: value if value == OWN_HEAD else _source(value, info)),
    PlainSerializer(str, return_type=str),
    WithJsonSchema({"type": "string", "minLength": 1, "maxLength": 4096}),
]


def _checked(check: Callable[[str], str]) -> Any:
    def validate(value: str) -> str:
        try:
            return check(value)
        except InputError as error:
            raise fault(error.message, hint=error.hint) from None

    return AfterValidator(validate)


def tensor_type(name: str) -> str:
    """The exact spelling of a tensor type; InputError with a suggestion when there is none."""
    return by_name(name).name


def base_type(name: str) -> str:
    """The exact spelling of a base type of ``llama-quantize``; InputError with a suggestion."""
    if name.upper() == "COPY":
        raise InputError("COPY makes no quant", hint="list the file under `drafts:` instead")
    return ftype_by_name(name).name


_TYPE = StringConstraints(min_length=1, max_length=32)
TensorType = Annotated[str, _TYPE, _checked(tensor_type)]
"""A tensor type by its engine's name, in any case: ``q4_K``, ``iq1_kt``, ``f16`` ..."""
BaseType = Annotated[str, _TYPE, _checked(base_type)]
"""A base type of ``llama-quantize``, in any case: ``Q4_K_M``, ``IQ1_KT`` ..."""

Lines = Annotated[
    tuple[TextLine, ...],
    BeforeValidator(one_or_many, json_schema_input_type=TextLine | list[TextLine]),
    Field(max_length=256),
]
CacheType = Literal[
    "f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1", "q6_0", "q8_KV"
]


def _kv_types(value: object) -> object:
    """``q8_0`` for keys and values alike, ``q8_0/q5_1`` for each its own."""
    halves = value.split("/") if isinstance(value, str) else []
    if unknown := [half for half in halves if half not in get_args(CacheType)]:
        close = get_close_matches(unknown[0], get_args(CacheType), n=1)
        known = ", ".join(get_args(CacheType))
        hint = f"did you mean `{close[0]}`?" if close else f"they are {known}"
        raise fault(f"`cache_types` has no type `{unknown[0]}`", hint=hint)
    if len(halves) > 2 or (len(halves) == 2 and halves[0] == halves[1]):
        raise fault(f"`{value}` is neither a type nor two, keys/values", hint="q8_0/q5_1")
    return value


_ONE_TYPE = "|".join(get_args(CacheType))
CacheTypes = Annotated[
    str,
    AfterValidator(_kv_types),
    WithJsonSchema({"type": "string", "pattern": f"^({_ONE_TYPE})(/({_ONE_TYPE}))?$"}),
]
"""A type for the whole KV cache, or one for its keys and one for its values: ``q8_0/q5_1``."""
Threads = Annotated[int, Field(ge=1, le=1024)]
Batch = Annotated[int, Field(ge=1, le=1 << 20)]


class ModelArgsSpec(Spec):
    """Where a model's weights go and how it runs. What is absent is the engine's default."""

    n_gpu_layers: Annotated[int, Field(ge=0, le=100_000)] | None = None
    """Layers on the GPU (`-ngl`); 99 is all of most models."""
    override_tensor: Lines = ()
    """Placement of tensors by pattern (`-ot`), such as `exps=CPU`; one, or a list."""
    cpu_moe: bool = False
    """Keep all routed experts in CPU memory (`--cpu-moe`)."""
    n_cpu_moe: Annotated[int, Field(ge=0, le=100_000)] | None = None
    """Keep the routed experts of the first N layers in CPU memory (`--n-cpu-moe`)."""
    devices: Lines = ()
    """Devices to use (`--device`), such as `CUDA0`; one, or a list."""
    cache_type_k: CacheType | None = None
    """Type of the keys in the KV cache (`-ctk`)."""
    cache_type_v: CacheType | None = None
    """Type of the values in the KV cache (`-ctv`)."""
    flash_attention: bool | None = None
    """Flash attention on or off (`-fa`)."""
    threads: Threads | None = None
    """CPU threads when decoding (`-t`)."""
    threads_batch: Threads | None = None
    """CPU threads when reading a prompt (`-tb`)."""
    batch: Batch | None = None
    """Logical batch in tokens (`-b`)."""
    ubatch: Batch | None = None
    """Physical batch in tokens (`-ub`)."""
    rpc: Lines = ()
    """RPC servers, `host:port`; one, or a list."""
    extra: Annotated[tuple[TextLine, ...], Field(max_length=256)] = ()
    """Raw flags of the engine, as a list: only reviewed, harmless ones pass (flags.md);
    others need `--allow-unsafe-args` on the command line."""

    @field_validator("rpc")
    @classmethod
    def _host_and_port(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for server in value:
            if not re.fullmatch(r"[\w.:\[\]-]+:\d{1,5}", server):
                raise fault(f"`{server}` is not host:port")
        return value

    def to_model_args(self) -> ModelArgs:
        """These arguments as the engines take them."""
        from cook.engines.base import ModelArgs

        return ModelArgs(**{name: getattr(self, name) for name in type(self).model_fields})


_HubName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.-]{0,95}$")]
MAX_RULES = 512
MAX_QUANTS = 1024

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
    if selector in SELECTORS:
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
            "properties": {name: {"type": "string"} for name in (*Group, *MTP_PARTS)},
            "additionalProperties": {"type": "string", "minLength": 1, "maxLength": 32},
        }


RuleSpecs = Annotated[tuple[RuleSpec, ...], Field(max_length=MAX_RULES)]
Mixture = Literal["engine", "pure"]


class TensorsFromSpec(Spec):
    """Tensors that somebody published one a file, in a repository for each type, as Thireus does.

    They take the place of quantizing here: types and rules say which ones."""

    publisher: _HubName
    """Whose they are, on the Hub: `Thireus`."""
    model: _HubName
    """What the publisher calls the model: `Qwen3-4B-Thinking-2507`. The repositories are
    `PUBLISHER/MODEL-PUBLISHER-TYPE-SPECIAL_SPLIT`."""
    revision: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][\w.-]{0,127}$")] | None = None
    """Branch, tag or commit of these repositories. Absent: the newest."""
    key: Annotated[str, Field(pattern="^[0-9A-Fa-f]{40}$")] | None = None
    """Fingerprint of the key that must have signed their maps. Absent: the signer is
    printed, or that there is none. Every shard is compared with its map's SHA-256 either way."""

    def to_tensors_from(self) -> TensorsFrom:
        """The origin of the tensors as rules and builds take it."""
        return TensorsFrom(**self.model_dump())


def _distinct(values: tuple[Any, ...]) -> tuple[Any, ...]:
    if len(set(values)) < len(values):
        raise fault("lists a value twice")
    return values


def _layer_sets(value: object) -> object:
    """Every item as a list: a layer alone is a list of one."""
    listed = one_or_many(value)
    return tuple(one_or_many(item) for item in listed) if isinstance(listed, tuple) else listed


_Layer = Annotated[int, Field(ge=0, le=100_000)]
_Layers = Annotated[
    tuple[_Layer, ...],
    Field(max_length=1024),
    AfterValidator(lambda layers: tuple(sorted(_distinct(layers)))),
]
_ExpertCount = Annotated[int, Field(ge=1, le=65_536)]
Experts = Annotated[
    tuple[_ExpertCount, ...],
    BeforeValidator(one_or_many, json_schema_input_type=_ExpertCount | list[_ExpertCount]),
    Field(max_length=64),
    AfterValidator(_distinct),
]
OutputTypes = Annotated[
    tuple[TensorType, ...],
    BeforeValidator(one_or_many, json_schema_input_type=TensorType | list[TensorType]),
    Field(max_length=64),
    AfterValidator(_distinct),
]
PruneLayers = Annotated[
    tuple[_Layers, ...],
    BeforeValidator(_layer_sets, json_schema_input_type=_Layer | list[_Layer | list[_Layer]]),
    Field(max_length=256),
    AfterValidator(_distinct),
]


class SplitSpec(Spec):
    """Where the files of a split GGUF end: one limit of the two, as llama-gguf-split has them.

    Engines are given the first file, and find the others next to it. A quant that fits into one
    file is not split."""

    max_size: Annotated[str, Field(pattern=r"^[1-9][0-9]{0,4}[MG]$")] | None = None
    """Size of a file (`--split-max-size`): `45G` is 45,000,000,000 bytes of tensors, `500M` half a
    billion. A tensor that is larger has a file of its own."""
    max_tensors: Annotated[int, Field(ge=1, le=1 << 18)] | None = None
    """Tensors in each file (`--split-max-tensors`)."""

    @model_validator(mode="after")
    def _one_limit(self) -> SplitSpec:
        if (self.max_size is None) == (self.max_tensors is None):
            raise fault("`split` has one limit", hint="max_size: 45G, or max_tensors: 128")
        return self

    def to_limit(self) -> SplitLimit:
        """The limit in bytes or tensors."""
        if self.max_size is None:
            return SplitLimit(max_tensors=self.max_tensors)
        return SplitLimit(int(self.max_size[:-1]) * UNITS[self.max_size[-1]])


class QuantSettings(Spec):
    """What quants and sweeps have in common."""

    name: str | None = None
    type: BaseType | None = None
    """The base type of `llama-quantize` (`Q4_K_M`, `IQ1_KT` ...), inherited if absent.

    It is stored as the file's type, and decides tensors that no rule hits (see `mixture`)."""
    extends: Name | None = None
    """Another quant of this recipe whose `type`, `rules` and other settings this one inherits.

    Its own rules go before the inherited ones, so they win."""
    rules: RuleSpecs = ()
    """Rules in order: the first that hits a tensor decides its type. Of a sweep all quants share
    them, after those of the axes."""
    mixture: Mixture | None = None
    """What happens to tensors that no rule hits.

    `engine`: the engine's built-in mixture for the base type; sizes are then known only from the
    engine. `pure`: the base type's own tensor type, stated for every tensor. Absent: `engine` for
    a quant without rules (so `type: Q4_K_M` alone is the well-known Q4_K_M), `pure` for one with
    rules (so that what the recipe says is all there is)."""
    imatrix: bool | None = None
    """Whether to quantize with the recipe's imatrix, where it has one. Default: yes."""
    tensors_from: TensorsFromSpec | None = None
    """Published tensors to take instead of quantizing; inherited if absent. They have the
    publisher's imatrix, not the recipe's."""
    experts: Experts | None = None
    """Routed experts that a token uses, of a mixture of experts: a number, or a list to try, as
    `[8, 6, 5, 4]`. Each is a candidate, such as `IQ1_KT experts=4`, whose file says so and has
    the quant's own tensors: nothing is quantized again. Inherited if absent; the model's own
    number is the whole quant."""
    prune_layers: PruneLayers | None = None
    """Layers to leave out: a list of what to try, each a layer or a list of layers, as
    `[3, [3, 7], []]`, where `[]` leaves out none. Candidates as those of `experts`, and with
    both every combination. Inherited if absent."""
    split: SplitSpec | None = None
    """Write it as a split GGUF; inherited if absent. The tensors are the same bytes either way."""
    part: Literal["head"] | None = None
    """`head`: only the multi-token-prediction head of the source, in a file of its own with the
    embeddings and the output, which drafts for `score.target`. `model.source` is then the target's
    own unquantized model, or its head alone (`convert_hf_to_gguf.py --mtp`). Absent: the whole
    source. Inherited."""


class QuantSpec(QuantSettings):
    """One candidate quantization of the source model."""

    name: Name
    """Its name in tables and file names."""
    drop_rules: Annotated[tuple[TextLine, ...], Field(max_length=MAX_RULES)] = ()
    """Selectors of inherited rules to leave out."""


_TypeName = Annotated[str, Field(min_length=1, max_length=32)]
Types = Annotated[
    tuple[_TypeName, ...],
    BeforeValidator(one_or_many, json_schema_input_type=_TypeName | list[_TypeName]),
    Field(min_length=1, max_length=64),
]


class SweepSpec(QuantSettings):
    """A grid of quants: one for every combination of the types in `over`."""

    name: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    """Template of the names: `{group}` or `{type}` stands for the type chosen there, `{1}`,
    `{2}` ... for the first, second axis. Default: the chosen types, joined by `-`."""
    over: Annotated[dict[str, Types], Field(min_length=1, max_length=8)]
    """The axes, in order: selector (or `type`, the base type) -> the types to try.

    The rules of the axes go before `rules`."""

    @field_validator("over")
    @classmethod
    def _valid_axes(cls, over: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
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
        return math.prod(map(len, self.over.values()))


class DraftFileSpec(Spec):
    """A ready-made GGUF to score with the quants: a model, or a head of the target's (its header
    tells which). Heads that cannot be replayed run live, at the lengths 1, 2 and 4 unless `n_max`
    says others."""

    name: Name
    """Its name in tables."""
    source: DraftSourceField
    """The file (shard 1 if split): a path or `hf://org/name[@revision]/file`; or `target`, the head
    that the target's own file holds."""
    experts: Experts = ()
    """Routed experts that a token uses, as in a quant: the file is copied, with another number."""
    prune_layers: PruneLayers = ()
    """Layers to leave out, as in a quant."""
    output: OutputTypes = ()
    """Types to try for the output head, one or a list, as `[q8_0, q6_K]`: each is a candidate, such
    as `draft output=q6_K`, of which one tensor is quantized and the rest copied; with `experts`
    and `prune_layers` every combination. The file's own type is the file as it is. Its head must
    be f32, f16, bf16 or q8_0. A file without `output.weight`, whose embeddings are its head, gets
    one of its own, made of them. Of quants: `sweep: {over: {output: [...]}}`."""

    @property
    def candidates(self) -> tuple[Reduction, ...]:
        """The candidates made of it: the whole, or every combination of its lists."""
        return reductions(self.experts, self.prune_layers)


PROMPT_SETS = tuple(name for name in BUNDLED if name not in OWN_SETS.values())
"""The prompt sets that ship with cook."""


def _prompts(value: object, info: ValidationInfo) -> object:
    if isinstance(value, Path) or value in PROMPT_SETS:
        return value
    if not isinstance(value, str):
        raise fault("must be the name of a prompt set or a path")
    if re.fullmatch(r"[\w-]+", value):
        close = get_close_matches(value, PROMPT_SETS, n=1)
        hint = f"did you mean `{close[0]}`?" if close else f"the sets are {', '.join(PROMPT_SETS)}"
        raise fault(f"no prompt set `{value}`", hint=hint)
    base = info.context.get("base") if isinstance(info.context, dict) else None
    try:
        found = parse_source(value, base or Path())
    except ValueError as error:
        raise fault(str(error)) from None
    if isinstance(found, HubRef):
        raise fault("prompts must be a local .jsonl file or the name of a set")
    return found


PromptsField = Annotated[
    str | Path,
    PlainValidator(_prompts),
    PlainSerializer(str, return_type=str),
    WithJsonSchema({"type": "string", "minLength": 1, "maxLength": 4096}),
]


class TargetSpec(Spec):
    """The large model that the draft serves."""

    source: SourceField
    """A GGUF (shard 1 if split): a path or an hf:// reference."""
    args: ModelArgsSpec = ModelArgsSpec()
    """How it is placed and run while a draft runs next to it."""


class BaselineSpec(Spec):
    """The target without a draft, at its best."""

    args: ModelArgsSpec = ModelArgsSpec()
    """How it is placed and run alone: it may use the memory that the draft would take."""


def _many(item: Any) -> BeforeValidator:
    return BeforeValidator(one_or_many, json_schema_input_type=item | list[item])


NMax = Annotated[int, Field(ge=1, le=256)]
NMin = Annotated[int, Field(ge=0, le=256)]
Probability = Annotated[float, Field(ge=0, le=1)]
Some = Field(min_length=1, max_length=32)


DraftContext = Annotated[int, Field(ge=256, le=4_194_304, multiple_of=256)]
Slots = Annotated[int, Field(ge=1, le=32)]
Temperature = Annotated[float, Field(ge=0, le=10)]
TopK = Annotated[int, Field(ge=0, le=1_000_000)]
TopP = Annotated[float, Field(gt=0, le=1)]
MAX_CHAINS = 16


class SamplingSpec(Spec):
    """The sampling chain that will be deployed; temperature 0 is greedy.

    Of lists the first values are the deployed chain, which decides the pick. Every other
    combination is forecast as well, on text that the target writes under it.
    """

    temperature: Annotated[
        tuple[Temperature, ...], _many(Temperature), Some, AfterValidator(_distinct)
    ] = (0.0,)
    """0 takes the most likely token always; one, or a list."""
    top_k: Annotated[tuple[TopK, ...], _many(TopK), Some, AfterValidator(_distinct)] | None = None
    """Keep this many most likely tokens; 0 keeps all. One, or a list."""
    top_p: Annotated[tuple[TopP, ...], _many(TopP), Some, AfterValidator(_distinct)] | None = None
    """Keep the most likely tokens up to this sum of probability; one, or a list."""
    min_p: (
        Annotated[tuple[Probability, ...], _many(Probability), Some, AfterValidator(_distinct)]
        | None
    ) = None
    """Keep tokens at least this likely, relative to the most likely; one, or a list."""
    repeat_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    """Penalty on repeated tokens; 1 is none."""
    seed: Annotated[int, Field(ge=0, lt=2**32 - 1)] = 1
    """Seed of the sampler."""

    @model_validator(mode="after")
    def _few_enough(self) -> SamplingSpec:
        if len(self.chains) > MAX_CHAINS:
            raise fault(
                f"more than {MAX_CHAINS} sampling chains",
                hint="the target writes every prompt's reply under each",
            )
        return self

    @property
    def chains(self) -> tuple[Sampling, ...]:
        """Every combination once, the deployed one first: what is one chain is tried once."""
        combined = itertools.product(
            self.temperature, self.top_k or (None,), self.top_p or (None,), self.min_p or (None,)
        )
        asked = (Sampling(*one, self.repeat_penalty, self.seed) for one in combined)
        found: dict[Sampling, Sampling] = {}
        for one in asked:
            found.setdefault(one.applied(), one)
        return tuple(found.values())

    def to_sampling(self) -> Sampling:
        """The deployed chain for requests, the worker and traces."""
        return self.chains[0]


Ngram = Annotated[int, Field(ge=1, le=256)]
RivalType = Literal[
    "all",
    "ngram-simple",
    "ngram-map-k",
    "ngram-map-k4v",
    "ngram-mod",
    "ngram-cache",
    "suffix",
]


class RivalSpec(Spec):
    """Draft-free speculation; a number that is not said is the engine's own."""

    type: RivalType
    """As `--spec-type` says it; `suffix` is ik_llama.cpp's alone. `all`: whatever the engine has,
    with its own numbers."""
    size_n: Ngram | None = None
    """Tokens that must have occurred before; of `ngram-mod` its n_match."""
    size_m: Ngram | None = None
    """Tokens drafted after a match (`ngram-simple`, `ngram-map-k`, `ngram-map-k4v`)."""
    min_hits: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """Times that a key must have been met (`ngram-map-k4v`)."""
    n_max: NMax | None = None
    """Most tokens drafted at once (`ngram-mod`; on ik_llama.cpp all)."""
    n_min: NMin | None = None
    """Fewest tokens worth verifying (`ngram-mod`; on ik_llama.cpp all)."""
    p_min: Probability | None = None
    """Lowest bar of `suffix`, which rises when drafts fail; at the engine's 0.75 it never falls."""
    min_match: Ngram | None = None
    """Shortest match (`suffix`)."""
    depth: Annotated[int, Field(ge=2, le=256)] | None = None
    """Longest string that is remembered (`suffix`)."""

    @model_validator(mode="after")
    def _alone(self) -> RivalSpec:
        if self.type == "all" and len(self.model_fields_set) > 1:
            raise fault("`all` has every engine's own numbers", hint="name the rival instead")
        return self

    def to_settings(self, known: Sequence[NgramType]) -> tuple[NgramSettings, ...]:
        """The settings for an engine; for `all` one each of those ``known`` to it."""
        from cook.engines.speculation import NgramSettings, NgramType

        if self.type == "all":
            return tuple(NgramSettings(one) for one in known)
        numbers = self.model_dump(exclude={"type"})
        return (NgramSettings(NgramType(self.type), **numbers),)


def rival_keys(text: str) -> dict[str, object]:
    """``ngram-map-k:size_n=8,size_m=16`` as the keys of a rival; InputError for another form."""
    name, _, numbers = text.partition(":")
    keys: dict[str, object] = {"type": name}
    for part in numbers.split(",") if numbers else ():
        key, _, value = part.partition("=")
        try:
            keys[key.strip()] = float(value) if "." in value else int(value)
        except ValueError:
            raise InputError(
                f"rival {text}: {part!r} is not KEY=NUMBER",
                hint="ngram-map-k:size_n=8,size_m=16",
            ) from None
    return keys


def _rivals(value: object) -> object:
    """A lone rival is a list of one, and a word is one with the engine's numbers."""
    listed = one_or_many(value)
    assert isinstance(listed, tuple), "made so"
    return tuple({"type": one} if isinstance(one, str) else one for one in listed)


Rivals = Annotated[
    tuple[RivalSpec, ...],
    BeforeValidator(
        _rivals,
        json_schema_input_type=RivalType | RivalSpec | list[RivalType | RivalSpec],
    ),
    Field(max_length=64),
    AfterValidator(_distinct),
]


Method = Literal["replay", "live"]
REPLAYED_LENGTHS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16)
LIVE_LENGTHS = (4, 8, 16)
LENGTHS = {"replay": REPLAYED_LENGTHS, "live": LIVE_LENGTHS, "head": (1, 2, 4)}


class DraftSpec(Spec):
    """The draft settings to try, and how the draft is placed."""

    n_max: Annotated[tuple[NMax, ...], _many(NMax), Some, AfterValidator(_distinct)] | None = None
    """Most tokens drafted at once; one, or a list to try. Absent: 1 to 8, 10, 12 and 16 by
    replay, which tries them at no cost; 4, 8 and 16 live; 1, 2 and 4 of a head."""
    n_min: Annotated[tuple[NMin, ...], _many(NMin), Some, AfterValidator(_distinct)] = (0,)
    """Fewest tokens worth verifying; one, or a list. Pairs above `n_max` are left out."""
    p_min: Annotated[
        tuple[Probability, ...], _many(Probability), Some, AfterValidator(_distinct)
    ] = (0.0,)
    """Drafting stops below this probability; one, or a list."""
    cache_types: Annotated[
        tuple[CacheTypes, ...], _many(CacheTypes), Some, AfterValidator(_distinct)
    ] = ("f16",)
    """Types of the draft's KV cache; one, or a list. `q8_0` is of keys and values alike,
    `q8_0/q5_1` of keys and of values. Each is a candidate of the same file."""
    context: Annotated[
        tuple[DraftContext, ...],
        _many(DraftContext),
        Field(max_length=32),
        AfterValidator(_distinct),
    ] = ()
    """Tokens of the draft's own context, one or a list, in multiples of 256: each is a candidate of
    the same file, such as `IQ1_KT context=2048`, that takes less memory (ik_llama.cpp; llama.cpp
    gives it the target's whatever is said). What a draft forgets by it no replay tells, so that
    prompt, `max_tokens` and draft must fit in it; `method: live` measures one that is shorter.
    Absent: the target's, which a head has in any case."""
    after: Rivals = ()
    """N-gram methods that draft first, each as in `rivals`, so that the draft drafts only where
    they have nothing: candidates next to the draft alone, such as `IQ1_KT after ngram-mod`.
    Simulated, and run live by servers that do both."""
    args: ModelArgsSpec = ModelArgsSpec()
    """How the draft is placed and run."""

    @model_validator(mode="after")
    def _some_pair(self) -> DraftSpec:
        own = self.args.cache_type_k or self.args.cache_type_v
        if own and "cache_types" in self.model_fields_set:
            raise fault("`cache_types` and `args.cache_type_k` or `_v` say the same: keep one")
        lengths = self.n_max or REPLAYED_LENGTHS
        if min(self.n_min) > max(lengths):
            raise fault("every `n_min` is above every `n_max`")
        pairs = sum(low <= high for high in lengths for low in self.n_min)
        if pairs * len(self.p_min) * len(self.cache_types) > 1024:
            raise fault("more than 1024 combinations of draft settings")
        return self

    def settings(self, scored: Literal[Method, "head"]) -> tuple[DraftSettings, ...]:
        """Every sensible (n_max, n_min, p_min) of drafts scored so, in the recipe's order."""
        from cook.engines.base import DraftSettings

        return tuple(
            DraftSettings(n_max=n_max, n_min=n_min, p_min=p_min)
            for n_max in self.n_max or LENGTHS[scored]
            for n_min in self.n_min
            for p_min in self.p_min
            if n_min <= n_max
        )


class LiveBudgetSpec(Spec):
    """How long live runs may take. What does not fit is left out and named in the answer."""

    minutes: Annotated[float, Field(gt=0, le=100_000)] = 30.0
    """Minutes of live runs: loads, requests, and waits for other programs. The first pass over the
    prompts may take twice that, further ones are made only while the pick is undecided."""


class ScoreSpec(Spec):
    """How drafts are scored against the target."""

    target: TargetSpec
    """The large model."""
    baseline: BaselineSpec | None = None
    """The target without a draft. Absent: with the target's own arguments."""
    method: Method = "replay"
    """`replay`: the target's text is recorded once, every draft is scored on it without the
    target, speeds are forecast from timed batches, and only the finalists run live. `live`: every
    candidate runs on the real server, in groups with no draft and the leader so far, as far as the
    budget goes."""
    trace: SourceField | None = None
    """A trace that `cook trace` recorded of this target, in place of recording one; prompts that
    it does not hold are left out."""
    prompts: PromptsField = "default"
    """A prompt set (`default`, `long`, `demo`), or a .jsonl or .json file of prompts or
    conversations."""
    categories: Annotated[tuple[str, ...], Field(min_length=1, max_length=64)] | None = None
    """Only prompts of these categories. Absent: all."""
    weights: (
        Annotated[
            dict[str, Annotated[float, Field(ge=0, le=1e6)]], Field(min_length=1, max_length=64)
        ]
        | None
    ) = None
    """Weight of each category in the totals; a category not named weighs 1.

    Absent: every token counts alike."""
    limit: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """At most this many prompts, taken evenly from the categories."""
    max_tokens: Annotated[int, Field(ge=2, le=131_072)] = 128
    """Tokens generated for each prompt; counts are unstable below 128. The first comes with the
    prompt, so that one is too few."""
    context: Annotated[int, Field(ge=128, le=4_194_304)] = 8192
    """Context of the server in tokens: prompt and output must fit."""
    batch_width: Annotated[int, Field(ge=1, le=64)] = 1
    """Tokens of the batch that computes each token while the target's text is recorded, of which
    all but the first are dropped. A batch of several rounds otherwise than one of a single token,
    so that after long prompts servers with a draft may write another text than one without: 2
    records theirs, which acceptance is of. A mixture of experts then takes up to twice as long to
    record; not for recurrent targets."""
    sampling: SamplingSpec = SamplingSpec()
    """The sampling chain."""
    draft: DraftSpec = DraftSpec()
    """Draft settings and placement."""
    rivals: Rivals = ()
    """Draft-free speculation that drafts must beat, each a name (`ngram-mod`; `all` that the
    engine has) or with numbers (`{type: ngram-map-k, size_n: 8}`). Simulated on the trace; the
    best one, and others that may win, run live on all prompts, in a block of their own. Absent:
    none, since timing their wide verifications takes time."""
    slots: Annotated[tuple[Slots, ...], _many(Slots), Some, AfterValidator(_distinct)] = (1,)
    """Numbers of server slots, one or a list (`[1, 2, 4]`), at which to tell the speed of all
    requests in parallel, with the pick and without a draft: predicted, and run live as far as
    the budget goes (llama.cpp; ik_llama.cpp drafts with one slot only). The pick itself is that
    of one slot."""
    live_budget: LiveBudgetSpec = LiveBudgetSpec()
    """Limit on the time of live runs."""
    repeats: Annotated[int, Field(ge=1, le=100)] = 1
    """Passes over all prompts that are dealt in any case, each with fresh servers, within twice the
    `live_budget`. More follow while the pick is undecided and `live_budget` has room."""

    @model_validator(mode="after")
    def _fits(self) -> ScoreSpec:
        if self.max_tokens >= self.context:
            raise fault(
                f"`max_tokens` {self.max_tokens} leaves no room for a prompt "
                f"in a context of {self.context}"
            )
        if longest := max(self.draft.context, default=0):
            least = min(self.draft.context)
            if longest > self.context:
                raise fault(
                    f"`draft.context` {longest} is more than the target's {self.context}",
                    hint="leave it out: the draft then has the target's",
                )
            drafted = max(s.n_max for s in self.draft.settings(self.method))
            if self.method == "replay" and least <= self.max_tokens + drafted:
                raise fault(
                    f"`draft.context` {least} holds no reply of {self.max_tokens} tokens, the "
                    f"prompt before it and {drafted} drafted: what the draft would forget no "
                    "replay tells",
                    hint="a longer one, or `method: live`",
                )
        if self.weights is not None and not any(self.weights.values()):
            raise fault("every weight is 0")
        if self.method == "live" and len(self.sampling.chains) > 1:
            raise fault(
                "lists of `sampling` are forecast by replay",
                hint="`method: replay`, or one value each",
            )
        if self.batch_width > 1 and (self.method == "live" or self.trace is not None):
            raise fault(
                "`batch_width` is of a text that is recorded, and none is here",
                hint="`method: replay` without `trace`, or leave `batch_width` out",
            )
        if max(self.slots) > 1 and self.method == "live":
            raise fault(
                "`slots` are predicted by replay",
                hint="`method: replay`, or leave `slots` out",
            )
        return self


Limit = Annotated[float, Field(gt=0, le=1e6)]


class SubjectToSpec(Spec):
    """Limits a candidate must keep; one that was not measured does not qualify."""

    size_gib: Limit | None = None
    """Size of the draft's file, GiB."""
    memory_gib: Limit | None = None
    """Weights, KV cache at the draft's context and compute buffers, GiB: those on devices, or where
    nothing is on one, all."""
    bpw: Limit | None = None
    """Bits per weight."""
    perplexity_ratio: Limit | None = None
    """Perplexity against the source model's, 1.0 being equal."""
    kld: Limit | None = None
    """Mean Kullback-Leibler divergence from the source model, nats a token."""


class PickSpec(Spec):
    """How the winner is chosen. "No draft" is always a candidate."""

    maximize: Literal["end_to_end_speed", "decode_speed", "acceptance", "acceptance_length"] = (
        "end_to_end_speed"
    )
    """`end_to_end_speed` counts the prompt's time, the draft's included; `decode_speed` does
    not; `acceptance` is accepted / drafted; `acceptance_length` is 1 + accepted / cycles."""
    confidence: Annotated[float, Field(gt=0.5, lt=1)] = 0.95
    """How sure a pick is that is called decided, and the level of every interval. While it is
    undecided, prompts are dealt again within the live budget."""
    margin: Annotated[float, Field(ge=0, le=0.5)] = 0.01
    """Share of the figure by which the best must be known: the pick is decided when no candidate is
    better by more. A smaller file wins where it is shown to be at most this much worse."""
    subject_to: SubjectToSpec = SubjectToSpec()
    """Limits."""


__all__ = [
    "BaselineSpec",
    "CoverageSpec",
    "DraftFileSpec",
    "DraftSpec",
    "EvaluateSpec",
    "ImatrixSpec",
    "LiveBudgetSpec",
    "ModelArgsSpec",
    "ModelSpec",
    "PickSpec",
    "QuantSpec",
    "Recipe",
    "RivalSpec",
    "RuleSpec",
    "SamplingSpec",
    "ScoreSpec",
    "SubjectToSpec",
    "SweepSpec",
    "TargetSpec",
    "TensorsFromSpec",
]

Context = Annotated[int, Field(ge=32, le=1_048_576)]
Chunks = Annotated[int, Field(ge=1, le=1_000_000)]


class ModelSpec(Spec):
    """The model whose quants are the drafts."""

    source: SourceField
    """An unquantized GGUF (BF16, F16 or F32; shard 1 if split) or a safetensors repository,
    which is converted: a path, or `hf://org/name[@revision][/path]`."""
    convert: Literal["bf16", "f16", "f32"] = "bf16"
    """Type of the GGUF that a safetensors repository is converted to."""
    allow_requantize: bool = False
    """Let an already quantized source be quantized again; quality suffers."""


class CoverageSpec(Spec):
    """How much of the model the imatrix must have seen."""

    experts: Annotated[float, Field(ge=0, le=1)] = 0.95
    """Share of the routed experts with data, counted by the engine's own skip rule."""
    otherwise: Literal["extend", "warn", "fail"] = "warn"
    """Below it: read more of the corpus, go on with a warning, or fail."""


class ImatrixSpec(Spec):
    """The importance matrix: computed from a corpus, or a ready file."""

    corpus: (
        Annotated[
            Path | HubRef | Literal["trace"],
            PlainValidator(lambda v, info: v if v == "trace" else _source(v, info)),
            PlainSerializer(str, return_type=str),
            WithJsonSchema({"type": "string", "minLength": 1, "maxLength": 4096}),
        ]
        | None
    ) = None
    """Calibration text: a file, or `trace` for text that the target itself wrote, on prompts
    kept apart from those of scoring."""
    file: SourceField | None = None
    """A ready imatrix (.dat or GGUF) to use instead of computing one."""
    context: Context = 512
    """Tokens in a chunk."""
    chunks: Chunks | None = None
    """At most this many chunks. Absent: the whole text."""
    process_output: bool = False
    """Collect for the output tensor too."""
    coverage: CoverageSpec = CoverageSpec()
    """What part of the experts must be covered."""
    args: ModelArgsSpec = ModelArgsSpec()
    """How the source model is placed and run."""

    @model_validator(mode="after")
    def _one_of(self) -> ImatrixSpec:
        if (self.corpus is None) == (self.file is None):
            raise fault("`imatrix` needs either `corpus` or `file`")
        return self


class EvaluateSpec(Spec):
    """Perplexity, and divergence from the source, of every quant."""

    corpus: SourceField
    """Text to evaluate on; not the calibration text."""
    context: Context = 512
    """Tokens in a chunk."""
    chunks: Chunks | None = 100
    """At most this many chunks; null for the whole text. The source's logits, kept for the
    divergence, take 77 MB a chunk at a vocabulary of 150k."""
    divergence: bool = True
    """Also measure KLD and top-token agreement against the source."""
    args: ModelArgsSpec = ModelArgsSpec()
    """How the models are placed and run."""


class Recipe(Spec):
    """What to quantize, how to measure it, and how to choose."""

    version: Literal[1]
    """Version of the recipe language."""
    name: Name
    """Name of the recipe and of its records. Absent: its file's, without `.yaml`."""
    description: Annotated[str, Field(max_length=10_000)] | None = None
    """What it is for."""
    engine: Annotated[
        tuple[TextLine, ...],
        Field(max_length=8),
        BeforeValidator(one_or_many, json_schema_input_type=TextLine | list[TextLine]),
    ] = ()
    """The engine it needs: `llama.cpp`, `ik_llama.cpp`, `bundled`, or a name of your own
    configuration; a list sweeps over several, each making the quants whose types it has.
    Absent: any that has the types."""
    model: ModelSpec | None = None
    """The source model; needed where quants are made."""
    imatrix: ImatrixSpec | None = None
    """Importance data for quantizing; absent for none."""
    evaluate: EvaluateSpec | None = None
    """Perplexity and divergence; absent to measure none."""
    quants: Annotated[tuple[QuantSpec, ...], Field(max_length=MAX_QUANTS)] = ()
    """The candidates."""
    sweep: Annotated[
        tuple[SweepSpec, ...],
        BeforeValidator(one_or_many, json_schema_input_type=SweepSpec | list[SweepSpec]),
        Field(max_length=16),
    ] = ()
    """Grids that expand into more quants, at most 1,024 in all; one, or a list."""
    drafts: Annotated[tuple[DraftFileSpec, ...], Field(max_length=MAX_QUANTS)] = ()
    """Ready-made GGUFs to score with the quants."""
    include_source: bool = False
    """Also score the unquantized source as a draft."""
    score: ScoreSpec | None = None
    """How drafts are scored; absent to stop after quantizing and evaluating."""
    pick: PickSpec = PickSpec()
    """How the winner is chosen."""

    @model_validator(mode="after")
    def _complete(self) -> Recipe:
        if not (self.quants or self.sweep or self.drafts or self.include_source):
            raise fault("nothing to do: no `quants`, `sweep`, `drafts` or `include_source`")
        if self.model is None and (self.quants or self.sweep or self.include_source):
            hint = "add `model: {source: ...}`"
            raise fault("`model` is missing: quants need a source", hint=hint)
        if self.imatrix is not None and self.imatrix.corpus == "trace" and self.score is None:
            raise fault("`imatrix.corpus: trace` needs a `score.target` to write the text")
        if self.score is None and any(draft.source == OWN_HEAD for draft in self.drafts):
            raise fault("`source: target` needs a `score.target`, whose head it is")
        return self
