"""``cook publish``."""

from __future__ import annotations

from cook.cli import options as opt
from cook.output import Output


def command(
    out: Output,
    record: str = opt.argument(
        "RECORD", "Record file, or NAME or NAME@DATE of a recipe built here."
    ),
    repo: str = opt.argument("REPO_ID", "Hub repository: org/name."),
    quant: list[str] | None = opt.option(
        "--quant", "Only this quant; may be repeated.", metavar="NAME"
    ),
    base_model: str | None = opt.option(
        "--base-model", "The unquantized model; absent: as the recipe says.", metavar="ORG/NAME"
    ),
    license: str | None = opt.option(
        "--license", "The base model's licence, as its card has it: mit ...", metavar="ID"
    ),
    name: str | None = opt.option(
        "--name", "Start of the file names; absent: REPO_ID less -GGUF.", metavar="NAME"
    ),
    public: bool = opt.flag("--public", "Make a new repository public."),
    replace_card: bool = opt.flag("--replace-card", "Replace a card that cook did not write."),
    dry_run: bool = opt.flag("--dry-run", "Print the card and the files; send nothing.", "-n"),
) -> None:
    """Upload quants to the Hugging Face Hub, with model card, recipe and record.

    A new repository is private unless --public. The login is the Hub client's own
    (`hf auth login` or HF_TOKEN). An interrupted upload goes on where it stopped.

    Examples:

      cook publish demo me/Demo-GGUF --dry-run
      cook publish ling-flash-iq1kt me/Ling-flash-2.0-GGUF --quant IQ1_KT --license mit
      cook publish record.json me/Ling-flash-2.0-GGUF --base-model inclusionAI/Ling-flash-2.0
    """
    from cook.hub.upload import PublishRequest, pack, publish, show_package, show_published
    from cook.record.find import changed_meaning, find_record
    from cook.record.record import read_record

    path = find_record(record)
    found = read_record(path)
    if (changed := changed_meaning(path, found)) is not None:
        out.warn(changed)
    package = pack(found, PublishRequest(repo, tuple(quant or ()), name, base_model, license))
    for warning in package.warnings:
        out.warn(warning)
    if dry_run:
        show_package(package, out, public)
    else:
        show_published(publish(package, out, public=public, replace_card=replace_card), out)
