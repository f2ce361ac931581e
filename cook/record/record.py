"""The record: everything one build or score found out, as one versioned document.

Every ratio keeps its numerator and denominator, every figure its unit in its name, and what
was not measured is ``None`` with a reason next to it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from cook.engines.base import DraftSettings, EngineIdentity, ModelArgs
from cook.engines.server_api import DepthCount as DepthCount
from cook.engines.speculation import NgramSettings
from cook.formats.reduction import Reduction
from cook.formats.sampling import Sampling
from cook.provenance import HubOrigin, Machine
from cook.record.versioned import json_values, read_versioned, write_versioned

TOLERATED_CORES = 0.15
"""Processor use by others, in cores, that is no disturbance: timers, the kernel, a shell."""


@dataclass(frozen=True)
class PromptRun:
    """What the server said of one request.

    ``tokens`` are the emitted ids (None where the engine returns none: ik). Times in ms:
    ``prompt_ms`` and ``predicted_ms`` are the server's, ``wall_ms`` the client's from request
    to answer, which holds the prefill of target and draft. ``draft_n`` is None without a
    draft. ``past_end``: what the server (ik) accepted past an end of generation and
    counted, and no client gets; it is neither in ``predicted_n`` nor in ``draft_n_accepted``.

    Where the server calls the draft's reading of the prompt decoding (ik), ``late_reading_ms`` is
    what of ``predicted_ms`` it took, as the answer tells, and once it is counted there,
    ``draft_prompt_ms`` what of ``prompt_ms`` it is; each None where it is not so.

    A live request is of a ``block`` of prompts, which has servers of its own, and the ``order``-th
    of it; ``others_cores`` other programs kept busy meanwhile, None where the kernel does not say.
    """

    id: str
    category: str
    prompt_n: int
    prompt_ms: float
    predicted_n: int
    predicted_ms: float
    wall_ms: float
    draft_n: int | None
    draft_n_accepted: int | None
    tokens: tuple[int, ...] | None
    text: str
    stop: str
    draft_prompt_ms: float | None = None
    late_reading_ms: float | None = None
    block: int = 0
    order: int = 0
    others_cores: float | None = None
    past_end: int = 0

    @property
    def counted(self) -> tuple[int, int]:
        """(drafted, accepted) tokens as the server counts them, past the end as well."""
        return self.draft_n or 0, (self.draft_n_accepted or 0) + self.past_end

    @property
    def disturbed(self) -> bool:
        """Whether another program kept the processor busy meanwhile."""
        return self.others_cores is not None and self.others_cores > TOLERATED_CORES

    @property
    def cycles(self) -> int | None:
        """Verification cycles, by token identity: emitted = 1 + accepted + cycles."""
        if self.draft_n_accepted is None:
            return None
        return self.predicted_n - 1 - self.draft_n_accepted


@dataclass(frozen=True)
class Difference:
    """The first token where a drafted reply left the baseline's.

    ``position`` counts generated tokens from 0, of the baseline's ``reply_tokens``. ``gap`` is
    logit(baseline's token) minus logit(other token); where tokens are drawn, how far logits have to
    part for one draw to give either. None when the other token was not among the asked candidates,
    and then ``gap_at_least`` bounds it from below; or where nothing was looked up.
    ``without_draft``: the target alone, reading the baseline's text in batches as wide as a
    verification, prefers (or draws) the other token too, so that the draft is innocent; None where
    that was not tried.
    """

    prompt_id: str
    position: int
    reply_tokens: int
    baseline_token: int | None
    other_token: int | None
    gap: float | None
    gap_at_least: float | None
    without_draft: bool | None = None


@dataclass(frozen=True)
class CompareOutcome:
    """``identical`` of ``replies`` replies are token for token the baseline's.

    ``not_controlled``: why no control of batch width came to an end; None where it did, or none
    was needed.
    """

    replies: int
    identical: int
    differences: tuple[Difference, ...]
    not_controlled: str | None = None


@dataclass(frozen=True)
class ControlOutcome:
    """``flips`` of ``positions`` tokens are another in batches of ``width`` than singly.

    ``p50``, ``p99`` and ``largest``: absolute difference of the emitted token's log-probability,
    nats. ``largest_flip``: the widest margin, between the two likeliest, at which a token flipped.
    """

    width: int
    positions: int
    flips: int
    p50: float
    p99: float
    largest: float
    largest_flip: float | None

    @property
    def near_tie_gap(self) -> float:
        """Logit gap up to which a difference is a near tie."""
        return 2 * self.p99


@dataclass(frozen=True)
class RecountOutcome:
    """``exact`` of ``requests`` have our counts equal to the server's, at its own batch shapes.

    The totals are the server's and those of one-pass replay, as every score is made. Counts are
    called exact only where every request agreed. ``passed_over``: live requests not recounted,
    because their tokens are not known for certain (ik tells only text).
    """

    requests: int
    exact: int
    live_drafted: int
    live_accepted: int
    replay_drafted: int
    replay_accepted: int
    passed_over: int = 0

    @property
    def passed(self) -> bool:
        """Every request equal, and something was drafted."""
        return self.exact == self.requests > 0 and self.live_drafted > 0


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

    ``tokens`` are those after the first; times in ms; ``drafted`` None without a draft.
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


class Objective(StrEnum):
    """A ratio of two sums over requests; more is better."""

    END_TO_END_SPEED = "end_to_end_speed"
    DECODE_SPEED = "decode_speed"
    ACCEPTANCE = "acceptance"
    ACCEPTANCE_LENGTH = "acceptance_length"

    @property
    def unit(self) -> str:
        """What follows the value where it is printed."""
        return _UNITS[self]

    @property
    def columns(self) -> tuple[str, str]:
        """Numerator and denominator: columns of :class:`cook.record.record.PromptFigures`, or
        ``cycles``, since tokens = accepted + cycles."""
        return _COLUMNS[self]

    @property
    def timed(self) -> bool:
        """Whether it is a speed, which no draft has too; the others are counts of drafts."""
        return self.columns[1].endswith("_ms")

    def of(self, figures: Figures) -> float | None:
        """Its value, by category weights where the figures have them; None where it does not exist
        (no draft has no acceptance)."""
        if not figures.tokens:
            return None
        match self:
            case Objective.END_TO_END_SPEED:
                return figures.end_to_end_speed
            case Objective.DECODE_SPEED:
                return figures.decode_speed
            case Objective.ACCEPTANCE:
                weighted = figures.weighted_acceptance_rate
                return weighted if weighted is not None else figures.acceptance_rate
            case Objective.ACCEPTANCE_LENGTH:
                weighted = figures.weighted_acceptance_length
                return weighted if weighted is not None else figures.acceptance_length

    def parts(self, run: PromptRun) -> tuple[float, float] | None:
        """(numerator, denominator) of one request; None where it has none."""
        columns: dict[str, float | None] = {
            "tokens": run.predicted_n - 1,
            "wall_ms": run.wall_ms,
            "decode_ms": run.predicted_ms,
            "drafted": run.draft_n,
            "accepted": run.draft_n_accepted,
            "cycles": run.cycles,
        }
        top, bottom = (columns[name] for name in self.columns)
        return None if top is None or bottom is None else (float(top), float(bottom))

    def why_none(self, figures: Figures) -> str:
        """Why a candidate with these figures has no value."""
        if not figures.tokens:
            return "no reply goes on after its first token"
        if figures.drafted is None:
            return f"no draft has no {self.unit}"
        return "it drafts nothing"


_UNITS = {
    Objective.END_TO_END_SPEED: "t/s end to end",
    Objective.DECODE_SPEED: "t/s decode",
    Objective.ACCEPTANCE: "acceptance",
    Objective.ACCEPTANCE_LENGTH: "tokens a cycle",
}
_COLUMNS = {
    Objective.END_TO_END_SPEED: ("tokens", "wall_ms"),
    Objective.DECODE_SPEED: ("tokens", "decode_ms"),
    Objective.ACCEPTANCE: ("accepted", "drafted"),
    Objective.ACCEPTANCE_LENGTH: ("tokens", "cycles"),
}


SCHEMA_VERSION = 1
REBUILD = "`cook build RECIPE` writes it again"


@dataclass(frozen=True)
class Draft:
    """One draft file. ``memory_bytes`` = weights + KV at the score's context + compute."""

    quant: str
    engine: str
    path: str | None
    key: str
    file_bytes: int | None
    tensor_bytes: int | None
    bpw: float | None
    quality: Quality | None
    quality_reason: str | None
    memory_bytes: int | None
    memory_reason: str | None
    type_counts: dict[str, int]
    """How many tensors have each type, as the engine's log and the file both show."""
    types: tuple[TypeSpan, ...] = ()
    """Types by layer and tensor group, read from the file's header; empty without a file."""
    speed: DraftSpeed | None = None
    speed_reason: str | None = None
    digest: str | None = None
    """``sha256:`` of the file's bytes."""
    reduction: Reduction | None = None
    """What it does without: experts, layers."""
    context: int | None = None
    """Tokens of its own context in a server; None: the target's."""
    after: NgramSettings | None = None
    """What drafts before it does; None where it drafts alone."""
    output: str | None = None
    """Type that the output head of a ready file is tried in; None where it is as it came."""
    device_bytes: int | None = None
    """Of ``memory_bytes`` those on devices: what a limit of `memory_gib` is about where there are
    any."""


@dataclass(frozen=True)
class Serving:
    """How a candidate's server runs, apart from its models and draft settings: to restart it."""

    context: int
    target_args: ModelArgs
    draft_args: ModelArgs
    draft_context: int | None = None
    """Of the draft's own; None: the target's."""


@dataclass(frozen=True)
class CandidateKey:
    """What tells candidates apart; ``draft`` None is no draft, which has no settings either.

    ``ngram`` are those of a draft-free rival, which has no other ``settings``, and whose ``draft``
    is its name and no file's; or of what drafts before a file does.
    """

    engine: str
    draft: str | None = None
    settings: DraftSettings | None = None
    cache_type: str | None = None
    ngram: NgramSettings | None = None

    @property
    def is_file(self) -> bool:
        """Whether a draft file drafts."""
        return self.draft is not None and (self.ngram is None or self.settings is not None)


@dataclass(frozen=True)
class Candidate:
    """(engine, draft, draft settings), or no draft. ``live`` None comes with ``reason``."""

    name: str
    engine: str
    draft: str | None
    """The quant's name, or a draft-free rival's, which has no file; None for no draft."""
    settings: DraftSettings | None
    cache_type: str | None
    live: Figures | None
    reason: str | None
    categories: dict[str, Figures]
    speedup: float | None
    """end_to_end_speed over the best no-draft's on the requests that both were dealt, moved to all
    that no draft was dealt by what the forecasts say (:func:`cook.scoring.compare.paired`)."""
    speedup_interval: Interval | None
    decode_speedup: float | None
    output: OutputCheck | None
    server_peak_rss_bytes: int | None
    command: tuple[str, ...]
    predicted: Prediction | None = None
    counts: RecountOutcome | None = None
    counts_reason: str | None = None
    prompts: PromptFigures | None = None
    """``live``, request by request, as they were dealt."""
    serving: Serving | None = None
    starts: int | None = None
    """Server starts that its live requests came from."""
    log: str | None = None
    """Folder of the first live run's log under ``COOK_HOME/logs``, if it is still there."""
    ngram: NgramSettings | None = None
    """How a draft-free rival drafts, or what drafts before a file does; else None."""
    reference: PromptFigures | None = None
    """``prompts`` of the same candidate on the reference engine build, dealt in the same blocks;
    None where no such build was named."""

    @property
    def key(self) -> CandidateKey:
        return CandidateKey(self.engine, self.draft, self.settings, self.cache_type, self.ngram)


@dataclass(frozen=True)
class ChainFigures:
    """A candidate as forecast under one sampling chain: no draft, or a draft at its best there.

    ``figures`` by the engine's rule, on text that the target wrote under the chain, and
    ``prompts`` the same prompt by prompt; ``rejection`` were drafts verified by rejection
    sampling, None for a greedy chain, where the two rules are one.
    """

    name: str
    key: CandidateKey
    figures: Figures
    prompts: PromptFigures
    rejection: Rejection | None


@dataclass(frozen=True)
class SampledChain:
    """What is forecast on one engine under a sampling chain other than the deployed one.

    No draft comes first; ``candidates`` are empty, with a ``reason``, where nothing could be
    forecast.
    """

    engine: str
    sampling: Sampling
    candidates: tuple[ChainFigures, ...]
    reason: str | None = None


@dataclass(frozen=True)
class Excluded:
    """A candidate that may not win, and why."""

    candidate: str
    reason: str


@dataclass(frozen=True)
class Pick:
    """The winner and its evidence. ``candidate`` None: nothing qualifies.

    ``decided``: at ``confidence`` no other candidate, those included that did not run, is better
    by more than ``margin`` on these prompts. ``leader`` is the best of those that ran, which is the
    pick unless that is a smaller file within the margin. ``rival``: the candidate most likely to
    be better by more, and ``rival_low`` to ``rival_high`` how it compares with the leader (1.05: 5
    % better), at the same confidence; ``seconds_to_decide``: live runs that would decide it, about.
    ``within``: chance of each candidate to be within the margin of the best, by name. ``looks``:
    times that the question was asked, over which the error probability is split.
    """

    candidate: str | None
    sentence: str
    maximize: str
    confidence: float
    margin: float
    value: float | None
    ranking: tuple[str, ...]
    excluded: tuple[Excluded, ...]
    decided: bool = False
    leader: str | None = None
    rival: str | None = None
    rival_low: float | None = None
    rival_high: float | None = None
    seconds_to_decide: float | None = None
    within: dict[str, float] = field(default_factory=dict)
    looks: int = 1
    start_sd: float | None = None
    """Standard deviation of the log figure between starts of one server, its requests included."""


@dataclass(frozen=True)
class Factors:
    """Live over forecast speedups of the drafts that ran on one engine, geometric means: those of
    the others are corrected by them."""

    engine: str
    decode: float
    end_to_end: float
    drafts: int


@dataclass(frozen=True)
class StepRecord:
    """One step as it was run or reused."""

    label: str
    kind: str
    key: str
    state: str
    seconds: float | None
    command: tuple[str, ...]
    error: str | None = None


@dataclass(frozen=True)
class Record:
    """One build or score."""

    schema_version: int
    cook: str
    created: str
    command: tuple[str, ...]
    machine: Machine
    engines: dict[str, EngineIdentity]
    recipe: str
    recipe_sha256: str
    recipe_text: str
    demo: bool
    target: str
    target_bytes: int
    prompts: str
    prompts_sha256: str
    max_tokens: int
    temperature: float
    source_quality: Quality | None
    drafts: tuple[Draft, ...]
    candidates: tuple[Candidate, ...]
    left_out: tuple[Excluded, ...]
    pick: Pick
    warnings: tuple[str, ...]
    steps: tuple[StepRecord, ...]
    disturbed: int = 0
    """Timings during which other programs kept the processor busy."""
    noise: tuple[NoiseFloor, ...] = ()
    imatrix: ImatrixCoverage | None = None
    """What the importance matrix covers; None where this record's quants needed none."""
    factors: tuple[Factors, ...] = ()
    """What forecasts of candidates that did not run are corrected by, an engine each."""
    together: bool | None = None
    """Whether the servers of a block were alive at once; None where nothing ran live."""
    sources: tuple[HubOrigin, ...] = ()
    """Everything that came from the Hub, with its commit."""
    replayed: tuple[ReplayedPrompts, ...] = ()
    """Replayed acceptance of every draft; empty where candidates are scored live only."""
    target_digest: str | None = None
    """``sha256:`` of the target's bytes."""
    target_description: str | None = None
    """What the target's file says of itself."""
    chains: tuple[SampledChain, ...] = ()
    """Forecasts under the sampling chains that the recipe lists next to the deployed one."""
    defaults: dict[str, dict[str, str]] = field(default_factory=dict)
    """What each engine's server does where nothing is said, by its help: flag -> value."""
    slots: tuple[SlotSpeed, ...] = ()
    """Requests in parallel, by slots; empty where the recipe does not ask for it."""

    def candidate(self, name: str) -> Candidate | None:
        return next((c for c in self.candidates if c.name == name), None)

    def draft(self, quant: str | None) -> Draft | None:
        return next((d for d in self.drafts if d.quant == quant), None)


def to_json(record: Record) -> dict[str, Any]:
    """The record as JSON values; ratios are written out next to their parts."""
    document = json_values(record)
    for raw, candidate in zip(document["candidates"], record.candidates, strict=True):
        if candidate.live is not None:
            raw["live"]["acceptance_rate"] = candidate.live.acceptance_rate
            raw["live"]["acceptance_length"] = candidate.live.acceptance_length
    return document


def write_record(record: Record, path: Path) -> None:
    """Whole or not at all."""
    write_versioned(to_json(record), path)


def read_record(path: Path) -> Record:
    """Read a record back; InputError says what is wrong with the file."""
    return read_versioned(path, Record, SCHEMA_VERSION, "record", REBUILD)
