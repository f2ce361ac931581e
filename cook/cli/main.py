"""The ``cook`` command: from a command line to an exit status.

The table of commands is why ``cook --help`` is cheap: only the module of the command that runs is
imported. ``cook/cli/<name>.py`` holds ``command``, or for a group one function a member.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable
from importlib import import_module
from keyword import iskeyword
from typing import Annotated, NoReturn

import typer

from cook import __version__
from cook.cli.options import reset_output, with_output
from cook.signals import end_on_signals

# In the order of the help page.
COMMANDS = {
    "build": "Do everything a recipe asks for, and pick the best draft.",
    "score": "Score drafts against a target, and pick the best.",
    "trace": "Record what a target says, to score drafts on it.",
    "predict": "Predict the speed of drafts from a trace, or from numbers.",
    "search": "Find the best mix of types of a size, never below yours.",
    "plan": "Show what a build would run, why, and what it takes.",
    "run": "Make one step of a plan, for Slurm, GNU parallel, ssh or CI.",
    "sweep": "Run recipes on engines, night after night, and compare.",
    "demo": "Run the whole job on the bundled models.",
    "recipes": "List, show, check, import and export recipes; their schema.",
    "inspect": "Show what a model, imatrix, trace or base-logits file holds.",
    "report": "Show a record for people: an HTML file, Markdown, plots.",
    "logs": "Show acceptance and speed from llama-server logs.",
    "serve": "Serve the target with the picked draft.",
    "publish": "Upload quants to the Hugging Face Hub, with a model card.",
    "doctor": "Check this machine; say what mends each fault.",
    "store": "What cook keeps: list it, verify it, clear it.",
}
"""Command -> what the help page says of it, a line of 80 columns."""
MEMBERS = {
    "recipes": ("ls", "show", "check", "import", "export", "schema"),
    "store": ("ls", "verify", "gc"),
}
"""The commands of each group."""


INTERRUPTED = 130
COMPLETION = "_COOK_COMPLETE"  # the shell asks through this variable what could come next
HELP = {"--help", "-h", "--version", "--show-completion", "--install-completion"}
SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
EPILOG = (
    "Examples:\n"
    "  cook demo                                   the whole job on the bundled models\n"
    "  cook plan recipes/ling-flash-iq1kt.yaml     what a build would do, and why\n"
    "  cook build recipes/ling-flash-iq1kt.yaml    do it, and pick the best draft"
)


def run(arguments: list[str] | None = None) -> NoReturn:
    """Entry point: run the command line, turn its outcome into an exit status, and exit."""
    from cook.output import open_standard_streams, silence

    open_standard_streams()
    words = sys.argv[1:] if arguments is None else arguments
    status = main(words)
    try:
        sys.stdout.flush()
    except BrokenPipeError:  # the reader left: nothing of ours failed
        silence(sys.stdout)
    except OSError as error:
        status = _report(error, words)
        silence(sys.stdout)
    sys.exit(status)


def main(arguments: list[str]) -> int:
    """Run one command line; its exit status."""
    reset_output()
    with end_on_signals():
        first = next((word for word in arguments if not word.startswith("-")), "")
        try:
            # Defaults from the configuration file, where neither help nor completion is asked for.
            if COMPLETION not in os.environ and not HELP & set(arguments):
                from cook import config
                from cook.errors import ConfigError

                try:
                    config.apply()
                except ConfigError:
                    if arguments[:1] != ["doctor"]:  # which has the file's faults as findings
                        raise
            app = build_app(None if COMPLETION in os.environ else first)
            # standalone_mode=False: typer raises instead of printing and exiting on its own.
            status = app(arguments, prog_name="cook", standalone_mode=False)
        except BaseException as error:  # the boundary: everything ends here
            return _report(error, arguments)
        if status == INTERRUPTED:  # typer swallows KeyboardInterrupt and returns this
            return _report(KeyboardInterrupt(), arguments)
        return status if isinstance(status, int) else 0


def build_app(only: str | None = None) -> typer.Typer:
    """The typer application; with ``only``, the other commands are mere names on its help page."""

    def root(
        version: Annotated[
            bool, typer.Option("--version", help="Print cook's version.", show_default=False)
        ] = False,
    ) -> None:
        if version:
            print(f"cook {__version__}")
            raise typer.Exit

    app = _group("Find the best draft quantization for speculative decoding.", root)
    app.info.epilog = _verbatim(EPILOG)
    for name, summary in COMMANDS.items():
        if only not in (None, name):
            app.command(name, help=summary)(_unused)
            continue
        module = import_module(f"cook.cli.{name}")
        if name not in MEMBERS:
            _add(app, name, module.command)
            continue
        group = _group(summary)
        for member in MEMBERS[name]:
            # `import` is no name for a function of Python's.
            _add(group, member, getattr(module, f"{member}_" if iskeyword(member) else member))
        app.add_typer(group, name=name)
    return app


def _add(app: typer.Typer, name: str, function: Callable[..., None]) -> None:
    app.command(name, help=_verbatim(inspect.getdoc(function)))(with_output(function))


def _unused() -> None:
    raise AssertionError("this command was not the one asked for")


def _report(error: BaseException, arguments: list[str]) -> int:
    from cook.cli.boundary import report

    return report(error, arguments)


def _group(help_text: str, callback: object = None) -> typer.Typer:
    return typer.Typer(
        help=help_text,
        callback=callback if callable(callback) else None,
        add_completion=callback is not None,
        context_settings=SETTINGS,
        invoke_without_command=callback is not None,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # plain help: rich would double the cost of a help page
    )


def _verbatim(text: str | None) -> str:
    """Help text whose indented paragraphs (examples) keep their lines.

    The mark is a line of its own holding a backspace, as the help formatter wants it.
    """
    paragraphs = (text or "").split("\n\n")
    return "\n\n".join(
        f"\b\n{p}" if any(line.startswith(" ") for line in p.splitlines()) else p
        for p in paragraphs
    )
