"""The model card of published quants, in the shape that the GGUF community knows.

Front matter that ties them to the base model, the pick, the record's warnings, one table of all
quants with its counts, how it was measured, and one script that makes them again. Reads only the
record and what the publisher adds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import quote

from cook.formats.naming import model_stem
from cook.record.record import Candidate, Draft, Record
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
from cook.report.document import figures
from cook.report.markdown import code, fenced, table_text, text
from cook.report.numbers import counts, number, perplexity
from cook.report.public import public
from cook.report.speedups import drafts_at_their_best, speed_notes
from cook.report.table import QUALITY, REPLAYED, quality_cells, speeds_table
from cook.units import short_size

MARK = "<!-- written by cook publish -->"
MOST_WARNINGS = 12


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
    parts = [
        _front_matter(record, facts, drafts),
        f"{MARK}\n\n# {text(facts.title)}",
        _introduction(record, facts),
        _pick(record, facts),
        _warnings(record),
        _table(record, drafts),
        _method(record),
        _making(record, facts, drafts),
        _files(facts),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def published(record: Record, facts: CardFacts) -> Record:
    """``record`` as others may see it, its files called what they are called where they are."""
    names: dict[str, str] = {}
    for draft in record.drafts:
        if draft.quant not in facts.files:
            continue
        if draft.path:
            names[draft.path] = facts.files[draft.quant][0]
        steps = making_steps(record, draft)
        step, made = steps[0] if steps else None, quantize_command(steps[0]) if steps else None
        if step is None or made is None:
            continue
        name = f"{model_stem(Path(facts.files[draft.quant][0]))}.gguf"  # of all shards
        if len(steps) > 1 and (less := quantize_command(steps[-1])) is not None:
            names[less.output] = name
            name = f"{facts.title}-{draft.quant.partition(' ')[0]}.gguf"  # the whole quant's
            names[less.source] = name
        names[made.output] = name
        if PurePosixPath(made.source).name == "model.gguf":  # converted here
            names[made.source] = f"{facts.title}-BF16.gguf"
        matrix = imatrix_step(record, step)
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
    return f"---\n{found}---"


def _introduction(record: Record, facts: CardFacts) -> str:
    base = facts.base_model
    of = (
        f"[{text(base)}](https://huggingface.co/{quote(base)})"
        if base
        else "a model named in the recipe below"
    )
    engines = " and ".join(f"{e.flavour} {text(e.build)}" for e in record.engines.values())
    words = (
        f"Quantizations of {of} that serve as the draft in speculative decoding, made and "
        f"measured with {engines} by cook {record.cook}."
    )
    if any(str(e.flavour) == "ik_llama.cpp" for e in record.engines.values()):
        words += (
            "\n\nThey need [ik_llama.cpp](https://github.com/ikawrakow/ik_llama.cpp): mainline "
            "llama.cpp does not read its quantization types."
        )
    if record.demo:
        words += (
            "\n\n**These are runs of cook's demonstration models; nothing here says anything of "
            "the real ones.**"
        )
    return words


def _pick(record: Record, facts: CardFacts) -> str:
    if not record.candidates:
        return ""
    pick, chosen = f"## Pick\n\n{text(record.pick.sentence)}", picked(record)
    if chosen is None or not chosen.command or chosen.draft not in facts.files:
        return pick
    return f"{pick}\n\n{fenced(shell(server_command(chosen.command)), 'bash')}"


def _warnings(record: Record) -> str:
    """What the record warns of, and steps that failed: a reader of the card has no report."""
    every = [f"{s.label} failed: {s.error}" for s in record.steps if s.error is not None]
    every += record.warnings
    if not every:
        return ""
    lines = [f"- {text(line)}" for line in every[:MOST_WARNINGS]]
    if len(every) > MOST_WARNINGS:
        lines.append(f"- and {len(every) - MOST_WARNINGS} more in `record.json`")
    return "## Warnings\n\n" + "\n".join(lines)


def _table(record: Record, drafts: Sequence[Draft]) -> str:
    """A row a quant at its best draft length, and no draft of every engine."""
    best = {row.candidate.draft: row.candidate for row in drafts_at_their_best(record)}
    kind = kind_of(record)
    chosen, every = at_common_setting(record, kind)  # acceptance falls with the draft's length
    counted = {one.candidate.draft: one.figures for one in every}
    acceptance = f"acceptance at {chosen}" if chosen else "acceptance"
    quality = ("quant", "size", *QUALITY)
    speeds = speeds_table(record, record.candidates)
    speeds_of = {name: cells for name, *cells in speeds.rows}
    speed_titles = [title for title, _ in speeds.columns[1:]]
    titles = (*quality, acceptance, "best draft length", *speed_titles)
    rows = []
    for draft in drafts:
        candidate, found = best.get(draft.quant), counted.get(draft.quant)
        rate = number(found.acceptance_rate, ".1%") if found else None
        rows.append(
            (
                draft.quant,
                short_size(draft.file_bytes),
                *quality_cells(draft),
                f"{'' if kind == 'live' else REPLAYED}{rate} ({counts(found)})" if rate else None,
                _settings(candidate),
                *(speeds_of[candidate.name] if candidate else [None] * len(speed_titles)),
            )
        )
    for bare in (c for c in record.candidates if c.draft is None):
        rows.append((bare.name, *[None] * 6, *speeds_of[bare.name]))
    table = figures(titles, rows, title=None, words=("figures",))
    parts = ["## Quants", table_text(table if record.candidates else table.only(quality))]
    if record.source_quality is not None:
        parts.append(f"Unquantized, on the same text: PPL {perplexity(record.source_quality)}.")
    if record.candidates:
        parts.append(text(" ".join(f"{note}." for note in speed_notes(record))))
    if kind == "predicted" and counted.keys() & {draft.quant for draft in drafts}:
        parts.append(f"{REPLAYED} counted by replaying the target's own tokens, not in a live run.")
    return "\n\n".join(part for part in parts if part)


def _settings(candidate: Candidate | None) -> str | None:
    """Draft length, and what else is set."""
    if candidate is None or candidate.settings is None:
        return None
    found = candidate.settings
    words = str(found.n_max)
    words += f", n_min {found.n_min}" if found.n_min else ""
    words += f", p_min {found.p_min:g}" if found.p_min else ""
    return words + (f", KV {candidate.cache_type}" if candidate.cache_type else "")


def _method(record: Record) -> str:
    """The settings without which no figure above means anything."""
    target = PurePosixPath(record.target).name
    lines = []
    if record.candidates:
        lines.append(
            f"acceptance is accepted/drafted tokens against the target {code(target)} "
            f"({short_size(record.target_bytes)}), prompts {code(record.prompts)} "
            f"(SHA-256 {record.prompts_sha256[:12]}), at most {record.max_tokens} tokens a "
            f"reply, temperature {record.temperature:g}"
        )
        lines.append(
            "speeds are tokens after the first a second; end to end counts the prefill of both "
            "models; a speedup is the end-to-end t/s over no draft's"
        )
    with_quality = next((d.quality for d in record.drafts if d.quality), None)
    if with_quality is not None:
        lines.append(
            f"PPL over {with_quality.chunks} chunks of {with_quality.context} tokens, ± standard "
            "error; KLD from the unquantized model's logits, in nats"
        )
    machine = record.machine
    devices = ", ".join(machine.accelerators) or "no accelerator"
    lines.append(
        f"measured on {text(machine.processor)}, {machine.cores} cores, "
        f"{short_size(machine.memory_bytes)}, {text(devices)}, {record.created[:10]}"
    )
    return "### How it was measured\n\n" + "\n".join(f"- {line}" for line in lines)


def _making(record: Record, facts: CardFacts, drafts: Sequence[Draft]) -> str:
    """One script that makes every file again, and what each consists of."""
    made = [(d, step) for d in drafts for step in making_steps(record, d)]
    lines = []
    for draft in drafts:
        types = ", ".join(f"{n} x {t}" for t, n in sorted(draft.type_counts.items()))
        files = facts.files[draft.quant]
        more = f" (the first of {len(files)}; give it to the engine)" if len(files) > 1 else ""
        line = f"- {code(files[0])}{more}: {text(types) or 'types not known'}"
        if quantize_step(record, draft) is None:
            line += "; not made by cook, here as it was measured"
        lines.append(line)
    parts = ["## How the files were made", "\n".join(lines)]
    if made:
        steps = list(dict.fromkeys(step for _, step in made))
        matrices = [m for step in steps if (m := imatrix_step(record, step)) is not None]
        engines = dict.fromkeys(d.engine for d, _ in made)
        known = [record.engines[name] for name in engines if name in record.engines]
        comment = "with " + " and ".join(f"{e.flavour} {e.build}" for e in known)
        made_again = script(comment, [*dict.fromkeys(matrices)], steps)
        parts.append(
            "<details>\n\n<summary>Secret recipe</summary>\n\n"
            f"{fenced(made_again, 'bash')}\n\n</details>"
        )
    return "\n\n".join(parts)


def _files(facts: CardFacts) -> str:
    lines = [
        "- `recipe.yaml`: cook's recipe, whole: `cook build recipe.yaml`",
        "- `record.json`: every figure with its counts, intervals, commands and hashes",
        *([f"- {code(facts.imatrix)}: the importance matrix"] if facts.imatrix else []),
    ]
    return "## Files\n\n" + "\n".join(lines)
