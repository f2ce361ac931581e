"""The bash that makes a quant again, as this community shows it on its model cards."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import PurePosixPath

from cook.record.record import Draft, Record, StepRecord

_CUSTOM = "--custom-q"
# One rule a line reads best; llama-quantize wants them joined by commas.
_JOIN = "sed -Ez 's:\\n+:,:g;s:,$::;s:^,::'"


def quantize_step(record: Record, draft: Draft) -> StepRecord | None:
    """The step that made ``draft``; None for a file that cook was given."""
    steps = (s for s in record.steps if s.kind == "quantize" and s.command)
    return next((s for s in steps if s.key == draft.key), None)


def imatrix_step(record: Record, step: StepRecord) -> StepRecord | None:
    """The step that computed the importance matrix which ``step`` was given, if one did."""
    if imatrix_path(step) is None:
        return None
    return next((s for s in record.steps if s.kind == "imatrix" and s.command), None)


def imatrix_path(step: StepRecord) -> str | None:
    """The importance matrix of a quantize step, as a path on the machine that ran it."""
    words = step.command
    return words[words.index("--imatrix") + 1] if "--imatrix" in words[:-1] else None


def source_path(step: StepRecord) -> str:
    """What a quantize step read: the fourth word from the end (IN OUT TYPE THREADS)."""
    return step.command[-4]


def script(step: StepRecord, names: Mapping[str, str], comment: str) -> str:
    """``step``'s command as a script; ``names`` gives paths of that machine their public names."""
    lines = ["#!/usr/bin/env bash", f"# {' '.join(comment.split())}", ""]
    words: list[str] = []
    blocks = 0
    for index, word in enumerate(step.command):
        if index and step.command[index - 1] == _CUSTOM:
            blocks += 1
            variable = "custom" if blocks == 1 else f"custom{blocks}"
            rules = "\n".join(["", *word.split(","), ""])
            lines += [
                f"{variable}={shlex.quote(rules)}",
                f"{variable}=$(printf '%s' \"${variable}\" | {_JOIN})",
                "",
            ]
            words.append(f'"${variable}"')
        else:
            words.append(shlex.quote(public(word, names)))
    return "\n".join([*lines, _over_lines(words)])


def line(words: Sequence[str], names: Mapping[str, str]) -> str:
    """A command over several lines; ``names`` as for :func:`script`."""
    return _over_lines([shlex.quote(public(word, names)) for word in words])


def public(word: str, names: Mapping[str, str]) -> str:
    """``word``, or what to call the file that it is the path of."""
    if word in names:
        return names[word]
    return PurePosixPath(word).name if word.startswith("/") else word


def _over_lines(words: Sequence[str]) -> str:
    """Shell words, each option and what follows it on a line of its own."""
    lines = [words[0]]
    for before, word in pairwise(words):
        if before.startswith("-") and not word.startswith("-") and before is not words[0]:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return " \\\n    ".join(lines)
