"""The record: everything one build or score found out, as one versioned document.

Every ratio keeps its numerator and denominator, every figure its unit in its name, and what
was not measured is ``None`` with a reason beside it.
"""

from __future__ import annotations

import json
import os
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cook.engines.base import DraftSettings, EngineIdentity, ModelArgs
from cook.errors import InputError
from cook.provenance import HubOrigin, Machine
from cook.report.coverage import ImatrixCoverage
from cook.report.draft_speed import DraftSpeed
from cook.report.type_map import TypeSpan

SCHEMA_VERSION = 1
MAX_BYTES = 256 << 20


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


@dataclass(frozen=True)
class Figures:
    """What the server counted over a set of requests.

    ``decode_speed`` is tokens after the first per second of decoding; ``end_to_end_speed`` the
    same tokens per second from request to last token, prefill of target and draft included.
    Both are token-weighted (sum of tokens over sum of time), by category weight.
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
    decode_speed: float
    end_to_end_speed: float
    prompt_ms: float | None = None
    """Prefill, of ``wall_ms``: as the server timed it, or as predicted for both models."""

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

    Compact, so that a later record can be compared prompt by prompt. ``tokens`` are those after
    the first; times in ms, medians over repeats; ``drafted`` None where nothing was drafted.
    """

    ids: tuple[str, ...]
    categories: tuple[str, ...]
    tokens: tuple[int, ...]
    decode_ms: tuple[float, ...]
    wall_ms: tuple[float, ...]
    drafted: tuple[int | None, ...]
    accepted: tuple[int | None, ...]


@dataclass(frozen=True)
class Control:
    """What batch width alone does to the target, no draft loaded (``cook.steps.control``).

    ``flips`` of ``positions`` tokens change in batches of ``width``; ``p50``, ``p99`` and
    ``largest`` are differences of the emitted token's log-probability, nats.
    """

    width: int
    positions: int
    flips: int
    p50: float
    p99: float
    largest: float
    largest_flip: float | None


@dataclass(frozen=True)
class CountCheck:
    """Live requests recounted: ``exact`` of ``requests`` at the server's own batch shapes.

    The totals are the server's and those of one-pass replay, by which candidates are scored.
    Counts are called exact only where every request agreed. ``passed_over``: live requests whose
    tokens are not known for certain (ik tells only text), which were not recounted.
    """

    requests: int
    exact: int
    live_drafted: int
    live_accepted: int
    replay_drafted: int
    replay_accepted: int
    passed_over: int = 0


@dataclass(frozen=True)
class NoiseFloor:
    """What two measurements of one file differ by on ``engine``.

    ``speed``: share, at ``confidence``, from ``passes`` of timing; ``acceptance``: signed
    difference of one draft replayed in two batch shapes, a fraction. None: not measured.
    """

    engine: str
    speed: float | None
    passes: int | None
    confidence: float
    acceptance: float | None


@dataclass(frozen=True)
class OutputCheck:
    """Replies compared token by token with the baseline's.

    ``without_draft`` of the differences also come about in the target alone at that batch width;
    ``without_draft_tried`` were tried.
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
    control: Control | None = None


@dataclass(frozen=True)
class DepthCount:
    """Tokens ``drafted`` at ``depth`` (1 is the first of a draft), ``accepted`` of these."""

    depth: int
    drafted: int
    accepted: int


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
    """What replay and measured times say of a candidate, over the prompts it is reported on.

    ``off_by`` splits into ``off_by_tokens`` (tokens a step, that is acceptance) and time a step:
    (1 + off_by) = (1 + off_by_tokens) * live time a step / predicted time a step, prefill apart.

    ``*_s``: where the decode time goes, in seconds over all replies. ``probability_best`` among
    all predicted candidates, by resampling the prompts that the finalists were chosen on.
    """

    figures: Figures
    verify_s: float
    draft_s: float
    mirror_s: float
    sample_s: float
    overhead_s: float
    probability_best: float | None
    off_by: float | None
    """predicted / live end-to-end speed - 1, where it ran live."""
    off_by_interval: Interval | None
    off_by_tokens: float | None = None
    """predicted / live tokens a verification step - 1."""
    decode_off_by: float | None = None
    """predicted / live decode speed - 1."""
    by_depth: tuple[DepthCount, ...] = ()
    categories: dict[str, Figures] = field(default_factory=dict)
    prompts: PromptFigures | None = None
    """``figures``, prompt by prompt."""
    rejection: Rejection | None = None
    """The other rule of verification, where the target samples; the engines have none of it."""


@dataclass(frozen=True)
class Serving:
    """How a candidate's server runs, beside its models and draft settings: to start it again."""

    context: int
    target_args: ModelArgs
    draft_args: ModelArgs


