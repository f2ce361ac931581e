"""A report before it has a form: what the page, the Markdown and the terminal are made from.

All text here is plain and untrusted; each output escapes it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cook.report.canvas import Plot

if TYPE_CHECKING:
    from cook.record.record import Record
    from cook.record.search_record import SearchRecord

Cells = tuple[str | None, ...]


@dataclass(frozen=True)
class Items:
    """A list; ``marked`` items are warnings."""

    items: tuple[str, ...]
    marked: bool = False


@dataclass(frozen=True)
class Code:
    """Commands or YAML, to be copied, folded away under ``title``."""

    text: str
    title: str


@dataclass(frozen=True)
class Table:
    """``columns`` are (title, alignment); None is a missing value.

    ``title`` folds the table away under that line; ``strong`` is the row of the pick.
    """

    columns: tuple[tuple[str, str], ...]
    rows: tuple[Cells, ...]
    title: str | None = None
    strong: int | None = None
    caption: str | None = None

    def only(self, titles: Collection[str]) -> Table:
        """The columns named ``titles``, in the table's order."""
        kept = [place for place, (title, _) in enumerate(self.columns) if title in titles]
        columns = tuple(self.columns[place] for place in kept)
        rows = tuple(tuple(cells[place] for place in kept) for cells in self.rows)
        return replace(self, columns=columns, rows=rows)

    def sentences(self, most: int | None = None) -> list[str]:
        """The first ``most`` rows in words: ``IQ1_S: draft length 4, t/s 12.3``."""
        lines = []
        for name, *cells in self.rows[:most]:
            columns = zip(self.columns[1:], cells, strict=True)
            words = ", ".join(f"{title} {cell}" for (title, _), cell in columns if cell)
            lines.append(f"{name}: {words}")
        return lines

    def alt(self, what: str) -> str:
        """``what`` a picture of the table shows, with its first rows in words."""
        return f"{what}. {'; '.join(self.sentences(8))}."


def figures(
    titles: Sequence[str],
    rows: Iterable[Cells],
    *,
    title: str | None = "Figures",
    pick: str | None = None,
    caption: str | None = None,
    words: Collection[str] = (),
) -> Table:
    """A table of names, and of figures to their right, except in the columns of ``words``.

    ``pick`` names the strong row.
    """
    every = tuple(rows)
    left = {titles[0], *words}
    columns = tuple((text, "left" if text in left else "right") for text in titles)
    strong = next((i for i, row in enumerate(every) if pick is not None and row[0] == pick), None)
    return Table(columns, every, title, strong, caption)


Block = str | Items | Code | Table | Plot
"""A text is a note under something else."""


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

    def in_words(self) -> str:
        """Its title and, line by line, what its tables, lists and paragraphs hold."""
        lines = [f"{self.title}:"]
        for block in self.blocks:
            if isinstance(block, Table):
                lines += block.sentences()
            elif isinstance(block, Items):
                lines += block.items
            elif isinstance(block, str):
                lines.append(block)
        return "\n".join(lines)


@dataclass(frozen=True)
class Fact:
    """A figure of the first screen: ``value`` large, ``note`` small below it."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Headline:
    """The first screen: the pick, why, how sure, and the command that uses it.

    ``evidence``: over what and on which machine; ``answers``: what else there is to know before the
    figures are used.
    """

    title: str
    why: str
    facts: tuple[Fact, ...]
    command: str | None
    command_absent: str | None
    warnings: int
    evidence: tuple[Fact, ...] = ()
    answers: tuple[Fact, ...] = ()


@dataclass(frozen=True)
class Document:
    """A whole report; the first of ``sections`` stands on the first screen."""

    title: str
    subtitle: tuple[str, ...]
    headline: Headline
    sections: tuple[Section, ...]

    @property
    def shown(self) -> tuple[Section, ...]:
        """Every section with something in it, in the order of the page: those folded come last."""
        there = (section for section in self.sections if section.absent is None)
        return tuple(sorted(there, key=lambda section: section.folded))

    @property
    def absent(self) -> tuple[Section, ...]:
        """Sections without data, each with its reason."""
        return tuple(section for section in self.sections if section.absent is not None)

    @property
    def plots(self) -> tuple[Plot, ...]:
        """Every plot, in order."""
        return tuple(b for s in self.shown for b in s.blocks if isinstance(b, Plot))


def subtitle(record: Record | SearchRecord, engines: str) -> tuple[str, ...]:
    """Below a report's title: when, by what and where its figures were taken."""
    machine = record.machine
    parts = (record.created, f"engine {engines}", machine.processor, *machine.accelerators)
    warning = ("demo models: these figures transfer to no other model",) if record.demo else ()
    return tuple(part for part in (*parts, *warning) if part)
