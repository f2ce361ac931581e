"""``cook demo``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cook.cli.options import EngineOption, JsonOption, QuietOption, WideOption, open_output

if TYPE_CHECKING:
    from cook.build.run import Built


def command(
    engine: EngineOption = None,
    wide: WideOption = False,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Run the whole job on the bundled models: imatrix, quants, PPL, KLD, score, pick.

    The models are small and really trained; they show that the path works, and their numbers
    do not transfer to yours.

    Examples:

      cook demo
      cook demo --json > record.json
    """
    output = open_output(json, quiet)
    from cook.build.answer import answer

    def build_it() -> Built:
        from cook.build.prepare import prepare
        from cook.build.run import build

        return build(prepare("demo", engines=[engine] if engine else (), output=output), output)

    answer({"demo": engine}, build_it, output, wide=wide)