@dataclass(frozen=True)
class Candidate:
    """(engine, draft, draft settings), or no draft. ``live`` None comes with ``reason``."""

    name: str
    engine: str
    draft: str | None
    """The quant's name; None for no draft."""
    settings: DraftSettings | None
    cache_type: str | None
    live: Figures | None
    reason: str | None
    categories: dict[str, Figures]
    speedup: float | None
    """end_to_end_speed over the best no-draft's."""
    speedup_interval: Interval | None
    decode_speedup: float | None
    output: OutputCheck | None
    server_peak_rss_bytes: int | None
    command: tuple[str, ...]
    predicted: Prediction | None = None
    counts: CountCheck | None = None
    counts_reason: str | None = None
    prompts: PromptFigures | None = None
    """``live``, prompt by prompt."""
    serving: Serving | None = None


@dataclass(frozen=True)
class Excluded:
    """A candidate that may not win, and why."""

    candidate: str
    reason: str


@dataclass(frozen=True)
class Choice:
    """What was predicted to be best, before anything was confirmed live.

    Chosen on ``prompts`` prompts, other ones than those the figures are reported on. ``margin``:
    what the best rival may gain on the leader at the pick's confidence (None: too few prompts to
    say); the question is ``decided`` when that is at most ``within``. ``confirmed``: the live run
    agrees; None where it did not run.
    """

    candidate: str | None
    prompts: int
    probability: float | None
    margin: float | None
    within: float
    decided: bool
    ties: tuple[str, ...]
    confirmed: bool | None


@dataclass(frozen=True)
class Pick:
    """The winner and its evidence. ``candidate`` None: nothing qualifies.

    ``choice`` is how prediction came to it, where drafts were scored by replay.
    """

    candidate: str | None
    sentence: str
    maximize: str
    confidence: float
    value: float | None
    ranking: tuple[str, ...]
    ties: tuple[str, ...]
    excluded: tuple[Excluded, ...]
    choice: Choice | None = None


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
    sources: tuple[HubOrigin, ...] = ()
    """Everything that came from the Hub, with its commit."""

    def candidate(self, name: str) -> Candidate | None:
        return next((c for c in self.candidates if c.name == name), None)

    def draft(self, quant: str | None) -> Draft | None:
        return next((d for d in self.drafts if d.quant == quant), None)


def to_json(record: Record) -> dict[str, Any]:
    """The record as JSON values; ratios are written out beside their parts."""
    from pydantic import TypeAdapter

    document: dict[str, Any] = TypeAdapter(Record).dump_python(record, mode="json")
    for raw, candidate in zip(document["candidates"], record.candidates, strict=True):
        if candidate.live is not None:
            raw["live"]["acceptance_rate"] = candidate.live.acceptance_rate
            raw["live"]["acceptance_length"] = candidate.live.acceptance_length
    return document


def write_record(record: Record, path: Path) -> None:
    """Write atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    with temporary.open("w", encoding="utf-8") as stream:
        json.dump(to_json(record), stream, indent=1, ensure_ascii=False, allow_nan=False)
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(path)


def read_record(path: Path) -> Record:
    """Read a record back; InputError says what is wrong with the file."""
    from pydantic import TypeAdapter, ValidationError

    try:
        if path.stat().st_size > MAX_BYTES:
            raise InputError(f"{path}: larger than {MAX_BYTES >> 20} MiB, not a cook record")
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    except ValueError as error:
        raise InputError(f"{path}: not JSON: {error}") from None
    version = document.get("schema_version") if isinstance(document, dict) else None
    if version != SCHEMA_VERSION:
        raise InputError(
            f"{path}: record schema version {version!r}, this cook reads {SCHEMA_VERSION}"
        )
    try:
        return TypeAdapter(Record).validate_python(document)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise InputError(f"{path}: {where}: {first['msg']}") from None
