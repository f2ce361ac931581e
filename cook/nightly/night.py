"""A night: what one record says, kept small enough for a line of history.

Everything that a later night is compared with is here, prompt by prompt; everything else stays
in the record. A night belongs to a series: one recipe, asked of one engine, on one machine.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from cook.engines.base import EngineIdentity
from cook.errors import InputError
from cook.record.measured import PromptFigures, ReplayedPrompts
from cook.record.record import Candidate, Record

T = TypeVar("T")
VERSION = 1

Series = tuple[str, str, str, str]
"""What nights must share to be compared: cell, recipe's text, engines' names, machine."""


@dataclass(frozen=True)
class CandidateNight:
    """One candidate over the night's prompts; None where it has no such figure.

    ``tokens`` are those after the first of each reply; times in ms, medians over repeats.
    """

    name: str
    engine: str
    draft: str | None
    """The quant's name; None for no draft."""
    tokens: tuple[int | None, ...]
    decode_ms: tuple[float | None, ...]
    wall_ms: tuple[float | None, ...]
    drafted: tuple[int | None, ...]
    accepted: tuple[int | None, ...]


@dataclass(frozen=True)
class ReplayNight:
    """What a draft accepts of the trace in drafts of ``n_max`` tokens, whether it ran live or not.

    None where it was not replayed: one that left the race was not replayed to the end.
    """

    draft: str
    cache_type: str | None
    n_max: int
    drafted: tuple[int | None, ...]
    accepted: tuple[int | None, ...]

    @property
    def key(self) -> tuple[str, str | None]:
        return self.draft, self.cache_type


@dataclass(frozen=True)
class NightDraft:
    """Quality and size of one draft file. Perplexity and KLD (nats) with standard errors."""

    quant: str
    file_bytes: int | None
    perplexity: float | None
    perplexity_error: float | None
    mean_kld: float | None
    mean_kld_error: float | None
    chunks: int | None
    context: int | None


@dataclass(frozen=True)
class Night:
    """One record in small. ``good`` None: not judged yet; ``cell`` is its place in a pipeline."""

    version: int
    id: str
    created: str
    cell: str
    recipe: str
    recipe_sha256: str
    engines: dict[str, EngineIdentity]
    machine: str
    """Digest of the machine: timings of another are never compared."""
    prompts_sha256: str
    max_tokens: int
    temperature: float
    maximize: str
    pick: str | None
    pick_sentence: str
    disturbed: int
    """Timings during which other programs kept the processor busy."""
    failures: tuple[str, ...]
    regressions: tuple[str, ...]
    good: bool | None
    prompts: tuple[tuple[str, str], ...]
    """(id, category) of each prompt, the order of every column."""
    candidates: tuple[CandidateNight, ...]
    drafts: tuple[NightDraft, ...]
    replays: tuple[ReplayNight, ...] = ()
    """Every draft's replayed acceptance."""
    excluded: tuple[tuple[str, str], ...] = ()
    """(candidate, why it may not win), of those over a limit or without a figure."""
    target_digest: str | None = None
    draft_digests: dict[str, str] = field(default_factory=dict)
    """Quant -> ``sha256:`` of its file."""
    quantized_by: dict[str, str] = field(default_factory=dict)
    """Quant -> the engine that made its file; one that was given is not here."""
    defaults: dict[str, dict[str, str]] = field(default_factory=dict)
    """Engine -> flag -> what its server does where that is not said."""
    said: tuple[str, ...] = ()
    """Flags that the servers of the live runs were given: no default decides there."""

    def plain(self, engine: str) -> CandidateNight | None:
        """The engine's own speed, without a draft."""
        return next((c for c in self.candidates if c.draft is None and c.engine == engine), None)

    def column(self, name: str) -> CandidateNight | None:
        return next((c for c in self.candidates if c.name == name), None)

    def replay(self, key: tuple[str, str | None]) -> ReplayNight | None:
        return next((r for r in self.replays if r.key == key), None)

    def replay_name(self, replay: ReplayNight) -> str:
        """For people; with the cache's type where drafts are replayed with several."""
        several = len({r.cache_type for r in self.replays}) > 1
        return f"{replay.draft} kv={replay.cache_type}" if several else replay.draft

    @property
    def finalists(self) -> tuple[CandidateNight, ...]:
        """Candidates with a draft that ran live."""
        return tuple(c for c in self.candidates if c.draft is not None)

    @property
    def series(self) -> Series:
        return (self.cell, self.recipe_sha256, "+".join(self.engines), self.machine)

    def judged(self, failures: tuple[str, ...], regressions: tuple[str, ...]) -> Night:
        """This night with its verdict: good when nothing failed and nothing got worse."""
        good = not failures and not regressions
        return replace(self, failures=failures, regressions=regressions, good=good)


