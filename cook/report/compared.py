"""Which figures a report compares: live or predicted, at which settings, in which order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Literal

from cook.record.measured import Figures, OutputCheck, PromptFigures
from cook.record.objective import Objective
from cook.record.record import Candidate, Draft, Record
from cook.report.document import Text
from cook.report.plain import clipped

Basis = Literal["live", "predicted"]


@dataclass(frozen=True)
class Scored:
    """A candidate with the figures that it is compared by."""

    candidate: Candidate
    figures: Figures
    draft: str
    """The draft's label, as :func:`draft_label` gives it."""

    @property
    def name(self) -> str:
        return self.candidate.name


def finite(value: float | None) -> float | None:
    """``value``, or None where it is no number: plots and orders take none else."""
    return value if value is not None and isfinite(value) else None


def kind_of(record: Record) -> Basis:
    """The kind of figures that more of the drafting candidates have; live where it is even.

    Live and predicted figures are never mixed in one comparison.
    """
    drafting = [c for c in record.candidates if c.draft is not None]
    live = sum(c.live is not None for c in drafting)
    predicted = sum(c.predicted is not None for c in drafting)
    return "predicted" if predicted > live else "live"


def figures_of(candidate: Candidate, kind: Basis) -> Figures | None:
    """The candidate's figures of that kind."""
    if kind == "live":
        return candidate.live
    return candidate.predicted.figures if candidate.predicted else None


def categories_of(candidate: Candidate, kind: Basis) -> dict[str, Figures]:
    """The same by category."""
    if kind == "live":
        return candidate.categories
    return candidate.predicted.categories if candidate.predicted else {}


def prompts_of(candidate: Candidate, kind: Basis) -> PromptFigures | None:
    """The same by prompt."""
    if kind == "live":
        return candidate.prompts
    return candidate.predicted.prompts if candidate.predicted else None


def scored(record: Record, kind: Basis) -> list[Scored]:
    """Drafting candidates that have figures, in the record's order."""
    found = ((c, figures_of(c, kind)) for c in record.candidates if c.draft is not None)
    return [
        Scored(c, f, draft_label(record, c.draft or "", c.engine))
        for c, f in found
        if f is not None
    ]


def value(figures: Figures, maximize: str) -> float:
    """The figure that the recipe maximizes; -inf where there is none."""
    found = Objective(maximize).of(figures) if maximize in tuple(Objective) else None
    usable = finite(found)
    return usable if usable is not None else float("-inf")


def best_of_each(record: Record, kind: Basis) -> list[Scored]:
    """Each draft at its best setting, best first."""
    best: dict[str, Scored] = {}
    for one in scored(record, kind):
        mine = value(one.figures, record.pick.maximize)
        rival = best.get(one.draft)
        if rival is None or mine > value(rival.figures, record.pick.maximize):
            best[one.draft] = one
    return sorted(best.values(), key=lambda s: -value(s.figures, record.pick.maximize))


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
    every = [s for s in scored(record, kind) if s.figures.acceptance_rate is not None]
    drafts = Counter(setting(record, s.candidate) for s in every)
    if not drafts:
        return "", []
    winner = picked(record)
    own = setting(record, winner) if winner else ""

    def place(name: str) -> tuple[int, bool, int, str]:
        lengths = [
            s.candidate.settings.n_max
            for s in every
            if s.candidate.settings and setting(record, s.candidate) == name
        ]
        return -drafts[name], name != own, min(lengths, default=0), name

    chosen = min(drafts, key=place)
    return chosen, [s for s in every if setting(record, s.candidate) == chosen]


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


def partings(check: OutputCheck) -> list[str]:
    """How the replies that differ from those without a draft part from them."""
    kinds = (
        (check.near_ties, "part at a near tie"),
        (check.material, "at a larger gap"),
        (check.unknown, "unknown"),
    )
    return [f"{count} {what}" for count, what in kinds if count]


def named(names: Iterable[str], most: int = 4, longest: int = 60) -> str:
    """``A, B and 3 more``."""
    every = list(names)
    head = ", ".join(clipped(name, longest) for name in every[:most])
    return head if len(every) <= most else f"{head} and {len(every) - most} more"


def drawn(names: Sequence[str], most: int, best: str | None) -> list[str]:
    """The first ``most`` of ``names``, the pick's in the last one's place where it comes later."""
    first = list(names[:most])
    return [*first[:-1], best] if best in names[most:] and best is not None else first


def not_drawn(names: Sequence[str], shown: Collection[str]) -> list[Text]:
    """A note on those of ``names`` that a plot has no room for."""
    rest = [name for name in names if name not in shown]
    return [Text(f"Not drawn: {named(rest)}.", quiet=True)] if rest else []


HOW: dict[Basis, str] = {"predicted": "as replayed", "live": "measured live"}
"""Where acceptance of a kind comes from."""
