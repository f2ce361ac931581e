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
        (StepError("no", log=Path("logs/a.log")), 1, "StepError"),
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
    assert found.get("log") == (str(error.log) if isinstance(error, StepError) else None)


def hint_of(error: BaseException, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    reset_output()
    open_output()
    report(error, arguments)
    return capsys.readouterr().err.partition("hint: ")[2].strip()


def test_a_hint_fits_the_file_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A read-only folder of the user's is not COOK_HOME."""
    monkeypatch.setenv("COOK_HOME", str(tmp_path / "home"))
    for code in (errno.EACCES, errno.EROFS, errno.ENOSPC, errno.ENOTDIR):
        other = OSError(code, "no", str(tmp_path / "reports" / "a.html"))
        assert "COOK_HOME" not in hint_of(other, ["report"], capsys)
        for mine in (tmp_path / "home" / "store" / "x", tmp_path):
            assert "COOK_HOME" in hint_of(OSError(code, "no", str(mine)), ["build"], capsys)


def test_what_is_said_to_go_on_does(capsys: pytest.CaptureFixture[str]) -> None:
    same = "the same command again goes on where it stopped"
    assert hint_of(KeyboardInterrupt(), ["build", "r.yaml"], capsys) == same
    assert hint_of(KeyboardInterrupt(), ["search", "r.yaml"], capsys) == same
    fresh = hint_of(KeyboardInterrupt(), ["build", "r.yaml", "--fresh"], capsys)
    assert fresh == "the same command again without --fresh goes on where it stopped"
    assert hint_of(KeyboardInterrupt(), ["report", "r.json"], capsys) == ""
