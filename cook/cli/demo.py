"""``cook demo``."""

from __future__ import annotations

from cook.cli.options import EngineOption, JsonOption, QuietOption, open_output


def command(
    engine: EngineOption = None, json: JsonOption = False, quiet: QuietOption = False
) -> None:
    """Run the whole job on the bundled models: imatrix, quants, PPL, KLD, live score, pick.

    The models are small and really trained; they show that the path works, and their numbers
    do not transfer to yours.

    Examples:

      cook demo
      cook demo --json > record.json
    """
    output = open_output(json, quiet)
    from cook.kitchen import build, raise_for
    from cook.report.show import show
    from cook.steps.prepare import prepare

    built = build(prepare("demo", engine=engine), output)
    show(built, output)
    raise_for(built)
