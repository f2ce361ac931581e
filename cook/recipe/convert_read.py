"""Quants as files of the field say them, one reader a kind of file."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path

from cook.formats.type_table import IK_LLAMA_CPP, LLAMA_CPP
from cook.recipe.convert_command import ForeignQuant, is_quantize, quant_of
from cook.recipe.convert_rules import (
    ForeignRule,
    Notes,
    custom_block,
    custom_q,
    distinct_comments,
    rule_lines,
    tensor_types,
)
from cook.recipe.convert_text import Source, Spanned

_HUB = re.compile(r"https://huggingface\.co/([\w.-]+/[\w.-]+)", re.ASCII)
_MODEL = re.compile(r"^#+\s*Model name:\s*(\S{1,64})\s*$", re.MULTILINE)
_BASE = re.compile(r"^#+\s*Base type:\s*(\w{1,32})\s*$", re.MULTILINE)


class Kind(StrEnum):
    """What is converted from."""

    SCRIPT = "script"
    CUSTOM_Q = "custom-q"
    RECIPE = "recipe"
    TENSOR_TYPE_FILE = "tensor-type-file"


def read_quants(kind: Kind, source: Source, notes: Notes) -> tuple[ForeignQuant, ...]:
    """The quants of ``source``, faults in ``notes``; none where it holds no rules at all."""
    return _READERS[kind](source, name_of(Path(source.file)), notes)


def kind_of(path: Path, text: str) -> Kind:
    """What the file is, by its name, else by what it looks like."""
    if path.suffix in (".sh", ".bash"):
        return Kind.SCRIPT
    if path.suffix == ".recipe":
        return Kind.RECIPE
    if text.startswith("#!") or re.search(r"llama-quantize|^\s*\w+=[\"'$]", text, re.MULTILINE):
        return Kind.SCRIPT
    if re.search(r"^\s*#", text, re.MULTILINE):
        return Kind.RECIPE
    words = text.split()
    if len(words) == 1 and re.search(r"=[A-Za-z0-9_]+,", words[0]):
        return Kind.CUSTOM_Q
    return Kind.TENSOR_TYPE_FILE


def _script(source: Source, name: str, notes: Notes) -> tuple[ForeignQuant, ...]:
    from cook.recipe.convert_bash import parse_script
    from cook.recipe.convert_shell import Shell

    shell = Shell()
    quants: list[ForeignQuant] = []
    calls = 0
    for call in shell.calls(parse_script(source)):
        talks = isinstance(call.words[0], Spanned) and call.words[0].text in ("echo", "ls", "[")
        if talks or not any(map(is_quantize, call.words)):
            continue
        calls += 1
        if (quant := quant_of(source, call, name, notes)) is not None:
            quants.append(quant)
    if calls:
        return _named_apart(quants)
    # Only the block: its rules are those of the variable that holds them.
    blocks = {k: v for k, v in shell.variables.items() if isinstance(v, Spanned) and "=" in v.text}
    block = blocks.get("custom") or (next(iter(blocks.values())) if len(blocks) == 1 else None)
    if block is None:
        return ()
    rules = distinct_comments(custom_block(source, block, notes))
    return (ForeignQuant(name, rules, source.at(block.start), flavour=IK_LLAMA_CPP),)


def _custom_q(source: Source, name: str, notes: Notes) -> tuple[ForeignQuant, ...]:
    rules = tuple(custom_q(source, source.whole.strip(), notes))
    return (ForeignQuant(name, rules, source.at(0), flavour=IK_LLAMA_CPP),)


def _recipe(source: Source, name: str, notes: Notes) -> tuple[ForeignQuant, ...]:
    rules = tuple(rule_lines(source, source.whole, notes))
    base = _BASE.search(source.text)
    found, model = _HUB.search(source.text), _MODEL.search(source.text)
    # The suite's files are called MODEL.AUTHOR-SIZE...: the quant's name need not repeat it.
    short = name_of(Path(source.file)) if model is None else Path(source.file).stem
    return (
        ForeignQuant(
            safe_name(short.removeprefix(f"{model[1]}.")) if model else short,
            rules,
            source.at(0),
            base[1] if base else None,
            _needs(rules),
            source=f"hf://{found[1]}" if found else None,
            model=model[1] if model else None,
        ),
    )


def _tensor_types(source: Source, name: str, notes: Notes) -> tuple[ForeignQuant, ...]:
    rules = tuple(tensor_types(source, source.whole, notes))
    return (ForeignQuant(name, rules, source.at(0), flavour=LLAMA_CPP),)


_READERS = {
    Kind.SCRIPT: _script,
    Kind.CUSTOM_Q: _custom_q,
    Kind.RECIPE: _recipe,
    Kind.TENSOR_TYPE_FILE: _tensor_types,
}


def _needs(rules: Sequence[ForeignRule]) -> str | None:
    """The engine that the types need, if only one has them."""
    from cook.formats.quant_types import by_name

    for flavour in (IK_LLAMA_CPP, LLAMA_CPP):
        if any(by_name(rule.type).engines == {flavour} for rule in rules):
            return flavour
    return None


def _named_apart(quants: Sequence[ForeignQuant]) -> tuple[ForeignQuant, ...]:
    """Several commands of one script are called after what they write."""
    if len(quants) < 2:
        return tuple(quants)
    named, used = [], Counter[str]()
    for quant in quants:
        name = (
            safe_name(Path(quant.output).stem)
            if quant.output
            else safe_name(quant.type or quant.name)
        )
        used[name.lower()] += 1
        number = used[name.lower()]
        named.append(replace(quant, name=name if number == 1 else f"{name[:60]}-{number}"))
    return tuple(named)


def name_of(path: Path) -> str:
    """A name from the file's: ``make-quant-IQ1_KT.sh`` is IQ1_KT."""
    stem = re.sub(r"\.(sh|bash|recipe|txt)$", "", path.name)
    return safe_name(re.sub(r"^(?:make[-_])?quant(?:ize)?[-_]", "", stem) or stem)


def safe_name(text: str) -> str:
    """``text`` as a name: no characters that names lack, at most 64, cut where a part ends."""
    name = re.sub(r"[^A-Za-z0-9._+-]+", "-", text).lstrip("._+-") or "imported"
    if len(name) > 64:
        name = re.sub(r"[._+-][^._+-]*$", "", name[:65]) if re.search(r"[._+-]", name) else name
    return name[:64].rstrip("._+-") or "imported"
