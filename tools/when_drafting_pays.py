"""The page docs/when-drafting-pays.md and its plots, from a record of cook's own.

``python tools/when_drafting_pays.py RECORD.json`` keeps that record, without paths of this machine,
beside the page; ``tools/generate_docs.py`` (`make docs`) makes plots of it and puts its figures
into ``when_drafting_pays.template.md``, and its ``--check`` says when one of them is stale.
``docs/when-drafting-pays.yaml`` is a recipe for such a record, with several slots.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from cook.record.record import Candidate, Record, read_record, write_record
from cook.report.canvas import Plot, Sheet, svg_file
from cook.report.public import public
from cook.report.sections import conditions, lengths

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
RECORD = DOCS / "when-drafting-pays.json"
PAGE = DOCS / "when-drafting-pays.md"
IMAGES = DOCS / "images"
TEMPLATE = Path(__file__).with_suffix(".template.md")
PART_NAMES = (
    ("verify_s", "the target verifies"),
    ("draft_s", "the draft drafts"),
    ("mirror_s", "the draft mirrors the verification"),
    ("sample_s", "sampling"),
)


@dataclass(frozen=True)
class Cycle:
    """One candidate's cycle as predicted: what it yields, and what it must yield to pay.

    ``tokens`` a cycle; ``needed``: its time in single tokens of the target alone; ``parts`` of that
    time, in the same unit.
    """

    n_max: int
    tokens: float
    needed: float
    parts: tuple[float, ...]


def cycles_of(record: Record, draft: str) -> list[Cycle]:
    """Of ``draft`` at every length, in order; times as shares of a token without a draft."""
    bare = next(c for c in record.candidates if c.draft is None and c.predicted is not None)
    assert bare.predicted is not None, "chosen so"
    one_s = bare.predicted.figures.decode_ms / bare.predicted.figures.tokens / 1000
    found = []
    for candidate in record.candidates:
        predicted, settings = candidate.predicted, candidate.settings
        if candidate.draft != draft or predicted is None or settings is None or settings.p_min:
            continue
        cycles = predicted.figures.cycles
        if cycles:
            parts = tuple(getattr(predicted, name) / cycles / one_s for name, _ in PART_NAMES)
            yielded = predicted.figures.tokens / cycles
            found.append(Cycle(settings.n_max, yielded, sum(parts), parts))
    return sorted(found, key=lambda cycle: cycle.n_max)


def shown_draft(record: Record) -> str:
    """The pick's draft, or else the fastest that was predicted."""
    winner = next((c for c in record.candidates if c.name == record.pick.candidate), None)
    if winner is not None and winner.draft is not None:
        return winner.draft
    drafting = [c for c in record.candidates if c.draft is not None and c.predicted is not None]
    return max(drafting, key=_speed).draft or ""


def _speed(candidate: Candidate) -> float:
    return (candidate.predicted.figures.decode_speed or 0.0) if candidate.predicted else 0.0


def balance(cycles: list[Cycle], draft: str) -> Plot:
    """What a cycle yields and what it costs, in tokens, by draft length."""

    def draw(sheet: Sheet) -> None:
        axes = sheet.axes("draft length (tokens drafted a cycle at most)", "tokens a cycle")
        sheet.line(axes, 0, [(c.n_max, c.tokens) for c in cycles], "it yields", strong=True)
        sheet.line(axes, 1, [(c.n_max, c.needed) for c in cycles], "it must yield to pay")
        axes.set_ylim(0, None)
        sheet.legend(axes)

    alt = (
        f"{draft}: tokens that a cycle yields, and must yield to pay, by draft length: "
        + "; ".join(f"{c.n_max}: {c.tokens:.2f} and {c.needed:.2f}" for c in cycles)
    )
    return Plot("balance", "What a cycle yields, and what it costs", alt + ".", draw)


