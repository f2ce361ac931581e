"""What a record holds of one measurement: figures, their intervals, and the checks of them.

Every ratio keeps its numerator and denominator, every figure its unit in its name, and what
was not measured is ``None`` with a reason next to it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cook.engines.base import DraftSettings
from cook.engines.server_api import DepthCount as DepthCount
from cook.record.outcomes import ControlOutcome


@dataclass(frozen=True)
class Interval:
    """A two-sided interval at ``confidence`` (share of 1), with how it was made."""

    low: float
    high: float
    confidence: float
    method: str


@dataclass(frozen=True)
class Quality:
    """Perplexity with its standard error; KLD (nats) from the source's logits where measured."""

    perplexity: float
    perplexity_error: float
    chunks: int
    context: int
    perplexity_ratio: float | None = None
    """Perplexity over the source's on the same text."""
    mean_kld: float | None = None
    mean_kld_error: float | None = None
    p99_kld: float | None = None
    same_top_percent: float | None = None


@dataclass(frozen=True)
class Figures:
    """What the server counted over a set of requests.

    ``decode_speed`` is tokens after the first per second of decoding; ``end_to_end_speed`` the
    same tokens per second from request to last token, prefill of target and draft included.
    Both are token-weighted (sum of tokens over sum of time), by category weight; None where no
    reply goes on after its first token.
    """

    requests: int
    prompt_tokens: int
    tokens: int
    """Tokens after the first of each reply."""
    decode_ms: float
    wall_ms: float
    drafted: int | None
    accepted: int | None
    cycles: int | None
    decode_speed: float | None
    end_to_end_speed: float | None
    weighted_acceptance_rate: float | None = None
    """``acceptance_rate`` where categories are weighted; so is ``weighted_acceptance_length``."""
    weighted_acceptance_length: float | None = None
    prompt_ms: float | None = None
    """Prefill, of ``wall_ms``: as the server timed it, or as predicted for both models."""
    draft_prompt_ms: float | None = None
    """Of ``prompt_ms``, the draft's reading of the prompts, which this server counts as decoding:
    as its answers say, or as it was timed apart. None: no such correction."""

    @property
    def acceptance_rate(self) -> float | None:
        """accepted / drafted."""
        return self.accepted / self.drafted if self.drafted and self.accepted is not None else None

    @property
    def acceptance_length(self) -> float | None:
        """Tokens a cycle: 1 + accepted / cycles."""
        if not self.cycles or self.accepted is None:
            return None
        return 1 + self.accepted / self.cycles


@dataclass(frozen=True)
class PromptFigures:
    """What the server counted of each request, a column each, in the order of ``ids``.

    ``tokens`` are those after the first; times in ms; ``drafted`` None where nothing was drafted.
    Of live requests also the ``block`` of prompts, the ``order`` in it, and the ``start`` of the
    server (0, 1, ...): an id comes again where prompts were dealt again to fresh servers.
    """

    ids: tuple[str, ...]
    categories: tuple[str, ...]
    tokens: tuple[int, ...]
    decode_ms: tuple[float, ...]
    wall_ms: tuple[float, ...]
    drafted: tuple[int | None, ...]
    accepted: tuple[int | None, ...]
    prompt_ms: tuple[float, ...] = ()
    block: tuple[int, ...] = ()
    order: tuple[int, ...] = ()
    start: tuple[int, ...] = ()


@dataclass(frozen=True)
class ReplayedPrompts:
    """What one draft accepts of the recorded replies, a column each, in the order of ``ids``.

    In drafts of ``n_max`` tokens without p_min, a length that depends on the recipe alone: unlike
    live figures, which finalists have, it is there for every draft, and comparable from one
    record to the next.
    """

    engine: str
    draft: str
    cache_type: str | None
    n_max: int
    ids: tuple[str, ...]
    categories: tuple[str, ...]
    drafted: tuple[int, ...]
    accepted: tuple[int, ...]
    texts: tuple[str, ...] = ()
    """A digest of each recorded reply; empty where none was kept."""


@dataclass(frozen=True)
class NoiseFloor:
    """What one draft's ``acceptance`` differs by on ``engine`` between one pass and token by
    token, a fraction, at ``confidence``."""

    engine: str
    confidence: float
    acceptance: float


@dataclass(frozen=True)
class OutputCheck:
    """Replies compared token by token with the baseline's.

    ``without_draft`` of the differences also come about in the target alone at that batch width;
    ``without_draft_tried`` were tried. Gaps are of logits; where tokens are drawn, what logits have
    to part by for one draw to give either token.
    """

    replies: int
    identical: int
    near_ties: int
    """Differences whose logit gap is at most ``near_tie_gap``."""
    material: int
    unknown: int
    near_tie_gap: float
    largest_gap: float | None
    first_positions: tuple[int, ...]
    without_draft: int = 0
    without_draft_tried: int = 0
    gap_is_measured: bool = False
    """``near_tie_gap`` comes from a control run on this engine, else from the literature."""
    control: ControlOutcome | None = None
    not_controlled: str | None = None
    """Why a control without a draft came to no end; None where all did."""


