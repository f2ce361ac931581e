"""The commands by name, with what the help page says of each.

This table is why ``cook --help`` is cheap: only the module of the command that runs is
imported. ``cook/cli/<name>.py`` holds ``command``, or for a group one function a member.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CommandHelp:
    """``summary`` fits a line of 80 columns; ``members`` is empty for a plain command."""

    summary: str
    members: tuple[str, ...] = ()


# In the order of the help page.
COMMANDS: dict[str, CommandHelp] = {
    "build": CommandHelp("Do everything a recipe asks for, and pick the best draft."),
    "score": CommandHelp("Score drafts against a target, and pick the best."),
    "trace": CommandHelp("Record what a target says, to score drafts on it."),
    "predict": CommandHelp("Predict the speed of drafts from a trace, or from numbers."),
    "search": CommandHelp("Find the best mix of types of a size, never below yours."),
    "plan": CommandHelp("Show what a build would run, why, and what it takes."),
    "run": CommandHelp("Make one step of a plan, for Slurm, GNU parallel, ssh or CI."),
    "sweep": CommandHelp("Run recipes on engines, night after night, and compare."),
    "demo": CommandHelp("Run the whole job on the bundled models."),
    "recipes": CommandHelp(
        "List, show, check, import and export recipes; their schema.",
        ("ls", "show", "check", "import", "export", "schema"),
    ),
    "inspect": CommandHelp("Show what a model, imatrix, trace or base-logits file holds."),
    "report": CommandHelp("Show a record for people: an HTML file, Markdown, plots."),
    "logs": CommandHelp("Show acceptance and speed from llama-server logs."),
    "serve": CommandHelp("Serve the target with the picked draft."),
    "publish": CommandHelp("Upload quants to the Hugging Face Hub, with a model card."),
    "doctor": CommandHelp("Check this machine; say what mends each fault."),
    "store": CommandHelp("What cook keeps: list it, verify it, clear it.", ("ls", "verify", "gc")),
}
