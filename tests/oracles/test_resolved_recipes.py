"""What `cook recipes show --resolved` says of every shipped recipe: all settings, all rules."""

from __future__ import annotations

import pytest

from cook.cli.main import main
from cook.paths import demo_dir
from cook.recipe.load import shipped_recipes
from tests.oracles.freeze import require_frozen

ROOT = demo_dir().parents[1]


@pytest.mark.parametrize("name", shipped_recipes())
def test_a_resolved_recipe(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes", "show", name, "--resolved"]) == 0
    text = capsys.readouterr().out.replace(str(ROOT), "<cook>")
    require_frozen(f"resolved/{name}.yaml", text.splitlines())
