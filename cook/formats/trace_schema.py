"""The JSON parts of a trace file: under what conditions it was recorded, and each reply's head."""

from __future__ import annotations

import hashlib
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

# Layout and metrics in one number: raise it when a field or a number changes its meaning;
# readers refuse every other. 1: first. 2: the vocabulary inside, the sampling chain as it was
# really applied, unknown facts of a remote target as null.
TRACE_VERSION: Final = 2

Sha256 = str


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Sampler(_Frozen):
    """The target's sampling chain, in this order: top_k (0: off), top_p, min_p, temperature.

    ``temperature`` 0 is greedy, and the rest of the chain then changes nothing.
    ``draws``: whose random numbers, ``worker`` (cook's own) or ``server`` (the engine's).
    """

    temperature: float = Field(ge=0.0)
    top_k: int = Field(default=0, ge=0)
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    min_p: float = Field(default=0.0, ge=0.0, le=1.0)
    repeat_penalty: float = Field(default=1.0, gt=0.0)
    seed: int = Field(default=0, ge=0)
    draws: Literal["worker", "server"] = "worker"


class TokenizerFacts(_Frozen):
    """The target's tokenizer beside its ``size`` token texts, which follow the header."""

    kind: str = Field(max_length=100)
    bos: int | None
    eos: int | None
    add_bos: bool
    add_eos: bool
    size: int = Field(gt=0, le=1 << 24)


class TraceHeader(_Frozen):
    """Everything that makes two recordings comparable, and where this one came from.

    ``source``: ``worker``, ``server`` (token ids over HTTP) or ``text`` (greedy text of an
    OpenAI-style endpoint, tokenized here). ``top``: K of the stored top-K. ``batch_width``:
    tokens a decode step, 1 unless the target verified something. ``extra_tokens``: recorded
    beyond an end-of-generation token. ``prompts_sha256`` covers the prompt set.

    ``template_sha256``: of the chat template that rendered the prompts; of the empty text where
    they were not rendered.

    None is "not known", which only HTTP recordings have: the target's file is not at hand
    (``target_sha256``, ``engine_digest``, ``device``, the KV types), or no GGUF with its tokenizer
    was given (``tokenizer``, ``tokenizer_sha256``).
    """

    version: Literal[2] = TRACE_VERSION
    target_name: str = Field(max_length=1000)
    target_sha256: Sha256 | None
    tokenizer_sha256: Sha256 | None
    tokenizer: TokenizerFacts | None = None
    template_sha256: Sha256
    prompts_sha256: Sha256
    vocabulary_size: int = Field(gt=0)
    eog: tuple[int, ...]
    flavour: str
    engine_build: str
    engine_digest: Sha256 | None
    device: str | None
    cache_type_k: str | None
    cache_type_v: str | None
    context: int = Field(gt=0)
    batch_width: int = Field(default=1, gt=0)
    n_predict: int = Field(gt=0)
    extra_tokens: int = Field(default=0, ge=0)
    top: int = Field(ge=0, le=1 << 16)
    sampler: Sampler
    source: Literal["worker", "server", "text"] = "worker"

    @property
    def chat(self) -> bool:
        """Whether a chat template rendered the prompts."""
        return self.template_sha256 != hashlib.sha256(b"").hexdigest()

    def conditions(self) -> dict[str, Any]:
        """The fields that must agree before a recording may go on."""
        return self.model_dump(exclude={"target_name"})


class ReplyHead(_Frozen):
    """One reply: ``emitted`` of its ``tokens`` belong to the reply; ``weight`` and ``half`` are
    its prompt's (``half`` says whether it tunes a pick or reports on it)."""

    id: str = Field(min_length=1, max_length=1000)
    category: str = Field(max_length=1000)
    weight: float = Field(default=1.0, gt=0.0)
    half: Literal["pick", "report"] | None = None
    rendered_sha256: Sha256 = ""
    seed: int = Field(default=0, ge=0)
    stop: Literal["eog", "limit", "context", "word"]
    prompt_tokens: int = Field(gt=0, le=1 << 26)
    tokens: int = Field(gt=0, le=1 << 26)
    emitted: int = Field(gt=0, le=1 << 26)
