"""A night: what one record says, kept small enough for a line of history.

Everything that a later night is compared with is here, prompt by prompt; everything else stays
in the record. A night belongs to a series: one recipe, asked of one engine, on one machine.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace

from cook.engines.base import EngineIdentity
from cook.errors import InputError
from cook.record.measured import PromptFigures
from cook.record.record import Candidate, Record

VERSION = 1


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
    """One record in small. ``good`` None: not judged yet; ``cell`` names its place in a sweep."""

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

    def plain(self, engine: str) -> CandidateNight | None:
        """The engine's own speed, without a draft."""
        return next((c for c in self.candidates if c.draft is None and c.engine == engine), None)

    def column(self, name: str) -> CandidateNight | None:
        return next((c for c in self.candidates if c.name == name), None)

    @property
    def series(self) -> tuple[str, str, str, str]:
        """What nights must share to be compared: cell, recipe's text, engines' names, machine."""
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
            _require_columns(candidate.name, candidate.prompts)
            pairs = zip(candidate.prompts.ids, candidate.prompts.categories, strict=True)
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
    )


def _column(candidate: Candidate, found: PromptFigures, order: tuple[str, ...]) -> CandidateNight:
    place = {prompt: index for index, prompt in enumerate(found.ids)}
    rows = [place.get(prompt) for prompt in order]
    return CandidateNight(
        name=candidate.name,
        engine=candidate.engine,
        draft=candidate.draft,
        tokens=tuple(None if i is None else found.tokens[i] for i in rows),
        decode_ms=tuple(None if i is None else found.decode_ms[i] for i in rows),
        wall_ms=tuple(None if i is None else found.wall_ms[i] for i in rows),
        drafted=tuple(None if i is None else found.drafted[i] for i in rows),
        accepted=tuple(None if i is None else found.accepted[i] for i in rows),
    )


def _require_columns(name: str, found: PromptFigures) -> None:
    columns = (found.categories, found.tokens, found.decode_ms, found.wall_ms)
    lengths = {len(c) for c in (*columns, found.drafted, found.accepted)}
    if lengths != {len(found.ids)} or len(set(found.ids)) != len(found.ids):
        raise InputError(f"{name}: figures per prompt whose columns do not fit each other")
