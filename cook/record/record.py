"""The record: everything one build or score found out, as one versioned document.

Every ratio keeps its numerator and denominator, every figure its unit in its name, and what
was not measured is ``None`` with a reason next to it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cook.engines.base import DraftSettings, EngineIdentity, ModelArgs
from cook.engines.ngram_settings import NgramSettings
from cook.formats.reduction import Reduction
from cook.formats.sampling import Sampling
from cook.provenance import HubOrigin, Machine
from cook.record.measured import (
    DraftSpeed,
    Figures,
    ImatrixCoverage,
    Interval,
    NoiseFloor,
    OutputCheck,
    Prediction,
    PromptFigures,
    Quality,
    Rejection,
    ReplayedPrompts,
    SlotSpeed,
    TypeSpan,
)
from cook.record.outcomes import RecountOutcome
from cook.record.versioned import json_values, read_versioned, write_versioned

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
