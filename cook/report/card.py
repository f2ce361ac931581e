"""The model card of published quants, in the shape that the GGUF community knows.

Front matter that ties them to the base model, the pick, the record's warnings, one table of all
quants with its counts, how it was measured, and one script that makes them again. Reads only the
record and what the publisher adds; its words are in ``page/card.md.jinja``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from cook.formats.naming import model_stem
from cook.formats.quant_types import Flavour
from cook.record.record import Draft, Record
from cook.report.commands import (
    imatrix_step,
    making_steps,
    quantize_command,
    quantize_step,
    script,
    server_command,
    shell,
    value_of,
)
from cook.report.compared import at_common_setting, kind_of, picked
from cook.report.document import Cells, Table, figures
from cook.report.public import public
from cook.report.sections.tables import QUALITY, REPLAYED, quality_cells, speeds_table
from cook.report.speedups import drafts_at_their_best, speed_notes
from cook.report.texts import counts
from cook.report.writing import Marked, written
from cook.units import number, short_size

MARK = "<!-- written by cook publish -->"


@dataclass(frozen=True)
class CardFacts:
    """What a card says beyond the record. ``files`` is quant -> files in the repository, of
    which a split one has several.

    ``base_model`` is the Hub name of the unquantized model, ``license`` the Hub's word for its
    licence; None where not known. ``imatrix`` is the file's name in the repository, if there.
    """

    title: str
    files: Mapping[str, tuple[str, ...]]
    base_model: str | None = None
    license: str | None = None
    imatrix: str | None = None
    quantized_by: str | None = None


def card(record: Record, facts: CardFacts) -> str:
    """The whole README.md."""
    record = published(record, facts)
    drafts = [d for d in record.drafts if d.quant in facts.files]
    winner, kind = picked(record), kind_of(record)
    runs = winner is not None and winner.command and winner.draft in facts.files
    _, every = at_common_setting(record, kind)
    made = [(d.engine, step) for d in drafts for step in making_steps(record, d)]
    steps = list(dict.fromkeys(step for _, step in made))  # what makes every file again
    matrices = dict.fromkeys(m for s in steps if (m := imatrix_step(record, s)) is not None)
    engines = [record.engines[e] for e in dict.fromkeys(e for e, _ in made) if e in record.engines]
    comment = "with " + " and ".join(f"{e.flavour} {e.build}" for e in engines)
    failed = [f"{s.label} failed: {s.error}" for s in record.steps if s.error is not None]
    return written(
        "card.md.jinja",
        record=record,
        facts=facts,
        drafts=drafts,
        mark=Marked(MARK),
        front_matter=Marked(_front_matter(record, facts, drafts)),
        engines=[*record.engines.values()],
        ik=Flavour.IK_LLAMA_CPP in {engine.flavour for engine in record.engines.values()},
        command=shell(server_command(winner.command)) if winner is not None and runs else "",
        warnings=[*failed, *record.warnings],
        quants=_quants(record, drafts),
        notes=" ".join(f"{note}." for note in speed_notes(record)) if record.candidates else "",
        replayed=kind == "predicted" and {one.candidate.draft for one in every} & {*facts.files},
        target=PurePosixPath(record.target).name,
        quality=next((d.quality for d in record.drafts if d.quality), None),
        machine=record.machine,
        made={draft.quant for draft in drafts if quantize_step(record, draft) is not None},
        script=script(comment, [*matrices], steps) if steps else "",
    )


def published(record: Record, facts: CardFacts) -> Record:
    """``record`` as others may see it, its files called what they are called where they are."""
    names: dict[str, str] = {}
    for draft in record.drafts:
        if draft.quant not in facts.files:
            continue
        if draft.path:
            names[draft.path] = facts.files[draft.quant][0]
        steps = making_steps(record, draft)
        made = quantize_command(steps[0]) if steps else None
        if made is None:
            continue
        name = f"{model_stem(Path(facts.files[draft.quant][0]))}.gguf"  # of all shards
        if len(steps) > 1 and (less := quantize_command(steps[-1])) is not None:
            names[less.output] = name
            name = f"{facts.title}-{draft.quant.partition(' ')[0]}.gguf"  # the whole quant's
            names[less.source] = name
        names[made.output] = name
        if PurePosixPath(made.source).name == "model.gguf":  # converted here
            names[made.source] = f"{facts.title}-BF16.gguf"
        matrix = imatrix_step(record, steps[0])
        output = value_of(matrix.command, "-o") if matrix else None
        for path in (made.imatrix, output):
            if path and facts.imatrix:
                names[path] = facts.imatrix
    return public(record, names)


def _front_matter(record: Record, facts: CardFacts, drafts: Sequence[Draft]) -> str:
    import yaml

    flavours = {record.engines[d.engine].flavour for d in drafts if d.engine in record.engines}
    made = [quantize_command(step) for d in drafts for step in making_steps(record, d)]
    imatrix = ["imatrix"] if any(one is not None and one.imatrix for one in made) else []
    matter: dict[str, object] = {
        "quantized_by": facts.quantized_by,
        "pipeline_tag": "text-generation",
        "base_model": facts.base_model,
        "base_model_relation": "quantized" if facts.base_model else None,
        "license": facts.license,
        "library_name": "gguf",
        "tags": ["gguf", *imatrix, *sorted(map(str, flavours)), "speculative-decoding", "cook"],
    }
    known = {key: value for key, value in matter.items() if value}
    found: str = yaml.safe_dump(known, sort_keys=False, allow_unicode=True, width=1000)
    return found.rstrip("\n")


def _quants(record: Record, drafts: Sequence[Draft]) -> Table:
    """A row a quant at its best draft length, and no draft of every engine."""
    quality = ("quant", "size", *QUALITY)
    cells = [(d.quant, short_size(d.file_bytes), *quality_cells(d)) for d in drafts]
    if not record.candidates:
        return figures(quality, cells, title=None)
    kind = kind_of(record)
    chosen, every = at_common_setting(record, kind)  # acceptance falls with the draft's length
    counted = {one.candidate.draft: one.figures for one in every}
    speeds = speeds_table(record, record.candidates)
    speeds_of = {name: row for name, *row in speeds.rows}
    best = {row.candidate.draft: row.candidate for row in drafts_at_their_best(record)}
    nothing = [None] * (len(speeds.columns) - 1)
    rows: list[Cells] = []
    for draft, known in zip(drafts, cells, strict=True):
        candidate, found = best.get(draft.quant), counted.get(draft.quant)
        acceptance = None
        if found is not None:
            mark = "" if kind == "live" else REPLAYED
            acceptance = f"{mark}{number(found.acceptance_rate, '.1%')} ({counts(found)})"
        settings = None
        if candidate is not None and (chosen_here := candidate.settings) is not None:
            settings = str(chosen_here.n_max)
            settings += f", n_min {chosen_here.n_min}" if chosen_here.n_min else ""
            settings += f", p_min {chosen_here.p_min:g}" if chosen_here.p_min else ""
            settings += f", KV {candidate.cache_type}" if candidate.cache_type else ""
        own = speeds_of[candidate.name] if candidate else nothing
        rows.append((*known, acceptance, settings, *own))
    bare = (c.name for c in record.candidates if c.draft is None)
    rows += [(name, *[None] * 6, *speeds_of[name]) for name in bare]
    acceptance_title = f"acceptance at {chosen}" if chosen else "acceptance"
    speed_titles = [title for title, _ in speeds.columns[1:]]
    titles = (*quality, acceptance_title, "best draft length", *speed_titles)
    return figures(titles, rows, title=None, words=("figures",))
