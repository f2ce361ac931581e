"""Every command of the table has its module, its function, and examples of itself."""

from __future__ import annotations

import inspect
from importlib import import_module
from keyword import iskeyword

import pytest

from cook.cli.commands import COMMANDS


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_a_module_with_a_documented_function(name: str) -> None:
    module = import_module(f"cook.cli.{name}")
    for member in COMMANDS[name].members or ("command",):
        function = getattr(module, f"{member}_" if iskeyword(member) else member)
        told = inspect.getdoc(function) or ""
        assert "Examples:" in told, member
        example = f"cook {name} {member}" if COMMANDS[name].members else f"cook {name}"
        assert example in told
