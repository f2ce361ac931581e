"""What the worker is asked and what it answers: frozen records of numpy arrays.

Arrays have one entry a position unless stated; probabilities are natural logarithms.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from cook.engines.base import BATCH, UBATCH
from cook.errors import PrerequisiteError
from cook.files import FileRange
from cook.formats.arrays import Floats32, Ids, Ints
from cook.formats.quant_types import QuantType


@dataclass(frozen=True)
class LibraryParameter:
    """One number of the library's model or context parameters: ``model.use_mmap`` is 0.

    A text as ``value`` names a tensor type. ``flag`` is the raw flag that says it, None for what
    the engine's server sets on its own.
    """

    name: str
    value: float | str
    flag: str | None = None


@dataclass(frozen=True)
class ModelLoad:
    """A model and how to run it. ``None`` leaves the engine's default.

    ``context`` tokens of KV cache; ``batch``/``ubatch`` tokens, cut to the context as the servers
    do. ``parameters``: of several for one name the last holds. ``overrides`` are ``REGEX=BUFFER``
    as of ``--override-tensor``, the first match wins; ``tensor_split`` and ``devices`` as the
    servers' flags; ``numa`` is a ``ggml_numa_strategy``.
    """

    path: Path
    context: int = 4096
    batch: int = BATCH
    ubatch: int = UBATCH
    threads: int = 1
    threads_batch: int | None = None
    parameters: tuple[LibraryParameter, ...] = ()
    overrides: tuple[str, ...] = ()
    tensor_split: str | None = None
    devices: tuple[str, ...] = ()
    numa: int | None = None
    vocabulary_only: bool = False
    gives_rows: bool = False
    """Computes its hidden states for heads at every token, as a server with one does."""

    collects: bool = False
    """A head that adds up what goes into its matrices (mainline)."""

    @property
    def weights(self) -> str:
        """Digest of what decides how the weights lie in memory: loads that differ in nothing else
        than their contexts have the same."""
        held = replace(
            self,
            context=0,
            batch=0,
            ubatch=0,
            threads=0,
            threads_batch=None,
            gives_rows=False,
            collects=False,
            parameters=tuple(p for p in self.parameters if p.name.startswith("model.")),
        )
        return hashlib.sha256(repr(held).encode()).hexdigest()

    def known_to(self, names: Collection[str]) -> tuple[LibraryParameter, ...]:
        """The parameters that a library with those ``names`` has.

        PrerequisiteError where one that a flag asks for is missing; a missing default is left out.
        """
        missing = [p for p in self.parameters if p.name not in names]
        if asked := next((p for p in missing if p.flag is not None), None):
            raise PrerequisiteError(
                f"{self.path.name}: replay and timing cannot follow `{asked.flag}`: this engine's"
                f" library has no {asked.name}",
                hint="leave it out, or score live: `score: {method: live}`",
            )
        return tuple(p for p in self.parameters if p not in missing)


@dataclass(frozen=True, eq=False)
class RowsOfTensor:
    """A tensor that lies in a file, ``shape`` ne0 first, and the type that it is to become;
    ``importance`` of every column of every matrix, or None."""

    source: FileRange
    source_type: QuantType
    type: QuantType
    shape: tuple[int, ...]
    importance: Floats32 | None


@dataclass(frozen=True)
class ModelInfo:
    """What the engine says of the loaded model; ``eog`` are the ids that end a reply.

    ``carried``: tokens that the KV cache took over from the context before.
    ``on_device``: a part of it lies in an accelerator's memory. ``library``: every number that the
    library was given, by its name there.
    """

    n_vocab: int
    bos: int | None
    eog: frozenset[int]
    add_bos: bool
    context: int
    context_train: int
    carried: int
    on_device: bool
    library: Mapping[str, float]


@dataclass(frozen=True, eq=False)
class Divergence:
    """Against the trace's stored top-K.

    docs/internals/scoring.md#divergence-from-the-stored-candidates

    ``kld`` >= 0 nats: the stored tokens exactly and all others as one; the true divergence is
    no less. ``rest``: the target's probability outside the stored set, the size of what is
    unknown. The acceptance of rejection sampling lies in [``alpha_low``, ``alpha_high``].
    """

    kld: Floats32
    rest: Floats32
    alpha_low: Floats32
    alpha_high: Floats32


@dataclass(frozen=True, eq=False)
class Rollouts:
    """Greedy continuations after each mismatch, the draft's own wrong token included in the text.

    ``position`` [m]: index into emitted, rising; ``length`` [m]: steps taken; ``tokens`` and
    ``confidence`` [m, steps]: zero beyond ``length``. A rollout that stopped early ended with a
    confidence below the floor asked for; one of length 0 was not made, its mismatch being below
    it already. ``tail_tokens``, ``tail_confidence``: the same after the last emitted token.
    """

    position: Ids
    length: Ids
    tokens: Ids
    confidence: Floats32
    tail_tokens: Ids
    tail_confidence: Floats32


@dataclass(frozen=True, eq=False)
class Replay:
    """One teacher-forced pass; entry i predicts emitted[i].

    ``confidence``: softmax of the argmax over the ten largest raw logits (mainline's p in
    common/speculative.cpp). ``logq``/``logq_t``: log-probability of the emitted token at
    temperature 1 and at the one asked for. ``rank``: logits above the emitted token's.
    ``margin``: top-1 minus top-2 logit. ``top_ids``/``top_logits`` [n, K] by falling logit.
    """

    argmax: Ids
    confidence: Floats32
    logsumexp: Floats32
    logq: Floats32
    logq_t: Floats32
    rank: Ids
    margin: Floats32
    entropy: Floats32
    top_ids: Ids | None
    top_logits: Floats32 | None
    divergence: Divergence | None
    rollouts: Rollouts | None
    decode_ns: int
    reduce_ns: int


@dataclass(frozen=True, eq=False)
class HeadReplay:
    """All that a head drafts over a reply: entry i is the draft that begins at emitted[i], which
    the first of ``tokens`` [n, depth] guesses; ``confidence`` as of :class:`Replay`.

    A draft ends at its first wrong token, or below the floor asked for: -1 and 0 behind that, and
    in entry 0, which is never drafted.
    """

    tokens: Ids
    confidence: Floats32
    replay_ns: int


@dataclass(frozen=True, eq=False)
class LiveCycles:
    """What a server would have counted. Per cycle: ``start`` (index into emitted), ``length``,
    ``accepted``; ``tokens`` and ``confidence`` of all drafts one after another. ``plain_steps``
    are target steps without a draft (not counted as cycles by the server).
    """

    start: Ids
    length: Ids
    accepted: Ids
    tokens: Ids
    confidence: Floats32
    draft_n: int
    draft_n_accepted: int
    plain_steps: int


@dataclass(frozen=True, eq=False)
class Generation:
    """A reply. The first ``emitted`` tokens are the reply (end-of-generation token included);
    any others continue past its end. ``stop``: ``eog``, ``limit`` or ``context``. ``logp`` raw at
    temperature 1; ``chain_logp`` under the sampler chain (0 when greedy); ``margin`` of logits.
    """

    tokens: Ids
    emitted: int
    stop: str
    logp: Floats32
    chain_logp: Floats32
    logsumexp: Floats32
    margin: Floats32
    top_ids: Ids | None
    top_logits: Floats32 | None


@dataclass(frozen=True, eq=False)
class DecodeTimes:
    """Per repeat: the decode, and the engine's sampler over its outputs (0 when not asked)."""

    decode_ns: Ints
    sample_ns: Ints


class FirstDrafts(Protocol):
    """What drafts before a head does, over one reply."""

    def tokens(self, i: int, room: int) -> list[int]:
        """The draft for position ``i`` of the reply, at most ``room`` tokens."""
        ...

    def accept(self, count: int) -> None:
        """``count`` tokens of its last draft, which had some, were accepted."""
        ...
