"""A removed option or key is an error that says what to use instead."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cook.cli.main import main
from cook.errors import PipelineError, RecipeError
from cook.nightly.pipeline import parse_pipeline
from cook.recipe.load import parse_recipe
from cook.removed import KEYS, OPTIONS, removed_key, removed_option


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


@pytest.mark.parametrize("keys", KEYS)
def test_a_removed_key_says_what_to_use(keys: tuple[str, ...]) -> None:
    *above, last = keys
    lines = [f"{'  ' * depth}{key}:" for depth, key in enumerate(above)]
    text = "\n".join(("version: 1", *lines, f"{'  ' * len(above)}{last}: x", ""))
    parse = parse_pipeline if above[0] == "gates" else parse_recipe
    with pytest.raises((PipelineError, RecipeError)) as caught:
        parse(text, Path("r.yaml"))
    assert caught.value.exit_code == 2
    hints = {p.message: p.hint for p in caught.value.problems}
    assert hints[f"unknown key `{last}`"] == removed_key(keys)
