"""``cook publish``."""

from __future__ import annotations

from typing import Annotated

import typer

from cook.cli.options import JsonOption, QuietOption, open_output


def command(
    record: Annotated[
        str,
        typer.Argument(
            metavar="RECORD", help="Record file, or NAME or NAME@DATE of a recipe built here."
        ),
    ],
    repo: Annotated[str, typer.Argument(metavar="REPO_ID", help="Hub repository: org/name.")],
    quant: Annotated[
        list[str] | None,
        typer.Option("--quant", metavar="NAME", help="Only this quant; may be repeated."),
    ] = None,
    base_model: Annotated[
        str | None,
        typer.Option(
            "--base-model",
            metavar="ORG/NAME",
            help="The unquantized model; absent: as the recipe says.",
        ),
    ] = None,
    license: Annotated[
        str | None,
        typer.Option(
            "--license", metavar="ID", help="The base model's licence, as its card has it: mit ..."
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--name", metavar="NAME", help="Start of the file names; absent: REPO_ID less -GGUF."
        ),
    ] = None,
    public: Annotated[
        bool,
        typer.Option("--public", help="Make a new repository public.", show_default=False),
    ] = False,
    replace_card: Annotated[
        bool,
        typer.Option(
            "--replace-card", help="Replace a card that cook did not write.", show_default=False
        ),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            "-n",
            help="Print the card and the files; send nothing.",
            show_default=False,
        ),
    ] = False,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Upload quants to the Hugging Face Hub, with model card, recipe and record.

    A new repository is private unless --public. The login is the Hub client's own
    (`hf auth login` or HF_TOKEN). An interrupted upload goes on where it stopped.

    Examples:

      cook publish demo me/Demo-GGUF --dry-run
      cook publish ling-flash-iq1kt me/Ling-flash-2.0-GGUF --quant IQ1_KT --license mit
      cook publish record.json me/Ling-flash-2.0-GGUF --base-model inclusionAI/Ling-flash-2.0
    """
    output = open_output(json, quiet)
    from cook.hub.package import PublishRequest, pack
    from cook.hub.upload import publish, show_package, show_published
    from cook.record.find import change_told, find_record
    from cook.record.record import read_record

    wanted = PublishRequest(repo, tuple(quant or ()), name, base_model, license)
    path = find_record(record)
    found = read_record(path)
    if (changed := change_told(path, found)) is not None:
        output.warn(changed)
    package = pack(found, wanted)
    for warning in package.warnings:
        output.warn(warning)
    if dry_run:
        show_package(package, output, public)
        return
    show_published(publish(package, output, public=public, replace_card=replace_card), output)
