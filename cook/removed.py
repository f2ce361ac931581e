"""Options that cook no longer has, each with what to use instead."""

from __future__ import annotations

from collections.abc import Mapping

_PER_PROMPT = "`cook report --list --json` gives the record's path; its `candidates` hold {}"
OPTIONS: Mapping[tuple[str, str], str] = {
    ("report", "--as"): _PER_PROMPT.format("speed and acceptance of each prompt"),
    ("report", "--candidate"): _PER_PROMPT.format("the figures of every one"),
    ("report", "--acceptance-csv"): (
        "the record (its path: `cook report --list --json`) holds the counts in `replayed`; "
        "`cook search` allocates types itself, also `--from-csv`"
    ),
    ("report", "--reference"): "the counts of every replay are in the record, in `replayed`",
}
"""(command, option) -> hint."""


def removed_option(command: str, option: str) -> str | None:
    """What to use instead of ``option`` of ``cook command``; None if there was none."""
    return OPTIONS.get((command, option))
