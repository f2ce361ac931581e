"""The recipe's words for scoring drafts against a target, and for the pick."""

from __future__ import annotations

import re
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)

from cook.recipe.fields import SourceField, Spec, fault, one_or_many
from cook.recipe.model_args import CacheType, ModelArgsSpec
from cook.recipe.sources import HubRef, parse_source

if TYPE_CHECKING:
    from cook.engines.base import DraftSettings

PROMPT_SETS = ("default", "long", "demo")
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
    """How it is placed and run while a draft runs beside it."""


class BaselineSpec(Spec):
    """The target without a draft, at its best."""

    args: ModelArgsSpec = ModelArgsSpec()
    """How it is placed and run alone: it may use the memory that the draft would take."""


class SamplingSpec(Spec):
    """The sampling chain that will be deployed; temperature 0 is greedy."""

    temperature: Annotated[float, Field(ge=0, le=10)] = 0.0
    """0 takes the most likely token always."""
    top_k: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    """Keep this many most likely tokens; 0 keeps all."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    """Keep the most likely tokens up to this sum of probability."""
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    """Keep tokens at least this likely, relative to the most likely."""
    repeat_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    """Penalty on repeated tokens; 1 is none."""
    seed: Annotated[int, Field(ge=0, lt=2**32 - 1)] = 1
    """Seed of the sampler."""


def _distinct(values: tuple[object, ...]) -> tuple[object, ...]:
    if len(set(values)) < len(values):
        raise fault("lists a value twice")
    return values


def _many(item: Any) -> BeforeValidator:
    return BeforeValidator(one_or_many, json_schema_input_type=item | list[item])


NMax = Annotated[int, Field(ge=1, le=256)]
NMin = Annotated[int, Field(ge=0, le=256)]
Probability = Annotated[float, Field(ge=0, le=1)]
Some = Field(min_length=1, max_length=32)


Method = Literal["replay", "live"]
LiveTool = Literal["server", "spec-bench"]
REPLAYED_LENGTHS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16)
LIVE_LENGTHS = (4, 8, 16)


class DraftSpec(Spec):
    """The draft settings to try, and how the draft is placed."""

    n_max: Annotated[tuple[NMax, ...], _many(NMax), Some, AfterValidator(_distinct)] | None = None
    """Most tokens drafted at once; one, or a list to try. Absent: 1 to 8, 10, 12 and 16 by
    replay, which tries them at no cost; 4, 8 and 16 live."""
    n_min: Annotated[tuple[NMin, ...], _many(NMin), Some, AfterValidator(_distinct)] = (0,)
    """Fewest tokens worth verifying; one, or a list. Pairs above `n_max` are left out."""
    p_min: Annotated[
        tuple[Probability, ...], _many(Probability), Some, AfterValidator(_distinct)
    ] = (0.0,)
    """Drafting stops below this probability; one, or a list."""
    cache_types: Annotated[
        tuple[CacheType, ...], _many(CacheType), Some, AfterValidator(_distinct)
    ] = ("f16",)
    """Types of the draft's KV cache (keys and values alike); one, or a list."""
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

    def settings(self, method: Method) -> tuple[DraftSettings, ...]:
        """Every sensible (n_max, n_min, p_min), in the recipe's order."""
        from cook.engines.base import DraftSettings

        return tuple(
            DraftSettings(n_max=n_max, n_min=n_min, p_min=p_min)
            for n_max in self.n_max or (REPLAYED_LENGTHS if method == "replay" else LIVE_LENGTHS)
            for n_min in self.n_min
            for p_min in self.p_min
            if n_min <= n_max
        )


class LiveBudgetSpec(Spec):
    """How long live scoring may take; what does not fit is left out and told."""

    minutes: Annotated[float, Field(gt=0, le=100_000)] = 30.0
    """Minutes of live runs."""


class ScoreSpec(Spec):
    """How drafts are scored against the target."""

    target: TargetSpec
    """The large model."""
    baseline: BaselineSpec | None = None
    """The target without a draft. Absent: with the target's own arguments."""
    method: Method = "replay"
    """`replay`: the target's text is recorded once, every draft is scored on it without the
    target, speeds are predicted from measured times, and only the finalists run live. `live`:
    every candidate runs on the real server, as far as the budget goes."""
    live: LiveTool = "server"
    """What live runs go through: `server`, the engine's llama-server, as users run it;
    `spec-bench`, ik_llama.cpp's llama-spec-bench, which has no server around the drafting."""
    trace: SourceField | None = None
    """A trace that `cook trace` recorded of this target, in place of recording one; prompts that
    it does not hold are left out."""
    prompts: PromptsField = "default"
    """A prompt set (`default`, `long`, `demo`) or a .jsonl file of prompts."""
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
    sampling: SamplingSpec = SamplingSpec()
    """The sampling chain."""
    draft: DraftSpec = DraftSpec()
    """Draft settings and placement."""
    live_budget: LiveBudgetSpec = LiveBudgetSpec()
    """Limit on the time of live runs."""
    repeats: Annotated[int, Field(ge=1, le=100)] = 1
    """Times each live run is repeated, each in a fresh server; timings are medians."""

    @model_validator(mode="after")
    def _fits(self) -> ScoreSpec:
        if self.max_tokens >= self.context:
            raise fault(
                f"`max_tokens` {self.max_tokens} leaves no room for a prompt "
                f"in a context of {self.context}"
            )
        if self.weights is not None and not any(self.weights.values()):
            raise fault("every weight is 0")
        return self


Limit = Annotated[float, Field(gt=0, le=1e6)]


class SubjectToSpec(Spec):
    """Limits a candidate must keep; one that was not measured does not qualify."""

    size_gib: Limit | None = None
    """Size of the draft's file, GiB."""
    memory_gib: Limit | None = None
    """Weights + KV cache at the draft's context + compute buffers, GiB."""
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
    """Candidates that cannot be told apart at this confidence tie; the smaller file wins."""
    subject_to: SubjectToSpec = SubjectToSpec()
    """Limits."""
