"""The record of a search: which spans earn their bits, every mix that was tried, and the verdict.

A *span* is the tensors of one group in a range of layers, which all get one type; a *mix* is a
type for each span. What a type costs a span was replayed with all other spans as the reference
mix has them. Replayed figures are counts over whole replies, so they keep both parts of every
ratio; a predicted figure says which fit it comes from. What was not measured is None.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cook.engines.base import EngineIdentity
from cook.provenance import Machine
from cook.record.record import Interval, Objective
from cook.record.versioned import read_versioned

SEARCH_VERSION = 1
SEARCH_AGAIN = "`cook search RECIPE` makes one"

CostSource = Literal["replay", "csv", "inherited"]
"""Where a cost comes from: replayed here, read from a published table, or taken from the curve of
its kin: other types of the span, and, in proportion to elements, the wider span that it was split
from."""
Purpose = Literal["reference", "sensitivity", "candidate"]
"""Why a mix was replayed: as what others are compared with, for one span's cost, or as the
allocation of a size."""
Family = Literal["given", "engine", "kld", "perplexity", "found"]
"""Who made a finalist: the recipe, the engine's own mixture of the size, an allocation of KLD or
of perplexity alone, or the search."""
SearchVerdict = Literal["found", "tie", "given"]


@dataclass(frozen=True)
class Effect:
    """A difference paired by prompt; ``interval`` None: too few prompts to say."""

    value: float
    interval: Interval | None = None


@dataclass(frozen=True)
class ReplayedMix:
    """What one mix did on ``prompts`` prompts in drafts of the search's length.

    ``mean_kld`` (nats) over ``positions`` tokens of the target's text: how far the mix's
    probabilities are from those of the source that it is quantized of.
    """

    prompts: int
    drafted: int
    accepted: int
    cycles: int
    positions: int
    mean_kld: float | None

    @property
    def acceptance_length(self) -> float | None:
        """Tokens a cycle: 1 + accepted / cycles."""
        return 1 + self.accepted / self.cycles if self.cycles else None


@dataclass(frozen=True)
class TypeEffect:
    """One span in one type, against the reference mix.

    ``size_bytes`` is exact; ``kld`` in nats, ``acceptance`` a share, ``acceptance_length`` in
    tokens a cycle: each what is added to the reference's.
    """

    type: str
    size_bytes: int
    source: CostSource
    kld: Effect | None = None
    acceptance: Effect | None = None
    acceptance_length: Effect | None = None


@dataclass(frozen=True)
class SearchedSpan:
    """Tensors of ``group`` in ``first_layer`` to ``last_layer`` (None: of no layer).

    ``name`` is what mixes know it by. ``reference`` is its type in the reference mix, ``chosen``
    the one in the mix that is returned, None for a span that was ``split_into`` others.
    """

    name: str
    group: str
    first_layer: int | None
    last_layer: int | None
    tensors: tuple[str, ...]
    elements: int
    reference: str
    chosen: str | None
    types: tuple[TypeEffect, ...]
    split_into: tuple[str, ...] = ()


@dataclass(frozen=True)
class EvaluatedMix:
    """One evaluation, in the order in which they were made. ``mix``: types by span, of those that
    differ from the reference mix. ``seconds``: wall time."""

    purpose: Purpose
    why: str
    mix: dict[str, str]
    size_bytes: int
    replayed: ReplayedMix
    seconds: float | None = None


@dataclass(frozen=True)
class PromptParts:
    """Ids of the prompts, each in one part: what the imatrix was made of, what the search saw, and
    what the verdict is from."""

    calibration: tuple[str, ...]
    search: tuple[str, ...]
    verdict: tuple[str, ...]


@dataclass(frozen=True)
class AcceptanceLaw:
    """alpha lost = ``kappa`` * KLD ** ``power``, of whole mixes against the reference mix.

    Alpha is the acceptance of one token that gives the replayed acceptance length in drafts of
    ``n_max`` tokens, ``reference_alpha`` the reference mix's. KLD (nats) is the sum of what its
    spans add, each measured alone; ``additivity`` is what whole mixes had of that sum. Fitted on
    ``fitted`` mixes; ``error`` and ``largest_error`` (shares of the acceptance length) are of the
    ``held_out`` others, None without any.
    """

    kappa: float
    power: float
    reference_alpha: float
    n_max: int
    fitted: int
    held_out: int
    error: float | None
    largest_error: float | None
    additivity: float | None


@dataclass(frozen=True)
class DecodeLaw:
    """Seconds a decoded token: ``fixed_s`` + the sum of bytes read * ``s_per_byte``, by how they
    are read: the type, and whether a router chooses them.

    ``other_s_per_byte`` is for what no timed mix reads. Fitted on ``fitted`` timed mixes;
    ``error`` and ``largest_error`` (shares of the measured time) are of the ``held_out`` others,
    None without any.
    """

    fixed_s: float
    s_per_byte: dict[str, float]
    other_s_per_byte: float
    fitted: int
    held_out: int
    error: float | None
    largest_error: float | None


@dataclass(frozen=True)
class AllocationBound:
    """How far an allocation may be from the best there is, by the model it allocates on.

    ``damage`` (nats, added KLD) of the mix at ``max_bytes``; no mix of that size has less than
    ``bound``. ``gap`` is the difference as a share.
    """

    max_bytes: int
    size_bytes: int
    damage: float
    bound: float
    gap: float


@dataclass(frozen=True)
class FrontPoint:
    """One size of the front. ``kld`` is what is added to the reference's; ``acceptance_length``
    and ``decode_speed`` (tokens/s of target and draft) are predicted; ``replayed`` where the whole
    mix was."""

    size_bytes: int
    kld: float
    acceptance_length: float | None = None
    decode_speed: float | None = None
    replayed: ReplayedMix | None = None


@dataclass(frozen=True)
class Finalist:
    """A whole mix, replayed on the prompts of the verdict.

    ``against_given``: its acceptance length less the given recipe's, paired by prompt; None for
    that recipe itself. ``types``: tensors that have each type. ``decode_speed`` (tokens/s of target
    and draft, by replayed tokens and the finalist's own measured times) where speed is sought, and
    ``speed_against_given`` as ``against_given``, with the noise of timing in its interval;
    ``perplexity`` where it was measured.
    """

    name: str
    family: Family
    size_bytes: int
    types: dict[str, int]
    replayed: ReplayedMix
    acceptance_length: Interval | None
    against_given: Effect | None
    decode_speed: float | None = None
    perplexity: float | None = None
    speed_against_given: Effect | None = None

    @property
    def value(self) -> float:
        """Of what is sought: tokens a second, or a cycle."""
        return self.decode_speed or self.replayed.acceptance_length or 0.0

    @property
    def gain(self) -> Effect | None:
        """What it has of that over the recipe given."""
        return self.speed_against_given or self.against_given


@dataclass(frozen=True)
class FinalistTiming:
    """How the finalists of a search for speed were timed, all in turn, in ``passes`` passes.

    ``noise``: two measured cycles of one file differ by less than this share at the search's
    confidence, None where there were too few files to tell. ``law_error`` and
    ``law_largest_error``: what the law of decode times is off on them, shares of the measured
    decode.
    """

    passes: int
    noise: float | None
    law_error: float
    law_largest_error: float


@dataclass(frozen=True)
class CsvAgreement:
    """How far a published table of sensitivities agrees with what was replayed here.

    ``rank_correlation`` (Spearman) of its costs with acceptance lost, over ``compared`` spans and
    types; None where fewer than three were replayed.
    """

    file: str
    metric: str
    used: int
    missing: int
    compared: int
    rank_correlation: float | None


@dataclass(frozen=True)
class SearchAim:
    """What was asked for. ``max_evaluations`` and ``max_seconds``: the budget, None without one."""

    maximize: Objective
    max_bytes: int
    max_memory_bytes: int | None
    floor: str | None
    max_evaluations: int | None
    max_seconds: float | None
    n_max: int
    """Tokens a draft, of every acceptance here."""
    confidence: float
    margin: float
    """Share of the acceptance length within which two mixes tie."""


@dataclass(frozen=True)
class SearchRecord:
    """One search.

    ``best`` names the finalist that is returned: the recipe given, unless another is shown not
    to be worse by more than the margin. ``verdict``: ``found`` where what is returned is better
    than the recipe given, its interval excluding zero; ``tie`` where neither is shown;
    ``given`` where the search's mix is worse. Spans are changed from the reference mix, every span
    in the largest type that is offered.
    """

    schema_version: int
    cook: str
    created: str
    command: tuple[str, ...]
    machine: Machine
    engine: str
    identity: EngineIdentity
    recipe: str
    recipe_text: str
    quant: str
    """Of the recipe: the one given."""
    demo: bool
    target: str
    prompts: PromptParts
    aim: SearchAim
    reference_bytes: int
    spans: tuple[SearchedSpan, ...]
    evaluations: tuple[EvaluatedMix, ...]
    law: AcceptanceLaw | None
    decode: DecodeLaw | None
    allocation: AllocationBound | None
    front: tuple[FrontPoint, ...]
    finalists: tuple[Finalist, ...]
    best: str
    verdict: SearchVerdict
    sentence: str
    """The verdict in words, with its figures."""
    found_recipe: str | None
    """The recipe that was written, as YAML, with the finalist that has the most; None where one of
    the recipe given has."""
    csv: CsvAgreement | None
    warnings: tuple[str, ...]
    seconds: float
    timing: FinalistTiming | None = None
    """None where acceptance is sought."""

    @property
    def enough_bytes(self) -> int | None:
        """The size beyond which no point of the front gains more acceptance length than the
        margin."""
        lengths = [(p.size_bytes, p.acceptance_length or 0.0) for p in self.front]
        least = (1 - self.aim.margin) * max((length for _, length in lengths), default=0.0)
        return next((size for size, length in lengths if length >= least > 0), None)

    def finalist(self, family: Family) -> Finalist | None:
        """The best of a family, by acceptance length; None where it has none."""
        of_it = (f for f in self.finalists if f.family == family)
        return max(of_it, key=lambda f: f.replayed.acceptance_length or 0.0, default=None)


def read_search_record(path: Path) -> SearchRecord:
    """Read one back; InputError says what is wrong with the file."""
    return read_versioned(path, SearchRecord, SEARCH_VERSION, "search record", SEARCH_AGAIN)
