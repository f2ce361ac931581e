"""A report before it has a form: what HTML and Markdown both are made from.

All text here is plain and untrusted; whoever gives it a form escapes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cook.record.record import Record
from cook.record.search_record import SearchRecord
from cook.report.canvas import Plot


@dataclass(frozen=True)
class Text:
    """A paragraph; ``quiet``: a note under something else."""

    text: str
    quiet: bool = False


@dataclass(frozen=True)
class Items:
    """A list; ``marked`` items are warnings."""

    items: tuple[str, ...]
    marked: bool = False


@dataclass(frozen=True)
class Code:
    """Commands or YAML, to be copied; ``title`` folds it away under that line."""

    text: str
    title: str | None = None


@dataclass(frozen=True)
class Table:
    """``columns`` are (title, alignment); None is a missing value.

    ``title`` folds the table away under that line; ``strong`` is the row of the pick.
    """

    columns: tuple[tuple[str, str], ...]
    rows: tuple[tuple[str | None, ...], ...]
    title: str | None = None
    strong: int | None = None
    caption: str | None = None


def figures(
    titles: Sequence[str],
    rows: Iterable[tuple[str | None, ...]],
    *,
    title: str | None = "Figures",
    pick: str | None = None,
    caption: str | None = None,
) -> Table:
    """A table of names, and of figures to their right; ``pick`` names the strong row."""
    every = tuple(rows)
    columns = tuple((text, "right" if index else "left") for index, text in enumerate(titles))
    strong = next((i for i, row in enumerate(every) if pick is not None and row[0] == pick), None)
    return Table(columns, every, title, strong, caption)


Block = Text | Items | Code | Table | Plot


@dataclass(frozen=True)
class Section:
    """One heading and what stands under it; ``absent``: why there is nothing to show.

    ``folded``: only its heading is in sight until a reader opens it.
    """

    id: str
    title: str
    lead: str = ""
    blocks: tuple[Block, ...] = ()
    absent: str | None = None
    folded: bool = False

    @property
    def half(self) -> bool:
        """Whether it fits next to another: one small plot, and tables only folded away."""
        plots = [b for b in self.blocks if isinstance(b, Plot)]
        wide = any(isinstance(b, Table) and b.title is None for b in self.blocks)
        return len(plots) == 1 and plots[0].width == "half" and not wide


@dataclass(frozen=True)
class Fact:
    """A figure of the first screen: ``value`` large, ``note`` small below it."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Headline:
    """The first screen: the pick, why, how sure, and the command that uses it."""

    title: str
    why: str
    facts: tuple[Fact, ...]
    command: str | None
    command_absent: str | None
    warnings: int


def subtitle(record: Record | SearchRecord, engines: str) -> tuple[str, ...]:
    """Below a report's title: when, by what and where its figures were taken."""
    machine = record.machine
    parts = (record.created, f"engine {engines}", machine.processor, *machine.accelerators)
    warning = ("demo models: these figures transfer to no other model",) if record.demo else ()
    return tuple(part for part in (*parts, *warning) if part)


@dataclass(frozen=True)
class Document:
    """A whole report.

    ``first`` stands on the first screen, next to ``evidence`` (over what, on which machine) and
    ``answers`` (what else there is to know before the figures are used).
    """

    title: str
    subtitle: tuple[str, ...]
    headline: Headline
    evidence: tuple[Fact, ...]
    answers: tuple[Fact, ...]
    first: Section
    sections: tuple[Section, ...]

    @property
    def open(self) -> tuple[Section, ...]:
        """Sections below the first screen that are in sight, in order."""
        return tuple(s for s in self.sections if s.absent is None and not s.folded)

    @property
    def folded(self) -> tuple[Section, ...]:
        """The rest."""
        return tuple(s for s in self.sections if s.absent is None and s.folded)

    @property
    def shown(self) -> tuple[Section, ...]:
        """Every section with something in it, in the order of the page."""
        first = (self.first,) if self.first.absent is None else ()
        return (*first, *self.open, *self.folded)

    @property
    def lone(self) -> frozenset[str]:
        """Half-width sections without a neighbour: their tables stand next to the plot instead."""
        found = {section.id for section in self.folded if section.half}
        waiting: str | None = None
        for section in self.open:
            if section.half and waiting is None:
                waiting = section.id
                continue
            if not section.half and waiting is not None:
                found.add(waiting)
            waiting = None
        return frozenset(found | ({waiting} if waiting else set()))

    @property
    def absent(self) -> tuple[Section, ...]:
        """Sections without data, each with its reason."""
        return tuple(s for s in (self.first, *self.sections) if s.absent is not None)

    @property
    def plots(self) -> tuple[Plot, ...]:
        """Every plot, in order."""
        return tuple(b for s in self.shown for b in s.blocks if isinstance(b, Plot))
