"""The model card of published quants, in the shape that the GGUF community knows.

Front matter that ties them to the base model, the pick, one table of all quants with its
counts, how it was measured, and for each quant the script that makes it again. Reads only the
record and what the publisher adds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote

from cook.record.measured import Figures
from cook.record.record import Candidate, Draft, Record
from cook.report.commands import (
    imatrix_step,
    quantize_command,
    quantize_step,
    script,
    server_command,
    shell,
    value_of,
)
from cook.report.markdown import code, fenced, head, row, text
from cook.report.numbers import counts, divergence, number, perplexity, ratio
from cook.report.public import public

MARK = "<!-- written by cook publish -->"


@dataclass(frozen=True)
class CardFacts:
    """What a card says beyond the record. ``files`` is quant -> file in the repository.

    ``base_model`` is the Hub name of the unquantized model, ``license`` the Hub's word for its
    licence; None where not known. ``imatrix`` is the file's name in the repository, if there.
    """

    title: str
    files: Mapping[str, str]
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
        _table(record, drafts),
        _method(record),
        *(_secret(record, facts, draft) for draft in drafts),
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
            names[draft.path] = facts.files[draft.quant]
        step = quantize_step(record, draft)
        made = quantize_command(step) if step else None
        if step is None or made is None:
            continue
        names[made.output] = PurePosixPath(facts.files[draft.quant]).name
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

    flavours = sorted(
        {record.engines[d.engine].flavour for d in drafts if d.engine in record.engines}
    )
    matter: dict[str, Any] = {}
    if facts.quantized_by:
        matter["quantized_by"] = facts.quantized_by
    matter["pipeline_tag"] = "text-generation"
    if facts.base_model:
        matter["base_model"] = facts.base_model
        matter["base_model_relation"] = "quantized"
    if facts.license:
        matter["license"] = facts.license
    matter["library_name"] = "gguf"
    imatrix = ["imatrix"] if any(_uses_imatrix(record, d) for d in drafts) else []
    matter["tags"] = ["gguf", *imatrix, *map(str, flavours), "speculative-decoding", "cook"]
    found: str = yaml.safe_dump(matter, sort_keys=False, allow_unicode=True, width=1000)
    return f"---\n{found}---"


def _introduction(record: Record, facts: CardFacts) -> str:
    base = facts.base_model
    of = (
        f"[{text(base)}](https://huggingface.co/{quote(base)})"
        if base
        else "a model named in the recipe below"
    )
    engines = " and ".join(f"{e.flavour} {text(e.build)}" for e in record.engines.values())
    told = (
        f"Quantizations of {of} that serve as the draft in speculative decoding, made and "
        f"measured with {engines} by cook {record.cook}."
    )
    if any(str(e.flavour) == "ik_llama.cpp" for e in record.engines.values()):
        told += (
            "\n\nThey need [ik_llama.cpp](https://github.com/ikawrakow/ik_llama.cpp): mainline "
            "llama.cpp does not read its quantization types."
        )
    if record.demo:
        told += (
            "\n\n**These are runs of cook's demonstration models; nothing here says anything of "
            "the real ones.**"
        )
    return told


def _pick(record: Record, facts: CardFacts) -> str:
    if not record.candidates:
        return ""
    told = f"## Pick\n\n{text(record.pick.sentence)}"
    chosen = record.candidate(record.pick.candidate) if record.pick.candidate else None
    if chosen is None or not chosen.command or chosen.draft not in facts.files:
        return told
    return f"{told}\n\n{fenced(shell(server_command(chosen.command)), 'bash')}"


_COLUMNS = (
    ("quant", "left"),
    *((t, "right") for t in ("size (GiB)", "bpw", "PPL", "KLD", "acceptance", "tokens/cycle")),
    ("draft settings", "left"),
    *((title, "right") for title in ("decode t/s", "end-to-end t/s", "vs no draft")),
)
REPLAYED = "~"
"""Before figures that were counted by replay."""


def _table(record: Record, drafts: Sequence[Draft]) -> str:
    best = {draft.quant: _best(record, draft.quant) for draft in drafts}
    rows = [_row(draft, best[draft.quant]) for draft in drafts]
    for candidate in record.candidates:
        if candidate.draft is None and candidate.live is not None:
            rows.append(_cells(candidate.name, *[None] * 7, *_speeds(candidate)))
    told = "\n".join(["## Quants", "", head(_COLUMNS), *rows])
    if record.source_quality is not None:
        told += f"\n\nUnquantized, on the same text: PPL {perplexity(record.source_quality)}."
    if any(_counted(candidate)[1] for candidate in best.values()):
        told += f"\n\n{REPLAYED} counted by replaying the target's own tokens, not in a live run."
    return told


def _row(draft: Draft, best: Candidate | None) -> str:
    figures, mark = _counted(best)
    rate = number(figures.acceptance_rate, ".2%") if figures else None
    length = number(figures.acceptance_length, ".2f") if figures else None
    return _cells(
        draft.quant,
        number(draft.file_bytes / 2**30, ".3f") if draft.file_bytes is not None else None,
        number(draft.bpw, ".3f"),
        perplexity(draft.quality),
        divergence(draft.quality),
        f"{mark}{rate} ({counts(figures)})" if rate else None,
        f"{mark}{length}" if rate and length else None,
        _settings(best),
        *_speeds(best),
    )


def _best(record: Record, quant: str) -> Candidate | None:
    """The fastest live candidate of ``quant``, else the one predicted to be the fastest."""
    mine = [c for c in record.candidates if c.draft == quant]
    mine = [c for c in mine if c.live is not None] or mine
    speeds = [(f.end_to_end_speed, c) for c in mine if (f := _counted(c)[0]) is not None]
    return max(speeds, key=lambda pair: pair[0])[1] if speeds else None


def _counted(candidate: Candidate | None) -> tuple[Figures | None, str]:
    """Live figures, or else the forecast's with the mark of a replay."""
    if candidate is None or candidate.live is not None:
        return (candidate.live if candidate else None), ""
    return (candidate.predicted.figures, REPLAYED) if candidate.predicted else (None, "")


