"""The configuration file: defaults below flags and environment, faults with their place."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cook import config
from cook.errors import ConfigError, InputError, Problem

GOOD = """\
home = "~/cook"
threads = 8

[engines]
ik = "builds/ik"
mainline = "/opt/llama.cpp/bin"
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "config.toml"
    monkeypatch.setenv("COOK_CONFIG", str(path))
    for name in config.VARIABLES.values():
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(config, "_applied", {})
    return path


def test_what_it_says(file: Path) -> None:
    assert config.load() == config.Config(file)
    config.apply()
    assert config.origin_of("COOK_THREADS") is None
    file.write_text(GOOD)
    found = config.load()
    assert found.home == Path.home() / "cook"
    assert (found.threads, found.jobs) == (8, None)
    assert found.engines == {
        "ik": file.parent / "builds" / "ik",
        "mainline": Path("/opt/llama.cpp/bin"),
    }


def test_the_environment_wins_and_sources_are_known(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text('threads = 8\njobs = 3\nhome = "here"\n')
    monkeypatch.setenv("COOK_JOBS", "5")
    config.apply()
    assert (os.environ["COOK_THREADS"], os.environ["COOK_JOBS"]) == ("8", "5")
    assert os.environ["COOK_HOME"] == str(file.parent / "here")
    assert config.origin_of("COOK_THREADS") == "configuration"
    assert config.origin_of("COOK_JOBS") == "environment"
    # What the file no longer says is gone with the next command of one process.
    file.write_text("jobs = 1\n")
    config.apply()
    assert "COOK_THREADS" not in os.environ
    file.unlink()
    config.apply()
    assert "COOK_HOME" not in os.environ


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("thread = 8\n", ["1:1: error: unknown key `thread`"]),
        ("threads = 'many'\n", ["1:11: error: `threads` must be a whole number"]),
        ("\nthreads = 0\njobs = 999\n", [
            "2:11: error: `threads` must be at least 1",
            "3:8: error: `jobs` must be at most 256",
        ]),
        ("[engines]\nik = 3\n", ["2:6: error: `ik` must be text"]),
        ("[engins]\nik = 'x'\n", ["1:1: error: unknown key `engins`"]),
        ("home = ", ["1:8: error: not TOML: Invalid value"]),
        ("a = 1\na = 2\n", ["2:6: error: not TOML: Cannot overwrite a value"]),
        ("home = 'x'\nthreads = \udcff\n", ["2:11: error: not UTF-8: byte 0xff"]),
    ],
)  # fmt: skip
def test_every_fault_has_its_place(file: Path, text: str, problems: list[str]) -> None:
    file.write_text(text, errors="surrogateescape")
    with pytest.raises(ConfigError) as caught:
        config.load()
    found = [str(p).splitlines()[0].removeprefix(f"{file}:") for p in caught.value.problems]
    assert found == problems
    assert caught.value.exit_code == 2


@given(st.text(max_size=80))
def test_any_text_is_read_or_refused(tmp_path_factory: Any, text: str) -> None:
    path = tmp_path_factory.mktemp("c") / "config.toml"
    path.write_text(text, encoding="utf-8", errors="replace")
    refused: tuple[Problem, ...] = ()
    try:
        config.load(path)
    except ConfigError as error:
        refused = error.problems
    assert all(problem.line >= 1 and problem.column >= 1 for problem in refused)


def test_memory_is_in_gib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COOK_MEMORY", raising=False)
    assert config.memory_bytes() is None
    monkeypatch.setenv("COOK_MEMORY", "0.5")
    assert config.memory_bytes() == 1 << 29
    for text in ("much", "-1", "nan", "inf"):
        monkeypatch.setenv("COOK_MEMORY", text)
        with pytest.raises(InputError, match="no number of GiB"):
            config.memory_bytes()
