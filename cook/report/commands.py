"""Commands that a record holds: read by their options, and shown so that they can be run again."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from cook.record.record import Draft, Record, StepRecord

OWN = ("--host", "--port", "--api-key-file")
"""What cook's own server gets beyond how it runs; whoever runs it again chooses these."""
MEASURING = (
    ("--cache-ram", "0"),
    ("--fit", "off"),  # mainline's; ik's is a switch
    ("--no-log-prefix",),
    ("--no-log-timestamps",),
    ("--verbosity", "4"),  # tells the counters of every kind of speculation
)
"""Flags that a server has so that it can be measured, which no one wants of one that serves: there,
requests that begin alike are to be fast, and the log is to tell when. The speed of a request does
not depend on them."""
_CUSTOM = "--custom-q"
# One rule a line reads best; llama-quantize wants them joined by commas.
_JOIN = "sed -Ez 's:\\n+:,:g;s:,$::;s:^,::'"


@dataclass(frozen=True)
class QuantizeCommand:
    """``llama-quantize [options] SOURCE OUTPUT TYPE THREADS``, as a step ran it.

    ``output`` is a temporary name in the store.
    """

    source: str
    output: str
    imatrix: str | None


def quantize_step(record: Record, draft: Draft) -> StepRecord | None:
    """The step that made ``draft``; None for a file that cook was given."""
    made = (s for s in record.steps if s.kind in _MAKING and quantize_command(s))
    return next((s for s in made if s.key == draft.key), None)


_MAKING = ("quantize", "head", "reduce")


def making_steps(record: Record, draft: Draft) -> tuple[StepRecord, ...]:
    """All steps that made ``draft``, in their order: a reduced one is made whole first."""
    last = quantize_step(record, draft)
    if last is None or last.kind != "reduce":
        return (last,) if last is not None else ()
    made = quantize_command(last)
    source = PurePosixPath(made.source) if made else PurePosixPath()
    # In the store a folder is called after its step's key; published, files have their own names.
    made_whole = (
        s
        for s in record.steps
        if s.kind in ("quantize", "head")
        and (whole := quantize_command(s)) is not None
        and (s.key == source.parent.name or whole.output == str(source))
    )
    return (*made_whole, last)


def quantize_command(step: StepRecord) -> QuantizeCommand | None:
    """What ``step`` quantized; None where its command was not recorded."""
    if len(step.command) < 5:
        return None
    *options, source, output, _type, _threads = step.command
    return QuantizeCommand(source, output, value_of(options, "--imatrix"))


def imatrix_step(record: Record, step: StepRecord) -> StepRecord | None:
    """The step that computed the importance matrix which ``step`` was given, if one did."""
    found = quantize_command(step)
    if found is None or found.imatrix is None:
        return None
    return next((s for s in record.steps if s.kind == "imatrix" and s.command), None)


def value_of(words: Sequence[str], option: str) -> str | None:
    """The word after ``option``; None where it is not given."""
    rest = iter(words)
    return next(rest, None) if option in rest else None


def ran_as(words: Sequence[str]) -> tuple[str, ...]:
    """A command as it ran, without the address and the key that cook gave a server."""
    kept: list[str] = []
    rest = iter(words)
    for word in rest:
        if word in OWN:
            next(rest, None)
        else:
            kept.append(word)
    return tuple(kept)


def server_command(words: Sequence[str]) -> tuple[str, ...]:
    """The measured server as it is deployed: :func:`ran_as`, and without what only measures."""
    return deployed(ran_as(words))


def deployed(argv: Sequence[str]) -> tuple[str, ...]:
    """A measured server's command line without :data:`MEASURING`."""
    left = list(argv)
    for words in MEASURING:
        for at in range(len(left) - len(words), 0, -1):
            if tuple(left[at : at + len(words)]) == words:
                del left[at : at + len(words)]
    return tuple(left)


def by_option(words: Sequence[str], quote: Callable[[str], str] = shlex.quote) -> list[str]:
    """The program, then each option with the word after it, and each other word, quoted."""
    lines = [quote(words[0])]
    waiting = False
    for word in words[1:]:
        option = word.startswith("-") and not _is_number(word)
        if waiting and not option:
            lines[-1] += f" {quote(word)}"
        else:
            lines.append(quote(word))
        waiting = option
    return lines


def shell(words: Sequence[str]) -> str:
    """A command over several lines."""
    return _continued(by_option(words))


def script(comment: str, matrices: Sequence[StepRecord], steps: Sequence[StepRecord]) -> str:
    """One bash script of the steps that made importance matrices and quants: the source is named
    once, threads are those of whoever runs it, rules stand one a line."""
    names = _Shared(steps)
    lines = ["#!/usr/bin/env bash", f"# {' '.join(comment.split())}", "set -euo pipefail", ""]
    lines += [*names.lines, 'threads="$(nproc)"', ""]
    for step in matrices:
        lines += ["# the importance matrix", *_command(step.command, names, _imatrix_threads), ""]
    for step in steps:
        lines += _command(step.command, names, _last)
        lines.append("")
    return "\n".join(lines).rstrip("\n")


class _Shared:
    """Variables for the words that all steps have in common: their source."""

    def __init__(self, steps: Sequence[StepRecord]) -> None:
        found = dict.fromkeys(made.source for s in steps if (made := quantize_command(s)))
        names = ["model", *(f"model{i}" for i in range(2, len(found) + 1))]
        self._names = dict(zip(found, names, strict=False))
        self.lines = [f"{name}={shlex.quote(word)}" for word, name in self._names.items()]

    def quoted(self, word: str) -> str:
        name = self._names.get(word)
        return f'"${name}"' if name is not None else shlex.quote(word)


def _last(words: Sequence[str]) -> frozenset[int]:
    """Where llama-quantize has its threads."""
    return frozenset({len(words) - 1}) if words[-1].isdigit() else frozenset()


def _imatrix_threads(words: Sequence[str]) -> frozenset[int]:
    """Where llama-imatrix has its threads; a recipe may have them once more."""
    places = (place for place, word in enumerate(words, 1) if word in ("-t", "--threads"))
    return frozenset(places)


def _command(
    words: Sequence[str], names: _Shared, threads_of: Callable[[Sequence[str]], frozenset[int]]
) -> list[str]:
    """The command's lines, before it a variable for each block of rules."""
    lines: list[str] = []
    quoted: list[str] = []
    threads = threads_of(words)
    blocks = 0
    before = ""
    for place, word in enumerate(words):
        if before == _CUSTOM:
            blocks += 1
            name = "custom" if blocks == 1 else f"custom{blocks}"
            lines += [
                f"{name}={shlex.quote(chr(10).join(['', *word.split(','), '']))}",
                f"{name}=$(printf '%s' \"${name}\" | {_JOIN})",
            ]
            quoted.append(f'"${name}"')
        else:
            quoted.append('"$threads"' if place in threads else names.quoted(word))
        before = word
    texts = iter(quoted)
    lines.append(_continued(by_option(words, lambda _: next(texts))))
    return lines


def _continued(lines: Sequence[str]) -> str:
    return " \\\n    ".join(lines)


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
