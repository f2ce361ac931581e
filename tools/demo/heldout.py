"""Prompts and texts for scoring, cut from modules that training never saw."""

from __future__ import annotations

import ast
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from tools.demo.corpus import FOCUS, Module, renaming, split_module

_SHORT, _LONG = 1_800, 5_400  # characters; three make about one token


@dataclass(frozen=True)
class Prompt:
    """One line of prompts.jsonl."""

    id: str
    category: str
    prompt: str


def write_texts(work: Path, data: Path, rng: random.Random) -> dict[str, int]:
    """Writes the calibration and evaluation texts and both prompt sets into `data`."""
    documents = json.loads((work / "documents.json").read_text(encoding="utf-8"))
    held = [Module(**m) for m in json.loads((work / "held-out.json").read_text(encoding="utf-8"))]
    focused = [module for module in held if module.package in FOCUS]
    scored = len(focused) * 3 // 4
    data.mkdir(exist_ok=True)
    written = {
        "calibration.txt": _join(rng.sample(documents["focus"], 200), 240_000),
        "evaluation.txt": _join(documents["evaluation"], 120_000),
        "prompts.jsonl": _lines(prompts(focused[:scored], 7, rng)),
        "prompts-calibration.jsonl": _lines(prompts(focused[scored:], 3, rng)),
    }
    for name, text in written.items():
        (data / name).write_text(text, encoding="utf-8")
    return {name: len(text) for name, text in written.items()}


def _join(documents: list[str], size: int) -> str:
    text = ""
    for document in documents:
        if len(text) + len(document) < size:
            text += document + "\n"
    return text


def _lines(found: list[Prompt]) -> str:
    return "".join(json.dumps(vars(prompt)) + "\n" for prompt in found)


def prompts(modules: list[Module], each: int, rng: random.Random) -> list[Prompt]:
    """`each` prompts a category, from as many different modules as there are.

    They end with a visible character: a space belongs to the token after it.
    """
    result = []
    for category, cut in CATEGORIES.items():
        order = rng.sample(modules, len(modules))
        per_module = [islice(cut(module, rng), 3) for module in order]
        texts = [text for turn in zip(*map(_padded, per_module), strict=True) for text in turn]
        chosen = [text for text in texts if text][: each + (category == "continue-file") * 3]
        result += [
            Prompt(f"{category}-{number:02}", category, text.rstrip())
            for number, text in enumerate(chosen, 1)
        ]
    return result


def _padded(found: Iterator[str]) -> list[str]:
    return [*found, "", "", ""][:3]


def _functions(module: Module, longest: int) -> Iterator[tuple[str, ast.FunctionDef]]:
    for piece in split_module(module):
        node = ast.parse(piece).body[0]
        if isinstance(node, ast.FunctionDef) and ast.get_docstring(node) and len(piece) < longest:
            yield piece, node


def _function_body(module: Module, rng: random.Random) -> Iterator[str]:
    for piece, node in _functions(module, 4_000):
        if len(node.body) > 2:
            yield _head(piece, node.body[0].end_lineno or 1)


def _docstring(module: Module, rng: random.Random) -> Iterator[str]:
    for piece, node in _functions(module, 3_999):
        opening = _head(piece, node.body[0].lineno - 1)
        first = piece.split("\n")[node.body[0].lineno - 1]
        if '"""' in first and len(piece) > 500:
            yield f"{opening}{first}\n"


def _class(module: Module, rng: random.Random) -> Iterator[str]:
    for piece in split_module(module):
        node = ast.parse(piece).body[0]
        if isinstance(node, ast.ClassDef) and len(piece) > 600:
            for child in node.body[1:3]:
                if isinstance(child, ast.FunctionDef) and child.lineno > 3:
                    yield _head(piece, child.body[0].lineno - 1)[-_SHORT:]


def _tests(module: Module, rng: random.Random) -> Iterator[str]:
    for piece, node in _functions(module, 1_500):
        if not node.name.startswith("_"):
            yield f"{piece.rstrip()}\n\n\ndef test_{node.name}():"


def _copy(module: Module, rng: random.Random) -> Iterator[str]:
    for piece, _ in _functions(module, 2_500):
        if len(piece) > 400:
            yield f"# Original:\n{piece.strip()}\n\n# The same code again:"


def _copy_long(module: Module, rng: random.Random) -> Iterator[str]:
    """More than a thousand tokens to copy: whole definitions of one file."""
    pieces: list[str] = []
    for piece in split_module(module):
        pieces.append(piece.strip())
        if sum(map(len, pieces)) > 3_200:
            break
    code = "\n\n".join(pieces)
    if 3_200 < len(code) < 6_000:
        yield f"# Original:\n{code}\n\n# The same code again:"


def _rename(module: Module, rng: random.Random) -> Iterator[str]:
    for piece, _ in _functions(module, 2_000):
        change = renaming(piece, rng)
        if change:
            old, new = change
            title = f"# The same code with {old} renamed to {new}:"
            yield f"# Original:\n{piece.strip()}\n\n{title}"


def _literal(module: Module, rng: random.Random) -> Iterator[str]:
    lines = module.text.split("\n")
    for node in ast.walk(ast.parse(module.text)):
        if isinstance(node, ast.Dict | ast.List | ast.Tuple) and node.end_lineno:
            length = node.end_lineno - node.lineno
            if length >= 5:
                middle = node.lineno + length // 2
                start = max(0, middle - 25)
                yield "\n".join(lines[start:middle]) + "\n"


def _prose(module: Module, rng: random.Random) -> Iterator[str]:
    for piece, node in _functions(module, 6_000):
        text = ast.get_docstring(node) or ""
        if len(text) > 700:
            half = piece.find(". ", len(piece) // 4) + 1
            if 200 < half < _SHORT:
                yield piece[:half]


def _continue(module: Module, rng: random.Random) -> Iterator[str]:
    """The file's own first thousand or two thousand tokens, cut at a line's end."""
    if len(module.text) > 8_000:
        cut = module.text.rfind("\n", 0, rng.randrange(3_300, _LONG)) + 1
        yield module.text[:cut]


CATEGORIES: dict[str, Callable[[Module, random.Random], Iterator[str]]] = {
    "function-body": _function_body,
    "docstring": _docstring,
    "class": _class,
    "tests": _tests,
    "copy": _copy,
    "copy-long": _copy_long,
    "rename": _rename,
    "prose": _prose,
    "literal": _literal,
    "continue-file": _continue,
}


def _head(text: str, lines: int) -> str:
    return "\n".join(text.split("\n")[:lines]) + "\n"
