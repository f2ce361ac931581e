"""``cook build``, ``plan`` and ``score``: what is told before anything runs."""

from __future__ import annotations

import json
from typing import Any

import pytest


@pytest.mark.engine
def test_a_plan_is_one_json_document(cook: Any) -> None:
    done = cook("plan", "demo", "--json")
    assert done.status == 0, done.stderr
    plan = json.loads(done.stdout)
    assert plan["recipe"] == "demo"
    assert {step["state"] for step in plan["steps"]} == {"run"}
    assert cook("plan", "demo", "--check", "--quiet").status == 1


@pytest.mark.parametrize("command", ["build", "plan"])
def test_an_unknown_recipe(cook: Any, command: str) -> None:
    done = cook(command, "no-such-recipe", "--json")
    assert done.status == 2
    assert json.loads(done.stdout)["error"]["kind"] == "InputError"


@pytest.mark.parametrize("command", ["build", "plan", "demo"])
def test_an_unknown_engine(cook: Any, command: str) -> None:
    recipe = [] if command == "demo" else ["demo"]
    done = cook(command, *recipe, "--engine", "nope", "--json")
    assert done.status == 5
    assert json.loads(done.stdout)["error"]["exit_code"] == 5


def test_score_needs_a_target(cook: Any) -> None:
    done = cook("score", "draft.gguf", "--json")
    assert done.status == 2
    assert json.loads(done.stdout)["error"]["exit_code"] == 2
