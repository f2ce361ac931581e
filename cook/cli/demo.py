"""``cook demo``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cook.cli import options as opt
from cook.output import Output

if TYPE_CHECKING:
    from cook.job.run import Built


def command(out: Output, engine: str | None = opt.ENGINE, wide: bool = opt.WIDE) -> None:
    """Run the whole job on the bundled models: imatrix, quants, PPL, KLD, score, pick.

    The models are small and really trained; they show that the path works, and their numbers
    do not transfer to yours.

    Examples:

      cook demo
      cook demo --json > record.json
    """
    from cook.job.answer import print_build

    def build_it() -> Built:
        from cook.job.prepare import prepare
        from cook.job.run import build

        # Its engines have one thread each.
        return build(prepare("demo", engines=[engine] if engine else (), output=out), out, jobs=2)

    print_build({"demo": engine}, build_it, out, wide=wide)
