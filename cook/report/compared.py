"""Which figures a report compares: live or predicted, at which settings, in which order."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from cook.record.record import Candidate, Draft, Figures, Objective, PromptFigures, Record
from cook.report.texts import named

Basis = Literal["live", "predicted"]


@dataclass(frozen=True)
class Scored:
    """A candidate with its figures of one kind, in all, by category and by prompt."""

    candidate: Candidate
    draft: str
    """The draft's label, as :func:`draft_label` gives it."""
    figures: Figures
    categories: Mapping[str, Figures]
    prompts: PromptFigures | None


def kind_of(record: Record) -> Basis:
    """The kind of figures that more of the drafting candidates have; live where it is even.

    Live and predicted figures are never mixed in one comparison.
    """
    drafting = [c for c in record.candidates if c.draft is not None]
    live = sum(c.live is not None for c in drafting)
    predicted = sum(c.predicted is not None for c in drafting)
    return "predicted" if predicted > live else "live"


def scored_as(record: Record, candidate: Candidate, kind: Basis) -> Scored | None:
    """The candidate with its figures of that kind; None where it has none."""
    draft = draft_label(record, candidate.draft or "no draft", candidate.engine)
    if kind == "live":
        found, categories, prompts = candidate.live, candidate.categories, candidate.prompts
        return Scored(candidate, draft, found, categories, prompts) if found is not None else None
    guess = candidate.predicted
    if guess is None:
        return None
    return Scored(candidate, draft, guess.figures, guess.categories, guess.prompts)


def scored(record: Record, kind: Basis) -> list[Scored]:
    """Drafting candidates that have figures, in the record's order."""
    found = (scored_as(record, c, kind) for c in record.candidates if c.draft is not None)
    return [one for one in found if one is not None]


def best_of_each(record: Record, kind: Basis) -> list[Scored]:
    """Each draft at its best setting by what the recipe maximizes, best first."""
    objective = Objective(record.pick.maximize)
    found = [(objective.of(one.figures), one) for one in scored(record, kind)]
    best: dict[str, Scored] = {}
    for _, one in sorted(found, key=lambda pair: (pair[0] is None, -(pair[0] or 0.0))):
        best.setdefault(one.draft, one)
    return [*best.values()]


def setting(record: Record, candidate: Candidate) -> str:
    """The draft settings without the draft's name: ``draft length 7 kv=q8_0``."""
    if candidate.settings is None:
        return "no draft"
    return f"draft length {candidate.settings.n_max} {other_settings(record, candidate)}".strip()


def other_settings(record: Record, candidate: Candidate) -> str:
    """The settings except the draft length; the cache type only where the record has several."""
    settings = candidate.settings
    several = len({c.cache_type for c in record.candidates if c.draft is not None}) > 1
    parts = [f"n_min={settings.n_min}"] if settings and settings.n_min else []
    parts += [f"p_min={settings.p_min:g}"] if settings and settings.p_min else []
    parts += [f"kv={candidate.cache_type}"] if several and candidate.cache_type else []
    return " ".join(parts)


def at_common_setting(record: Record, kind: Basis) -> tuple[str, list[Scored]]:
    """The setting that most drafts were scored with, and every draft at it.

    Acceptance compares drafts only at the same settings. Among settings that serve as many
    drafts, the pick's own comes first, then the shorter draft.
    """
    settings: dict[str, list[Scored]] = {}
    for one in scored(record, kind):
        if one.figures.acceptance_rate is not None:
            settings.setdefault(setting(record, one.candidate), []).append(one)
    winner = picked(record)
    own = setting(record, winner) if winner else ""

    def place(name: str) -> tuple[int, bool, int, str]:
        found = [one.candidate.settings for one in settings[name]]
        lengths = [one.n_max for one in found if one is not None]
        return -len(found), name != own, min(lengths, default=0), name

    chosen = min(settings, key=place, default="")
    return chosen, settings.get(chosen, [])


def draft_label(record: Record, quant: str, engine: str) -> str:
    """The quant's name, with the engine where the record has several."""
    return f"{quant} ({engine})" if len({d.engine for d in record.drafts}) > 1 else quant


def label_of(record: Record, draft: Draft) -> str:
    """:func:`draft_label` of a draft."""
    return draft_label(record, draft.quant, draft.engine)


def draft_of(record: Record, candidate: Candidate) -> Draft | None:
    """The candidate's draft, on its own engine."""
    mine = [d for d in record.drafts if d.quant == candidate.draft]
    return next((d for d in mine if d.engine == candidate.engine), mine[0] if mine else None)


def order_of(record: Record) -> dict[str, int]:
    """A number for each draft's label, so that it has one colour in every plot."""
    return {label_of(record, draft): index for index, draft in enumerate(record.drafts)}


def picked(record: Record) -> Candidate | None:
    """The pick; None where nothing qualifies."""
    return record.candidate(record.pick.candidate) if record.pick.candidate else None


def picked_draft(record: Record) -> str | None:
    """The label of the pick's draft; None where no draft won or nothing qualifies."""
    winner = picked(record)
    if winner is None or winner.draft is None:
        return None
    return draft_label(record, winner.draft, winner.engine)


def drawn(names: Sequence[str], most: int, best: str | None) -> list[str]:
    """The first ``most`` of ``names``, the pick's in the last one's place where it comes later."""
    first = list(names[:most])
    return [*first[:-1], best] if best in names[most:] and best is not None else first


def not_drawn(names: Sequence[str], shown: Collection[str]) -> list[str]:
    """A note on those of ``names`` that a plot has no room for."""
    rest = [name for name in names if name not in shown]
    return [f"Not drawn: {named(rest)}."] if rest else []
