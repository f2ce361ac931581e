"""The recipe, version 1: the whole language as frozen models.

Attribute names are the YAML's keys. Field docstrings are the reference: they go into the JSON
Schema and the generated documentation. Parse with :func:`cook.recipe.load.load_recipe`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    BeforeValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)

from cook.recipe.fields import Line, Name, SourceField, Spec, _source, fault, one_or_many
from cook.recipe.model_args import ModelArgsSpec
from cook.recipe.quant_spec import MAX_QUANTS, DraftFileSpec, QuantSpec, RuleSpec, SweepSpec
from cook.recipe.score_spec import (
    BaselineSpec,
    DraftSpec,
    LiveBudgetSpec,
    PickSpec,
    SamplingSpec,
    ScoreSpec,
    SubjectToSpec,
    TargetSpec,
)
from cook.recipe.sources import HubRef

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
    "RuleSpec",
    "SamplingSpec",
    "ScoreSpec",
    "SubjectToSpec",
    "SweepSpec",
    "TargetSpec",
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


def _corpus(value: object, info: ValidationInfo) -> object:
    return value if value == "trace" else _source(value, info)


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
            PlainValidator(_corpus),
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
    """Name of the recipe."""
    description: Annotated[str, Field(max_length=10_000)] | None = None
    """What it is for."""
    engine: Annotated[
        tuple[Line, ...],
        Field(max_length=8),
        BeforeValidator(one_or_many, json_schema_input_type=Line | list[Line]),
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
    """Grids that expand into more quants, at most 256 in all; one, or a list."""
    drafts: Annotated[tuple[DraftFileSpec, ...], Field(max_length=MAX_QUANTS)] = ()
    """Ready-made GGUFs to score beside the quants."""
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
        return self
