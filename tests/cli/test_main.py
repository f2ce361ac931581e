"""The command line as a whole: registration, help, the error boundary, signals."""

from __future__ import annotations

import inspect
import json
import signal
import subprocess
import sys
from importlib import import_module
from keyword import iskeyword
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
BUG = """\
import sys, cook.cli.doctor
def broken(): raise ZeroDivisionError('seven')
cook.cli.doctor.examine = broken
from cook.cli.main import run
run(sys.argv[1:])
"""
SLOW = """\
import sys, time, cook.cli.doctor
def slow():
    print('ready', flush=True)
    time.sleep(60)
cook.cli.doctor.examine = slow
from cook.cli.main import run
run(sys.argv[1:])
"""
FULL_DISK = """\
import errno, sys, cook.cli.doctor
def full(): raise OSError(errno.ENOSPC, 'No space left on device', '/data/x')
cook.cli.doctor.examine = full
from cook.cli.main import run
run(sys.argv[1:])
"""


@pytest.mark.parametrize("path", PATHS, ids=" ".join)
def test_each_help_page_has_an_example(cook: Any, path: list[str]) -> None:
    done = cook(*path, "--help")
    assert done.status == 0
    assert done.stderr == ""
    assert "Examples:" in done.stdout
    assert f"  cook {' '.join(path)}" in done.stdout


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
def test_nothing_to_do_shows_help(cook: Any, arguments: list[str]) -> None:
    done = cook(*arguments)
    assert done.status == 2
    assert "Commands:" in done.stdout + done.stderr


@pytest.mark.parametrize("path", PATHS, ids=" ".join)
def test_a_usage_error_is_one_json_document(cook: Any, path: list[str]) -> None:
    done = cook(*path, "--json", "--no-such-option")
    assert done.status == 2
    assert json.loads(done.stdout)["error"]["exit_code"] == 2
    assert done.stderr.startswith("error: ")


@pytest.mark.engine
def test_a_home_that_is_a_file_is_no_bug(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    (tmp_path / "home").write_text("a file")
    monkeypatch.setenv("COOK_HOME", str(tmp_path / "home"))
    assert main(["plan", "demo"]) == 5
    told = capsys.readouterr().err
    assert "Not a directory" in told
    assert "COOK_HOME" in told
    assert "bug" not in told


def test_a_bug_is_told_in_two_lines_and_written_down(cook: Any, check_snapshot: Any) -> None:
    done = cook("doctor", code=BUG)
    check_snapshot(done, "bug")
    (log,) = (cook.directory / "cook-home" / "logs").iterdir()
    assert "ZeroDivisionError: seven" in log.read_text()
    assert "Traceback" in log.read_text()
    assert log.stat().st_mode & 0o777 == 0o600


def test_a_bug_is_json_too(cook: Any) -> None:
    done = cook("doctor", "--json", code=BUG)
    assert done.status == 3
    error = json.loads(done.stdout)["error"]
    assert error["kind"] == "Bug"
    assert Path(error["log"]).is_file()


def test_a_bug_without_a_home_to_write_to(cook: Any, tmp_path: Path) -> None:
    (tmp_path / "cook-home").write_text("a file, not a directory")
    done = cook("doctor", code=BUG)
    assert done.status == 3
    assert "Traceback" not in done.stderr


def test_a_full_disk_is_no_bug(cook: Any) -> None:
    done = cook("doctor", code=FULL_DISK)
    assert done.status == 5
    assert "No space left on device" in done.stderr
    assert "hint: free some space" in done.stderr


@pytest.mark.parametrize("arguments", ["--version", "--help", "recipes ls", "store ls --json"])
@pytest.mark.parametrize("ends", [">&-", ">&- <&-", "| head -1 >/dev/null"])
def test_a_stdout_that_nobody_reads_is_no_bug(cook: Any, arguments: str, ends: str) -> None:
    command = f"set -o pipefail; {sys.executable} -m cook {arguments} {ends}"
    done = subprocess.run(
        ["bash", "-c", command], env=cook.environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "bug" not in done.stderr
    assert "Traceback" not in done.stderr


def test_a_closed_stderr_changes_no_status(cook: Any) -> None:
    command = f"{sys.executable} -m cook biuld 2>&-"
    done = subprocess.run(
        ["bash", "-c", command], env=cook.environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (2, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("arguments", ["--version", "recipes ls", "store ls --json"])
def test_a_full_stdout_is_told_as_such(cook: Any, arguments: str) -> None:
    command = f"{sys.executable} -m cook {arguments} > /dev/full"
    done = subprocess.run(
        ["bash", "-c", command], env=cook.environment, capture_output=True, text=True, check=False
    )
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


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_a_module_with_a_documented_function(name: str) -> None:
    module = import_module(f"cook.cli.{name}")
    for member in MEMBERS.get(name, ("command",)):
        function = getattr(module, f"{member}_" if iskeyword(member) else member)
        told = inspect.getdoc(function) or ""
        assert "Examples:" in told, member
        example = f"cook {name} {member}" if name in MEMBERS else f"cook {name}"
        assert example in told
