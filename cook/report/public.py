"""A record as others may see it: files by their names, no path of the machine that made it.

A path is of no use on another machine, and says who made the record. What starts at the root is
replaced wherever it stands, in commands, in messages and in the recipe's text; names that a recipe
gave relative to itself stay.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from cook.paths import cook_home
from cook.record.record import Record
from cook.record.search_record import SearchRecord
from cook.report.commands import quantize_command, quantize_step

R = TypeVar("R", Record, SearchRecord)

NAMES_NOTE = "Files stand by their names, without the paths of the machine that made this record."

_END = r"\s/\"'`,;:()\[\]{}<>|="
_PATH = re.compile(rf"(?<![\w/.~)%-])/(?:[^{_END}]+/)+[^{_END}]*")
_HOMES = ("home", "Users")


def public(record: Record, names: Mapping[str, str] | None = None) -> Record:
    """``record`` with the name of each file for its path; ``names`` gives paths other names."""
    commands = (*(c.command for c in record.candidates), *(s.command for s in record.steps))
    paths = (record.target, *(d.path or "" for d in record.drafts), *record.command)
    known = _whole_paths(word for words in (paths, *commands) for word in words)
    for draft in record.drafts:
        # A quant that cook made is called after itself: in the store all have one name.
        step = quantize_step(record, draft)
        made = quantize_command(step) if step else None
        if made is not None:
            known |= {path: f"{draft.quant}.gguf" for path in (made.output, draft.path) if path}
    return _shortened(record, _namer({**known, **(names or {})}))


def public_search(record: SearchRecord) -> SearchRecord:
    """The same of a search."""
    return _shortened(record, _namer(_whole_paths((record.target, *record.command))))


def _whole_paths(words: Iterable[str]) -> dict[str, str]:
    """The names of those that are a whole path, whatever characters it has."""
    return {word: _name(word) for word in words if word.startswith("/")}


def _shortened(record: R, names: Callable[[str], str]) -> R:
    found: R = _mapped(record, names)
    if not record.command:
        return found
    program, *rest = record.command
    # Python's own word for `python -m cook`, else the installed script.
    own = PurePosixPath(program).name in ("__main__.py", "cook")
    command = ("cook" if own else names(program), *map(names, rest))
    return replace(found, command=command)


def _name(path: str) -> str:
    """The last part; a home directory is a tilde."""
    parts = PurePosixPath(path).parts
    if len(parts) == 3 and parts[1] in _HOMES:
        return "~"
    return parts[-1] if len(parts) > 1 else path


def _namer(known: Mapping[str, str]) -> Callable[[str], str]:
    """Turns a text into one that names files: ``known`` paths first, then all that look like one.

    Folders of known paths are found in a text even where they hold spaces or brackets.
    """
    named = {**known, str(Path.home()): "~", str(cook_home()): "$COOK_HOME"}
    folders = {str(parent) for path in known for parent in PurePosixPath(path).parents}
    folders |= {str(Path.home()), str(cook_home())}
    longest = sorted((f for f in folders if len(Path(f).parts) > 2), key=len, reverse=True)
    paths = sorted((p for p in known if len(Path(p).parts) > 2), key=len, reverse=True)
    whole = _any(paths, r"(?![\w/.-])")
    inside = _any(longest, rf"/(?:[^{_END}]+/)*(?=[^{_END}])")
    folder = _any(longest, rf"(?![\w.-]|/[^{_END}])/?")

    def names(text: str) -> str:
        if "/" not in text:
            return text
        text = text.replace("file:///", "/")
        if text in named:
            return named[text]
        text = whole.sub(lambda m: named[m[0]], text)
        text = folder.sub(lambda m: named.get(m[0].rstrip("/")) or _name(m[0]), text)
        return _PATH.sub(lambda m: _name(m[0]), inside.sub("", text))

    return names


def _any(texts: list[str], after: str) -> re.Pattern[str]:
    """Finds any of ``texts`` that is no part of a longer path; nothing where there is none."""
    every = "|".join(map(re.escape, texts)) or r"(?!)"
    return re.compile(rf"(?<![\w/])(?:{every}){after}")


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    """``value`` with every text in it changed, keys and enumerations apart."""
    if isinstance(value, Enum):
        return value
    if isinstance(value, str):
        return change(value)
    if isinstance(value, tuple):
        return tuple(_mapped(item, change) for item in value)
    if isinstance(value, dict):
        return {key: _mapped(item, change) for key, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return replace(
            value, **{f.name: _mapped(getattr(value, f.name), change) for f in fields(value)}
        )
    return value
