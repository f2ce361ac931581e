"""The errors that reach a user, each with its exit code and the line that mends it.

Everything cook raises on purpose derives from :class:`CookError`; one boundary
(``cook.cli.boundary``) turns it into a message on stderr and an exit status. Any other
exception is a bug of ours and exits 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


class CookError(Exception):
    """Base of all expected failures: what is wrong, where, and (``hint``) what mends it."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class StepError(CookError):
    """A step of a build failed: an engine crashed, lied, hung, or wrote something unusable."""

    exit_code = 1

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        log: Path | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.log = log


class InputError(CookError):
    """A file or an argument that the user gave cannot be used (bad GGUF, bad trace, bad option)."""

    exit_code = 2


@dataclass(frozen=True, order=True)
class Problem:
    """One fault in a recipe: where (1-based line and column) and what.

    ``kind`` is ``"recipe"``; ``"file"`` for a file that is not there; or ``"prerequisite"`` where
    the recipe is sound but the engine at hand does not have what it needs: exit 5, not 2.
    """

    file: str
    line: int
    column: int
    message: str
    hint: str | None = None
    severity: str = "error"
    kind: str = "recipe"

    def __str__(self) -> str:
        text = f"{self.file}:{self.line}:{self.column}: {self.severity}: {self.message}"
        return f"{text}\n  hint: {self.hint}" if self.hint else text


class RecipeError(CookError):
    """Every fault found in a recipe, all at once; ``what`` names the kind of file."""

    exit_code = 2
    what = "recipe"

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(
            sorted(problems, key=lambda p: (p.file, p.line, p.column, p.severity, p.message))
        )
        super().__init__("\n".join(str(p) for p in self.problems))


class PipelineError(RecipeError):
    """Every fault found in a pipeline."""

    what = "pipeline"


class ConfigError(RecipeError):
    """Every fault found in the configuration file."""

    what = "configuration"


class InternalError(CookError):
    """An invariant of cook's own does not hold: our bug."""

    exit_code = 3


class GateError(CookError):
    """A gate failed: nothing qualifies, or a regression."""

    exit_code = 4


class PrerequisiteError(CookError):
    """Something cook needs is absent: an engine, a tool of it, a quant type, disk, memory."""

    exit_code = 5


class Interrupted(CookError):
    """The user stopped cook (Ctrl-C or SIGTERM)."""

    exit_code = 130
