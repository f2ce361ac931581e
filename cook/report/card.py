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

from cook.record.measured import Figures, Quality
from cook.record.record import Candidate, Draft, Record
from cook.report.markdown import fenced, text
from cook.report.secret_recipe import (
    imatrix_path,
    imatrix_step,
    line,
    quantize_step,
    script,
    source_path,
)

MARK = "<!-- written by cook publish -->"
_TAKES_PLACE = ("--port", "--host", "--api-key-file")


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
    drafts = [d for d in record.drafts if d.quant in facts.files]
    parts = [
        _front_matter(record, facts, drafts),
        f"{MARK}\n\n# {text(facts.title)}",
        _introduction(record, facts),
        _pick(record, facts, drafts),
        _table(record, facts, drafts),
        _method(record),
        *(_secret(record, facts, draft) for draft in drafts),
        _files(facts),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


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
    front: str = yaml.safe_dump(matter, sort_keys=False, allow_unicode=True, width=1000)
    return f"---\n{front}---"


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


def _pick(record: Record, facts: CardFacts, drafts: Sequence[Draft]) -> str:
    if not record.candidates:
        return ""
    told = f"## Pick\n\n{text(record.pick.sentence)}"
    chosen = record.candidate(record.pick.candidate) if record.pick.candidate else None
    if chosen is None or not chosen.command or chosen.draft not in facts.files:
        return told
    names = {d.path: facts.files[d.quant] for d in drafts if d.path}
    kept: list[str] = []
    words = iter(chosen.command)
    for word in words:
        if word in _TAKES_PLACE:
            next(words, None)
        else:
            kept.append(word)
    return f"{told}\n\n{fenced(line(kept, names), 'bash')}"


def _table(record: Record, facts: CardFacts, drafts: Sequence[Draft]) -> str:
    head = (
        "| quant | size (GiB) | bpw | PPL | KLD | acceptance | tokens/cycle | draft settings "
        "| decode t/s | end-to-end t/s | vs no draft |"
    )
    rows = ["## Quants", "", head, "|---|" + "---:|" * 6 + "---|" + "---:|" * 3]
    rows += [_row(record, draft) for draft in drafts]
    for candidate in record.candidates:
        if candidate.draft is None and candidate.live is not None:
            rows.append(_cells(text(candidate.name), *[None] * 7, *_speeds(candidate)))
    told = "\n".join(rows)
    if record.source_quality is not None:
        told += f"\n\nUnquantized, on the same text: PPL {_perplexity(record.source_quality)}."
    if "~" in told:
        told += "\n\n~ counted by replaying the target's own tokens, not in a live run."
    return told


def _row(record: Record, draft: Draft) -> str:
    best = _best(record, draft.quant)
    figures, mark = _counted(best)
    rate = length = None
    if figures is not None and figures.acceptance_rate is not None:
        rate = f"{mark}{figures.acceptance_rate:.2%} ({figures.accepted}/{figures.drafted})"
        if figures.acceptance_length is not None:
            length = f"{mark}{figures.acceptance_length:.2f}"
    quality = draft.quality
    return _cells(
        text(draft.quant),
        f"{draft.file_bytes / 2**30:.3f}" if draft.file_bytes is not None else None,
        f"{draft.bpw:.3f}" if draft.bpw is not None else None,
        _perplexity(quality) if quality else None,
        f"{quality.mean_kld:.4f} ± {quality.mean_kld_error or 0:.4f}"
        if quality and quality.mean_kld is not None
        else None,
        rate,
        length,
        _settings(best),
        *_speeds(best),
    )


def _best(record: Record, quant: str) -> Candidate | None:
    """The fastest live candidate of ``quant``, else the one predicted to be the fastest."""
    mine = [c for c in record.candidates if c.draft == quant]
    live = [c for c in mine if c.live is not None]
    if live:
        return max(live, key=lambda c: (c.live.end_to_end_speed or 0.0) if c.live else 0.0)
    guessed = [c for c in mine if c.predicted is not None]
    key = lambda c: c.predicted.figures.end_to_end_speed or 0.0  # noqa: E731
    return max(guessed, key=key) if guessed else None


def _counted(candidate: Candidate | None) -> tuple[Figures | None, str]:
    if candidate is None:
        return None, ""
    if candidate.live is not None:
        return candidate.live, ""
    return (candidate.predicted.figures if candidate.predicted else None), "~"


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
    speedup = None
    if candidate.speedup is not None:
        speedup = f"{candidate.speedup:.2f}x"
        if candidate.speedup_interval is not None:
            found = candidate.speedup_interval
            speedup += f" ({found.low:.2f}-{found.high:.2f})"
    decode, whole = (
        f"{mark}{speed:.2f}" if speed is not None else None
        for speed in (figures.decode_speed, figures.end_to_end_speed)
    )
    return decode, whole, speedup


def _perplexity(quality: Quality) -> str:
    return f"{quality.perplexity:.4f} ± {quality.perplexity_error:.4f}"


def _method(record: Record) -> str:
    """The settings without which no figure above means anything."""
    target = PurePosixPath(record.target).name
    lines = []
    if record.candidates:
        lines.append(
            f"acceptance is accepted/drafted tokens against the target {text(target)} "
            f"({record.target_bytes / 2**30:.2f} GiB), prompts {text(record.prompts)} "
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
    return "### How it was measured\n\n" + "\n".join(f"- {each}" for each in lines)


def _secret(record: Record, facts: CardFacts, draft: Draft) -> str:
    step = quantize_step(record, draft)
    types = ", ".join(f"{n} x {t}" for t, n in sorted(draft.type_counts.items()))
    gib = f"{draft.file_bytes / 2**30:.3f} GiB" if draft.file_bytes is not None else "?"
    bpw = f" ({draft.bpw:.3f} BPW)" if draft.bpw is not None else ""
    body = [f"## {text(draft.quant)} {gib}{bpw}"]
    if draft.quality is not None:
        body.append(f"PPL = {_perplexity(draft.quality)}")
    if step is None:
        body.append("This file was not made by cook; it is here as it was measured.")
        return "\n\n".join(body)
    names = _names(record, facts, draft)
    engine = record.engines.get(draft.engine)
    comment = f"{engine.flavour} {engine.build}" if engine else draft.engine
    inside = [f"Tensors: {text(types)}.", fenced(script(step, names, comment), "bash")]
    made = imatrix_step(record, step)
    if made is not None:
        inside += ["The importance matrix:", fenced(line(made.command, names), "bash")]
    details = "\n\n".join(inside)
    body.append(f"<details>\n\n<summary>Secret recipe</summary>\n\n{details}\n\n</details>")
    return "\n\n".join(body)


def _names(record: Record, facts: CardFacts, draft: Draft) -> dict[str, str]:
    """Public names of the files in the commands that made ``draft``."""
    step = quantize_step(record, draft)
    assert step is not None, "asked only for drafts that cook made"
    source = source_path(step)
    name = PurePosixPath(source).name
    names = {source: f"{facts.title}-BF16.gguf" if name == "model.gguf" else name}
    # In the step's own words the output has a temporary name in the store.
    names[step.command[-3]] = PurePosixPath(facts.files[draft.quant]).name
    matrix = imatrix_path(step)
    if matrix is not None:
        names[matrix] = facts.imatrix or PurePosixPath(matrix).name
        made = imatrix_step(record, step)
        if made is not None and "-o" in made.command[:-1]:
            names[made.command[made.command.index("-o") + 1]] = names[matrix]
    return names


def _files(facts: CardFacts) -> str:
    lines = ["## Files", "", "- `recipe.yaml`: cook's recipe, whole: `cook build recipe.yaml`"]
    lines.append("- `record.json`: every figure with its counts, intervals, commands and hashes")
    if facts.imatrix:
        lines.append(f"- {text(facts.imatrix)}: the importance matrix")
    return "\n".join(lines)


def _uses_imatrix(record: Record, draft: Draft) -> bool:
    step = quantize_step(record, draft)
    return step is not None and imatrix_path(step) is not None


def _cells(*cells: str | None) -> str:
    return "| " + " | ".join("-" if c is None else c for c in cells) + " |"
