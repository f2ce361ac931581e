"""A removed option is an error that says what to use instead."""

from __future__ import annotations

import json

import pytest

from cook.cli.main import main
from cook.removed import OPTIONS, removed_option


@pytest.mark.parametrize(("command", "option"), OPTIONS)
def test_a_removed_option_says_what_to_use(
    command: str, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command.split(), option, "1", "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["message"].startswith(f"No such option: {option}")
    assert error["hint"] == removed_option(command, option)


def test_an_option_that_never_was_gets_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--absent"]) == 2
    assert "hint: cook report --help" in capsys.readouterr().err
