"""The command line as a whole: registration, help, the error boundary, signals."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cook.cli.main import COMMANDS, MEMBERS, main

HEAVY = ("numpy", "pydantic", "httpx", "gguf", "rich", "yaml", "huggingface_hub", "llama_cpp")
PATHS = [
    [name, *([member] if member else [])]
    for name in COMMANDS
    for member in MEMBERS.get(name, ("",))
]
DOCTOR = """\
import errno, sys, time, cook.cli.doctor
def examine(): {}
cook.cli.doctor.examine = examine
from cook.cli.main import run
run(sys.argv[1:])
"""
BUG = DOCTOR.format("raise ZeroDivisionError('seven')")
SLOW = DOCTOR.format("print('ready', flush=True); time.sleep(60)")
FULL_DISK = DOCTOR.format("raise OSError(errno.ENOSPC, 'No space left on device', '/data/x')")


@pytest.mark.parametrize("path", PATHS, ids=" ".join)
def test_each_command_has_examples_and_usage_errors_as_json(
    path: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*path, "--help"]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert "Examples:" in said.out
    assert f"  cook {' '.join(path)}" in said.out
    assert main([*path, "--json", "--no-such-option"]) == 2
    said = capsys.readouterr()
    assert json.loads(said.out)["error"]["exit_code"] == 2
    assert said.err.startswith("error: ")


def test_summaries_fit_a_line() -> None:
    for name, summary in COMMANDS.items():
        assert summary.endswith("."), name
        assert len(summary) <= 60, name


def test_help_imports_nothing_heavy(cook: Any) -> None:
    code = (
        "import sys\n"
        "from cook.cli.main import main\n"
        "status = main(['--help'])\n"
        f"print(*(m for m in {HEAVY!r} if m in sys.modules), file=sys.stderr)\n"
        "sys.exit(status)\n"
    )
    done = cook(code=code)
    assert done.status == 0
    assert done.stderr.strip() == ""


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["--help"], "help"),
        (["--version"], "version"),
        (["biuld"], "unknown-command"),
        (["build"], "missing-argument"),
        (["build", "--json"], "missing-argument-json"),
        (["build", "x.yaml", "--jobs", "many"], "bad-number"),
        (["build", "x.yaml", "--unknown"], "unknown-option"),
        (["recipes", "nope"], "unknown-subcommand"),
    ],
)
def test_usage(cook: Any, check_snapshot: Any, arguments: list[str], name: str) -> None:
    check_snapshot(cook(*arguments), name)


@pytest.mark.parametrize("arguments", [[], ["recipes"]])
def test_nothing_to_do_shows_help(arguments: list[str], capsys: Any) -> None:
    assert main(arguments) == 2
    assert "Commands:" in "".join(capsys.readouterr())


@pytest.mark.engine
def test_a_home_that_is_a_file_is_no_bug(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    (tmp_path / "home").write_text("a file")
    monkeypatch.setenv("COOK_HOME", str(tmp_path / "home"))
    assert main(["plan", "demo"]) == 5
    said = capsys.readouterr().err
    assert "Not a directory" in said
    assert "COOK_HOME" in said
    assert "bug" not in said


def test_a_bug_is_said_in_two_lines_and_written_down(cook: Any, check_snapshot: Any) -> None:
    check_snapshot(cook("doctor", code=BUG), "bug")
    (log,) = (cook.directory / "cook-home" / "logs").iterdir()
    assert "ZeroDivisionError: seven" in log.read_text()
    assert "Traceback" in log.read_text()
    assert log.stat().st_mode & 0o777 == 0o600


def test_a_bug_is_json_too_and_needs_no_home(cook: Any) -> None:
    (cook.directory / "cook-home").write_text("a file, not a directory")
    done = cook("doctor", "--json", code=BUG)
    assert done.status == 3
    assert "Traceback" not in done.stderr
    error = json.loads(done.stdout)["error"]
    assert error["kind"] == "Bug"
    assert Path(error["log"]).is_file()


def test_a_full_disk_is_no_bug(cook: Any) -> None:
    done = cook("doctor", code=FULL_DISK)
    assert done.status == 5
    assert "No space left on device" in done.stderr
    assert "hint: free some space" in done.stderr


def shell(cook: Any, line: str) -> subprocess.CompletedProcess[str]:
    """What becomes of ``line`` after `cook` in a shell."""
    command = f"set -o pipefail; {sys.executable} -m cook {line}"
    return subprocess.run(
        ["bash", "-c", command], env=cook.environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("arguments", ["--version", "--help", "recipes ls", "store ls --json"])
@pytest.mark.parametrize("ends", [">&-", ">&- <&-", "| head -1 >/dev/null"])
def test_a_stdout_without_a_reader_is_no_bug(cook: Any, arguments: str, ends: str) -> None:
    done = shell(cook, f"{arguments} {ends}")
    assert done.returncode == 0, done.stderr
    assert "bug" not in done.stderr
    assert "Traceback" not in done.stderr


def test_a_closed_stderr_changes_no_status(cook: Any) -> None:
    done = shell(cook, "biuld 2>&-")
    assert (done.returncode, done.stderr) == (2, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("arguments", ["--version", "recipes ls", "store ls --json"])
def test_a_full_stdout_is_named(cook: Any, arguments: str) -> None:
    done = shell(cook, f"{arguments} > /dev/full")
    assert done.returncode == 5
    assert "No space left on device" in done.stderr
    hint = done.stderr.partition("hint: ")[2]
    assert hint.startswith(("redirect it to a place", "where output goes: ")), done.stderr


@pytest.mark.usefixtures("hangups")
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_signals_end_tidily(cook: Any, name: str) -> None:
    argv = [sys.executable, "-c", SLOW, "doctor", "--json"]
    with subprocess.Popen(
        argv, env=cook.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(getattr(signal, name))
        out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert json.loads(out)["error"]["kind"] == "Interrupted"
    assert err.startswith("error: interrupted\n")