def _settings(candidate: Candidate | None) -> str | None:
    if candidate is None or candidate.settings is None:
        return None
    found = candidate.settings
    told = f"n_max {found.n_max}, n_min {found.n_min}, p_min {found.p_min:g}"
    return f"{told}, KV {text(candidate.cache_type)}" if candidate.cache_type else told


def _speeds(candidate: Candidate | None) -> tuple[str | None, str | None, str | None]:
    figures, mark = _counted(candidate)
    if candidate is None or figures is None:
        return None, None, None
    decode, whole = figures.decode_speed, figures.end_to_end_speed
    speedup = ratio(candidate.speedup, candidate.speedup_interval)
    return f"{mark}{decode:.2f}", f"{mark}{whole:.2f}", speedup


def _method(record: Record) -> str:
    """The settings without which no figure above means anything."""
    target = PurePosixPath(record.target).name
    lines = []
    if record.candidates:
        lines.append(
            f"acceptance is accepted/drafted tokens against the target {code(target)} "
            f"({record.target_bytes / 2**30:.2f} GiB), prompts {code(record.prompts)} "
            f"(SHA-256 {record.prompts_sha256[:12]}), at most {record.max_tokens} tokens a "
            f"reply, temperature {record.temperature:g}"
        )
        lines.append(
            "speeds are tokens after the first a second; end to end counts the prefill of both "
            "models; vs no draft is the ratio of those, with its interval"
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
        f"{machine.memory_bytes / 2**30:.0f} GiB, {text(devices)}, {record.created[:10]}"
    )
    return "### How it was measured\n\n" + "\n".join(f"- {line}" for line in lines)


def _secret(record: Record, facts: CardFacts, draft: Draft) -> str:
    step = quantize_step(record, draft)
    types = ", ".join(f"{n} x {t}" for t, n in sorted(draft.type_counts.items()))
    gib = f"{draft.file_bytes / 2**30:.3f} GiB" if draft.file_bytes is not None else "?"
    bpw = f" ({draft.bpw:.3f} BPW)" if draft.bpw is not None else ""
    body = [f"## {text(draft.quant)} {gib}{bpw}"]
    if draft.quality is not None:
        body.append(f"PPL = {perplexity(draft.quality)}")
    if step is None:
        body.append("This file was not made by cook; it is here as it was measured.")
        return "\n\n".join(body)
    engine = record.engines.get(draft.engine)
    comment = f"{engine.flavour} {engine.build}" if engine else draft.engine
    inside = [f"Tensors: {text(types)}.", fenced(script(step, comment), "bash")]
    made = imatrix_step(record, step)
    if made is not None:
        inside += ["The importance matrix:", fenced(shell(made.command), "bash")]
    details = "\n\n".join(inside)
    body.append(f"<details>\n\n<summary>Secret recipe</summary>\n\n{details}\n\n</details>")
    return "\n\n".join(body)


def _files(facts: CardFacts) -> str:
    lines = ["## Files", "", "- `recipe.yaml`: cook's recipe, whole: `cook build recipe.yaml`"]
    lines.append("- `record.json`: every figure with its counts, intervals, commands and hashes")
    if facts.imatrix:
        lines.append(f"- {code(facts.imatrix)}: the importance matrix")
    return "\n".join(lines)


def _uses_imatrix(record: Record, draft: Draft) -> bool:
    step = quantize_step(record, draft)
    made = quantize_command(step) if step else None
    return made is not None and made.imatrix is not None


def _cells(*cells: str | None) -> str:
    return row(text(cell) if cell is not None else None for cell in cells)
