"""From an exception to what the user sees, and the exit status."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from cook.cli.boundary import report
from cook.cli.options import open_output, reset_output
from cook.errors import InputError, StepError
from cook.formats.cursor import MalformedFile


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (InputError("no"), 2, "InputError"),
        (MalformedFile(Path("a.gguf"), "magic at byte 0"), 2, "InputError"),
        (StepError("no"), 1, "StepError"),
        (OSError(errno.ENOSPC, "No space left on device"), 5, "PrerequisiteError"),
        (KeyboardInterrupt(), 130, "Interrupted"),
    ],
)
def test_a_program_reads_one_kind_of_those_documented(
    error: BaseException, status: int, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    reset_output()
    open_output(json=True)
    assert report(error, ["build", "--json"]) == status
    found = json.loads(capsys.readouterr().out)["error"]
    assert (found["kind"], found["exit_code"]) == (kind, status)
