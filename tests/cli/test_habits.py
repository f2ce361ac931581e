"""What every command owes its user: one JSON document, quiet data, no colour where unwanted."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cook.cli.main import COMMANDS, MEMBERS
from tests.terminals import styled_in_terminal

DATA = Path(__file__).resolve().parents[1] / "data"
TENSORS = str(DATA / "ling-flash-2.0.tensors.tsv")
SCRIPT = str(DATA / "make-quant-IQ1_KT-PUFFED.sh")
LOG = str(sorted((DATA / "server_logs").iterdir())[0])

# An invocation of every command that needs no engine and ends within seconds: an answer where it
# can be had so, else an error that every user meets.
INVOCATIONS: dict[str, list[str]] = {
    "build": ["absent.yaml"],
    "score": ["--target", "absent.gguf", "absent-draft.gguf"],
    "trace": ["absent.gguf"],
    "predict": ["absent.trace", "absent.gguf"],
    "search": ["absent.yaml", "--size", "1GiB"],
    "plan": ["absent.yaml"],
    "run": ["0123456789abcdef", "absent.yaml"],
    "sweep": ["demo", "--plan"],
    "demo": ["--engine", "absent"],
    "recipes ls": [],
    "recipes show": ["demo", "--resolved"],
    "recipes check": ["qwen3-coder-30b-iq1kt"],
    "recipes import": [SCRIPT],
    "recipes export": ["ling-flash-iq1kt", "--quant", "IQ1_KT", "--format", "script"],
    "recipes schema": [],
    "inspect": [TENSORS],
    "report": ["absent.json"],
    "logs": [LOG],
    "serve": ["absent.json"],
    "publish": ["absent.json", "org/name"],
    "doctor": [],
    "store ls": [],
    "store verify": [],
    "store gc": [],
}
ANSWERS = ("recipes ls", "recipes show", "recipes schema", "inspect", "logs", "sweep")
COLOUR = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])[;m]")


def arguments(path: str) -> list[str]:
    return [*path.split(), *INVOCATIONS[path]]


def under(cook: Any, **more: str) -> Any:
    """The same ``cook`` with more in its environment."""
    return replace(cook, environment={**cook.environment, **more})


def test_every_command_is_here() -> None:
    paths = {f"{name} {member}".strip() for name in COMMANDS for member in MEMBERS.get(name, ("",))}
    assert INVOCATIONS.keys() == paths


@pytest.mark.parametrize("path", INVOCATIONS)
def test_json_is_one_document_and_quiet_says_only_the_answer(cook: Any, path: str) -> None:
    asked = cook(*arguments(path), "--json")
    document = json.loads(asked.stdout)
    if asked.status not in (0, 5):
        assert document["error"]["exit_code"] == asked.status
        assert document["error"]["message"]
    assert asked.status in (0, 2, 5), asked.stderr
    quiet = cook(*arguments(path), "--quiet")
    assert quiet.status == asked.status
    # Faults are in every mode; notices and progress are not.
    for line in quiet.stderr.splitlines():
        assert line.startswith(("error: ", "warning: ", "hint: ", "  hint: ")) or re.match(
            r"\S+:\d+:\d+: ", line
        ), line
    if path in ANSWERS:
        assert asked.status == 0, asked.stderr
        assert quiet.stdout.strip()
    for stream in (asked.stdout, asked.stderr, quiet.stdout, quiet.stderr):
        assert "\x1b" not in stream
        assert "Traceback" not in stream


@pytest.mark.parametrize("path", ["build", "sweep", "recipes ls", "inspect", "doctor", "store gc"])
def test_no_colour_on_a_terminal_where_it_is_not_wanted(cook: Any, path: str) -> None:
    argv = [sys.executable, "-m", "cook", *arguments(path)]
    _, said = styled_in_terminal(argv, 80, {**cook.environment, "NO_COLOR": "1"}, cook.directory)
    assert said.strip()
    assert not COLOUR.search(said)


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("cook sw", ["sweep"]),
        ("cook recipes sh", ["show"]),
        ("cook build --str", ["--strict"]),
        ("cook recipes show ling", ["ling-flash-iq1kt"]),
        ("cook sweep night", ["nightly"]),
        ("cook plan demo --engine bun", ["bundled"]),
        ("cook build own", ["own.yaml"]),
    ],
)
def test_the_shell_completes_commands_options_and_names(
    cook: Any, words: str, offered: list[str]
) -> None:
    (cook.directory / "own.yaml").write_text("version: 1\n")
    at = str(len(words.split()) - 1)
    asking = under(cook, _COOK_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=at)
    done = asking(code="import sys; sys.argv[0] = 'cook'; from cook.cli.main import run; run([])")
    assert done.stdout.split() == offered
    assert done.stderr == ""


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_shown_and_installed(cook: Any, shell: str) -> None:
    shown = cook("--show-completion", shell)
    assert shown.status == 0, shown.stderr
    assert "_COOK_COMPLETE=complete_" in shown.stdout
    installed = cook("--install-completion", shell)
    assert installed.status == 0, installed.stderr
    home = cook.directory / "home"
    scripts = [p for p in home.rglob("*") if p.is_file() and "_COOK_COMPLETE" in p.read_text()]
    assert scripts


def test_faults_of_the_configuration_stop_every_command_but_help(cook: Any) -> None:
    file = cook.directory / "config.toml"
    file.write_text("thread = 8\n")
    configured = under(cook, COOK_CONFIG=str(file))
    done = configured("recipes", "ls")
    assert done.status == 2
    assert f"{file}:1:1: error: unknown key `thread`" in done.stderr
    assert "did you mean `threads`?" in done.stderr
    assert "1 error in the configuration" in done.stderr
    assert configured("recipes", "ls", "--help").status == 0


def test_a_flag_wins_over_the_environment_and_that_over_the_file(cook: Any) -> None:
    file = cook.directory / "config.toml"
    file.write_text("threads = 2\n")
    code = (
        "import sys, cook.job.prepare, cook.job.run\n"
        "cook.job.prepare.prepare = lambda *a, **k: None\n"
        "def build(prepared, output, *, threads, **k):\n"
        "    print('threads', threads); raise SystemExit(0)\n"
        "cook.job.run.build = build\n"
        "from cook.cli.main import run\n"
        "run(sys.argv[1:])\n"
    )
    base = under(cook, COOK_CONFIG=str(file))
    three = under(base, COOK_THREADS="3")
    for asked, flags, said in ((base, (), 2), (three, (), 3), (three, ("--threads", "4"), 4)):
        done = asked("build", "demo", *flags, code=code)
        assert done.stdout.strip() == f"threads {said}", done.stderr