@dataclass(frozen=True)
class Rejection:
    """Expected counts, were drafts verified by rejection sampling instead of as the server does.

    ``decode_speed`` in tokens a second; the draft draws at the target's temperature.
    """

    drafted: float
    accepted: float
    cycles: float
    decode_speed: float | None


@dataclass(frozen=True)
class Prediction:
    """What replay and measured times say of a candidate, over all prompts, before any live run.

    ``off_by``: predicted over live end-to-end speed - 1 on the requests that it was dealt, and
    ``decode_off_by`` the same of decoding; ``on_live`` are the predicted figures on these. None
    where it did not run. ``*_s``: where the decode time goes, in seconds over all replies.
    """

    figures: Figures
    verify_s: float
    draft_s: float
    mirror_s: float
    sample_s: float
    speedup: float | None = None
    """Predicted end-to-end speed over no draft's, predicted."""
    decode_speedup: float | None = None
    on_live: Figures | None = None
    off_by: float | None = None
    decode_off_by: float | None = None
    by_depth: tuple[DepthCount, ...] = ()
    categories: dict[str, Figures] = field(default_factory=dict)
    prompts: PromptFigures | None = None
    """``figures``, prompt by prompt."""
    rejection: Rejection | None = None
    """The other rule of verification, where the target samples; the engines have none of it."""


@dataclass(frozen=True)
class SlotSpeed:
    """A server of ``slots`` slots with as many clients, each asking for the next reply at once.

    ``*tokens_per_s`` of all slots together, from the first request to the last answer, prompts and
    waiting included; ``each_tokens_per_s`` of one reply from its first token on, as a client sees
    it. Predicted from batches of several slots; ``live`` None comes with
    ``reason``. ``settings`` None: no draft.
    """

    engine: str
    draft: str | None
    settings: DraftSettings | None
    slots: int
    requests: int
    predicted_tokens_per_s: float
    predicted_each_tokens_per_s: float | None
    live_tokens_per_s: float | None
    live_each_tokens_per_s: float | None
    reason: str | None
    command: tuple[str, ...] = ()
    """The live server's."""

    @property
    def off_by(self) -> float | None:
        """predicted / live - 1."""
        if not self.live_tokens_per_s:
            return None
        return self.predicted_tokens_per_s / self.live_tokens_per_s - 1


@dataclass(frozen=True)
class DraftSpeed:
    """Single-token decodes a second after ``depth`` tokens, on the machine of the record."""

    tokens_per_s: float
    depth: int


@dataclass(frozen=True)
class LayerCoverage:
    """``covered`` of ``experts`` (expert, tensor) pairs of one layer have data."""

    layer: int
    experts: int
    covered: int


@dataclass(frozen=True)
class ImatrixCoverage:
    """The matrix that the quants were made with.

    ``experts_covered`` of ``experts_total`` (expert, tensor) pairs have data by the engine's own
    rule for partial entries, ``layers`` the same by layer; both are empty for a dense model.
    ``skipped`` names tensors without any data, at most 64 of ``skipped_count``.
    """

    chunks: int
    context: int
    perplexity: float | None
    entries: int
    experts_total: int
    experts_covered: int
    layers: tuple[LayerCoverage, ...]
    skipped: tuple[str, ...]
    skipped_count: int

    @property
    def fraction(self) -> float | None:
        """Share of experts with data; None for a dense model."""
        return self.experts_covered / self.experts_total if self.experts_total else None


@dataclass(frozen=True)
class TypeSpan:
    """Tensors of one group in ``first_layer`` to ``last_layer``, which are all alike.

    ``first_layer`` None: tensors of no layer (embeddings, output). The rest is of one layer:
    ``types`` counts tensors by type, ``elements`` and ``size_bytes`` are summed over them;
    ``size_bytes`` None: a type that cook does not know.
    """

    group: str
    first_layer: int | None
    last_layer: int | None
    types: dict[str, int]
    elements: int
    size_bytes: int | None

    @property
    def layers(self) -> int:
        """How many layers the span covers; 1 for tensors of no layer."""
        if self.first_layer is None or self.last_layer is None:
            return 1
        return self.last_layer - self.first_layer + 1

    @property
    def bpw(self) -> float | None:
        """Bits per weight."""
        if self.size_bytes is None or not self.elements:
            return None
        return 8 * self.size_bytes / self.elements
