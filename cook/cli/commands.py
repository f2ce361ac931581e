"""The commands by name, with what the help page says of each.

This table is why ``cook --help`` is cheap: only the module of the command that runs is
imported. ``cook/cli/<name>.py`` holds ``command``, or for a group one function a member.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Command:
    """``summary`` fits a line of 80 columns; ``members`` is empty for a plain command."""

    summary: str
    members: tuple[str, ...] = ()


# In the order of the help page.
COMMANDS: dict[str, Command] = {
    "build": Command("Do everything a recipe asks for, and pick the best draft."),
    "score": Command("Score drafts against a target, live."),
    "plan": Command("Show what a build would run, why, and what it takes."),
    "demo": Command("Run the whole job on the bundled models."),
    "recipes": Command(
        "List, show and check recipes; print the recipe schema.", ("ls", "show", "check", "schema")
    ),
    "inspect": Command("Show what a model, imatrix or base-logits file holds."),
    "doctor": Command("Check this machine; say what mends each fault."),
    "store": Command("What cook keeps: list it, verify it, clear it.", ("ls", "verify", "gc")),
}
