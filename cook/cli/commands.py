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
    "score": Command("Score drafts against a target, and pick the best."),
    "trace": Command("Record what a target says, to score drafts on it."),
    "predict": Command("Predict the speed of drafts from a trace, or from numbers."),
    "plan": Command("Show what a build would run, why, and what it takes."),
    "sweep": Command("Run recipes on engines, night after night, and compare."),
    "demo": Command("Run the whole job on the bundled models."),
    "recipes": Command(
        "List, show, check, import and export recipes; their schema.",
        ("ls", "show", "check", "import", "export", "schema"),
    ),
    "inspect": Command("Show what a model, imatrix, trace or base-logits file holds."),
    "report": Command("Show a record for people: an HTML file, Markdown, plots."),
    "logs": Command("Show acceptance and speed from llama-server logs."),
    "serve": Command("Serve the target with the picked draft."),
    "publish": Command("Upload quants to the Hugging Face Hub, with a model card."),
    "doctor": Command("Check this machine; say what mends each fault."),
    "store": Command("What cook keeps: list it, verify it, clear it.", ("ls", "verify", "gc")),
}