def spent(cycles: list[Cycle], draft: str) -> Plot:
    """Where the time of a cycle goes, in tokens of the target alone."""

    def draw(sheet: Sheet) -> None:
        axes = sheet.axes("draft length", "time of a cycle, in single tokens", grid="y")
        below = [0.0] * len(cycles)
        for index, (_, name) in enumerate(PART_NAMES):
            heights = [max(c.parts[index], 0.0) for c in cycles]
            axes.bar(
                [str(c.n_max) for c in cycles],
                heights,
                bottom=below,
                color=sheet.series(index)[0],
                label=name,
            )
            below = [b + h for b, h in zip(below, heights, strict=True)]
        sheet.legend(axes, columns=2)

    alt = f"{draft}: time of a cycle by part, in single tokens of the target: " + "; ".join(
        f"{c.n_max}: " + ", ".join(f"{p:.2f}" for p in c.parts) for c in cycles
    )
    return Plot("spent", "Where a cycle's time goes", alt + ".", draw, height=380)


def plots(record: Record) -> dict[str, Plot]:
    """By the name of its file."""
    draft = shown_draft(record)
    cycles = cycles_of(record, draft)
    found = {"balance": balance(cycles, draft), "spent": spent(cycles, draft)}
    for section in (lengths.section, conditions.acceptance, conditions.in_parallel):
        made = section(record)
        found |= {b.name: b for b in made.blocks if isinstance(b, Plot)}
    return found


def page(record: Record) -> str:
    """The text, with the figures of ``record`` in it."""
    draft = shown_draft(record)
    cycles = cycles_of(record, draft)
    best = max(cycles, key=lambda c: c.tokens / c.needed)
    # At the other end of the lengths than the best.
    other = cycles[-1] if best is not cycles[-1] else cycles[0]
    drawn = plots(record)
    rows = "\n".join(
        f"| {c.n_max} | {c.tokens:.2f} | {c.needed:.2f} | {c.tokens / c.needed:.2f} | "
        + " | ".join(f"{part:.2f}" for part in c.parts)
        + " |"
        for c in cycles
    )
    answers = conditions.answers(record.slots or ())
    slots = "\n".join(f"- {one}" for one in answers or ["this run was of one slot."])
    return TEMPLATE.read_text(encoding="utf-8").format(
        draft=draft,
        best=best.n_max,
        best_yield=f"{best.tokens:.2f}",
        best_need=f"{best.needed:.2f}",
        best_gain=f"{best.tokens / best.needed:.2f}",
        other=other.n_max,
        other_yield=f"{other.tokens:.2f}",
        other_need=f"{other.needed:.2f}",
        rows=rows,
        parts=" | ".join(name for _, name in PART_NAMES),
        rule="|---:" * (4 + len(PART_NAMES)) + "|",
        slots=slots,
        recipe=record.recipe,
        processor=record.machine.processor,
        engine=", ".join(e.build for e in record.engines.values()),
        category=_image(drawn, "category"),
        lengths=_image(drawn, "lengths"),
        parallel=_image(drawn, "slots"),
        balance=_image(drawn, "balance"),
        spent=_image(drawn, "spent"),
    )


def _image(drawn: dict[str, Plot], name: str) -> str:
    """The plot on the page; nothing where the record has nothing for it."""
    if name not in drawn:
        return ""
    return f"![{drawn[name].alt}](images/pays-{name}.svg)"


def files() -> dict[Path, str]:
    """The page and its plots, each with the text it should have."""
    record = read_record(RECORD)
    found = {PAGE: page(record)}
    for name, plot in plots(record).items():
        found[IMAGES / f"pays-{name}.svg"] = svg_file(plot) + "\n"
    return found


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("usage: python tools/when_drafting_pays.py RECORD.json", file=sys.stderr)
        return 2
    write_record(public(read_record(Path(arguments[0]))), RECORD)
    print(f"wrote {RECORD.relative_to(ROOT)}; now `make docs`", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
