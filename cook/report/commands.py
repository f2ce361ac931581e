"""Commands that a record holds: read by their options, and shown so that they can be run again."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from cook.record.record import Draft, Record, StepRecord

OWN = ("--host", "--port", "--api-key-file")
"""What cook's own server gets beyond how it runs; each user chooses these."""
MEASURING = (
    ("--cache-ram", "0"),
    ("--fit", "off"),  # mainline's; ik's is a switch
    ("--no-log-prefix",),
    ("--no-log-timestamps",),
    ("--verbosity", "4"),  # prints the counters of every kind of speculation
)
"""Flags that a server has so that it can be measured, which no one wants of one that serves: there,
requests that begin alike are to be fast, and the log is to say when. The speed of a request does
not depend on them."""
_CUSTOM = "--custom-q"
_NUMBER = re.compile(r"-(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|-inf|-nan", re.IGNORECASE)
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
    made = (s for s in record.steps if s.kind in ("quantize", "head", "reduce"))
    return next((s for s in made if s.key == draft.key and quantize_command(s)), None)


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
    before = ("", *words)
    return tuple(w for was, w in zip(before, words, strict=False) if not {was, w} & {*OWN})


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
        option = word.startswith("-") and not _NUMBER.fullmatch(word)
        if waiting and not option:
            lines[-1] += f" {quote(word)}"
        else:
            lines.append(quote(word))
        waiting = option
    return lines


def shell(words: Sequence[str], quote: Callable[[str], str] = shlex.quote) -> str:
    """A command over several lines."""
    return " \\\n    ".join(by_option(words, quote))


def script(comment: str, matrices: Sequence[StepRecord], steps: Sequence[StepRecord]) -> str:
    """One bash script of the steps that made importance matrices and quants: the source is named
    once, threads are those of the reader's machine, rules stand one a line."""
    sources = dict.fromkeys(made.source for s in steps if (made := quantize_command(s)))
    names = {word: f"model{n if n > 1 else ''}" for n, word in enumerate(sources, 1)}
    lines = ["#!/usr/bin/env bash", f"# {' '.join(comment.split())}", "set -euo pipefail", ""]
    lines += [f"{name}={shlex.quote(word)}" for word, name in names.items()]
    lines += ['threads="$(nproc)"', ""]
    for step in matrices:
        words = step.command  # a recipe may have its threads once more
        places = {place for place, word in enumerate(words, 1) if word in ("-t", "--threads")}
        lines += ["# the importance matrix", *_script_lines(words, names, places), ""]
    for step in steps:
        last = {len(step.command) - 1} if step.command[-1].isdigit() else set()
        lines += [*_script_lines(step.command, names, last), ""]
    return "\n".join(lines).rstrip("\n")


def _script_lines(
    words: Sequence[str], names: Mapping[str, str], threads: Collection[int]
) -> list[str]:
    """A command's lines, before it a variable for each block of rules.

    ``names``: variables that hold words; ``threads``: places of words that are threads.
    """
    lines: list[str] = []
    quoted: list[str] = []
    blocks = 0
    for place, word in enumerate(words):
        if place and words[place - 1] == _CUSTOM:
            blocks += 1
            name = "custom" if blocks == 1 else f"custom{blocks}"
            lines += [
                f"{name}={shlex.quote(chr(10).join(['', *word.split(','), '']))}",
                f"{name}=$(printf '%s' \"${name}\" | {_JOIN})",
            ]
        else:
            name = "threads" if place in threads else names.get(word, "")
        quoted.append(f'"${name}"' if name else shlex.quote(word))
    texts = iter(quoted)
    return [*lines, shell(words, lambda _: next(texts))]