def night_of(record: Record, cell: str | None = None) -> Night:
    """``record`` as a night of ``cell`` (absent: a name made of its recipe and engine)."""
    prompts: dict[str, str] = {}
    for candidate in record.candidates:
        if candidate.prompts is not None:
            of = candidate.prompts
            timed = (of.decode_ms, of.wall_ms)
            _require_columns(
                candidate.name, of.ids, of.categories, of.tokens, *timed, of.drafted, of.accepted
            )
            pairs = zip(candidate.prompts.ids, candidate.prompts.categories, strict=True)
            prompts |= {prompt: category for prompt, category in pairs if prompt not in prompts}
    for found in record.replayed:
        _require_columns(found.draft, found.ids, found.categories, found.drafted, found.accepted)
        pairs = zip(found.ids, found.categories, strict=True)
        prompts |= {prompt: category for prompt, category in pairs if prompt not in prompts}
    order = tuple(prompts)
    return Night(
        version=VERSION,
        id=uuid.uuid4().hex[:12],
        created=record.created,
        cell=cell or "-".join([record.recipe, *record.engines]),
        recipe=record.recipe,
        recipe_sha256=record.recipe_sha256,
        engines=record.engines,
        machine=record.machine.digest,
        prompts_sha256=record.prompts_sha256,
        max_tokens=record.max_tokens,
        temperature=record.temperature,
        maximize=record.pick.maximize,
        pick=record.pick.candidate,
        pick_sentence=record.pick.sentence,
        disturbed=record.disturbed,
        failures=(),
        regressions=(),
        good=None,
        prompts=tuple(prompts.items()),
        candidates=tuple(
            _column(c, c.prompts, order) for c in record.candidates if c.prompts is not None
        ),
        drafts=tuple(
            NightDraft(
                quant=d.quant,
                file_bytes=d.file_bytes,
                perplexity=d.quality.perplexity if d.quality else None,
                perplexity_error=d.quality.perplexity_error if d.quality else None,
                mean_kld=d.quality.mean_kld if d.quality else None,
                mean_kld_error=d.quality.mean_kld_error if d.quality else None,
                chunks=d.quality.chunks if d.quality else None,
                context=d.quality.context if d.quality else None,
            )
            for d in record.drafts
        ),
        replays=tuple(_replay(found, order) for found in record.replayed),
        excluded=tuple((e.candidate, e.reason) for e in record.pick.excluded),
        target_digest=record.target_digest,
        draft_digests={d.quant: d.digest for d in record.drafts if d.digest is not None},
        # A given file is its own key.
        quantized_by={d.quant: d.engine for d in record.drafts if d.key != d.digest},
        defaults=record.defaults,
        said=tuple(sorted({w for c in record.candidates for w in c.command if w.startswith("--")})),
    )


def _replay(found: ReplayedPrompts, order: tuple[str, ...]) -> ReplayNight:
    rows = _rows(found.ids, order)
    return ReplayNight(
        draft=found.draft,
        cache_type=found.cache_type,
        n_max=found.n_max,
        drafted=_at(rows, found.drafted),
        accepted=_at(rows, found.accepted),
    )


def _column(candidate: Candidate, found: PromptFigures, order: tuple[str, ...]) -> CandidateNight:
    rows = _rows(found.ids, order)
    return CandidateNight(
        name=candidate.name,
        engine=candidate.engine,
        draft=candidate.draft,
        tokens=_at(rows, found.tokens),
        decode_ms=_at(rows, found.decode_ms),
        wall_ms=_at(rows, found.wall_ms),
        drafted=_at(rows, found.drafted),
        accepted=_at(rows, found.accepted),
    )


def _rows(ids: tuple[str, ...], order: tuple[str, ...]) -> list[int | None]:
    """Where each prompt of ``order`` stands among ``ids``."""
    place = {prompt: index for index, prompt in enumerate(ids)}
    return [place.get(prompt) for prompt in order]


def _at(rows: Sequence[int | None], values: Sequence[T | None]) -> tuple[T | None, ...]:
    return tuple(None if row is None else values[row] for row in rows)


def _require_columns(name: str, ids: tuple[str, ...], *columns: tuple[object, ...]) -> None:
    if {len(c) for c in columns} != {len(ids)} or len(set(ids)) != len(ids):
        raise InputError(f"{name}: figures per prompt whose columns do not fit each other")
