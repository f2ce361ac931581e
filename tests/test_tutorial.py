"""The documents are true: their commands run, one after the other, and end well."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"


def blocks(page: str, language: str) -> list[str]:
    """The texts of a page that are shown as of that language."""
    text = (DOCS / page).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def commands(page: str) -> list[str]:
    return [line for block in blocks(page, "sh") for line in block.splitlines() if line.strip()]


@pytest.fixture
def shell(tmp_path: Path) -> Any:
    """Runs one line as a reader would, in a folder that looks like a checkout."""
    for name in ("cook", "tests", "recipes", "imatrix", "pipelines"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "home").mkdir()
    environment = {k: v for k, v in os.environ.items() if not k.startswith("COOK_")} | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(tmp_path / "home"),
        "COOK_HOME": str(tmp_path / "cook-home"),
        "COOK_THREADS": "1",  # next to other tests two stall
        "SHELL": "/bin/bash",
        "NO_COLOR": "1",
    }

    def run(line: str, *, fine: tuple[int, ...] = (0,)) -> str:
        done = subprocess.run(
            ["bash", "-eo", "pipefail", "-c", line],
            cwd=tmp_path,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=900,
        )
        assert done.returncode in fine, f"$ {line}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    run.directory = tmp_path  # type: ignore[attr-defined]
    return run


@pytest.mark.engine
def test_the_tutorial(shell: Any, bundled: Any) -> None:
    said: dict[str, list[str]] = {}
    for line in commands("tutorial.md"):
        said.setdefault(line, []).append(shell(line))
        if line == "cook recipes show demo > mine.yaml":
            _make_smaller(shell.directory / "mine.yaml")
    first, second = said["cook build mine.yaml"]
    assert "pick: " in first
    assert "nothing had to run" in second
    report = said["cook report"][0].split()[0]
    assert Path(report).suffix == ".html"
    assert Path(report).is_file()


def _make_smaller(recipe: Path) -> None:
    """As the text says, and with half the prompts and tokens."""
    document = yaml.safe_load(recipe.read_text())
    document["quants"] = [q for q in document["quants"] if q["name"] in ("Q4_K_M", "IQ2_XXS")]
    document["score"] |= {"limit": 6, "max_tokens": 32, "live_budget": {"minutes": 0.05}}
    recipe.write_text(yaml.safe_dump(document, sort_keys=False))


def test_from_bash(shell: Any) -> None:
    said = {line: shell(line) for line in commands("from-bash.md")}
    grouped = next(text for line, text in said.items() if "--model" in line)
    assert "- attention: q8_0" in grouped
    assert "- routed_experts: iq1_kt" in grouped


def test_the_recipe_written_by_hand_is_what_the_import_says() -> None:
    from cook.recipe.load import parse_recipe, shipped_recipes

    (quant,) = parse_recipe(blocks("from-bash.md", "yaml")[0], Path("mine.yaml")).quants
    shipped = parse_recipe(shipped_recipes()["ling-flash-iq1kt"].read_text(), Path("x.yaml"))
    theirs = next(q for q in shipped.quants if q.name == quant.name)
    # The shipped one inherits the experts' rule and overrides the rest.
    first: dict[str, str] = {}
    for rule in theirs.rules:
        first.setdefault(rule.selector, rule.type)
    assert {rule.selector: rule.type for rule in quant.rules} == first


def test_the_script_shown_is_the_script_shipped() -> None:
    script = (ROOT / "tests" / "data" / "make-quant-IQ1_KT-PUFFED.sh").read_text()
    shown = blocks("from-bash.md", "bash")[0].splitlines()
    rules = [line for line in shown if re.match(r"\S+=\w+$", line)]
    assert rules == [line for line in script.splitlines() if re.match(r"[a-z]\S+=\w+$", line)]
    assert len(rules) == 10


def test_configuration(shell: Any) -> None:
    from cook.config import VARIABLES, ConfigSpec, load

    for line in commands("configuration.md"):
        shell(line)
    text = (DOCS / "configuration.md").read_text()
    for key in (*(k for k in ConfigSpec.model_fields if k != "engines"), "engines.NAME"):
        assert f"| `{key}` |" in text
    for variable in VARIABLES.values():
        assert f"`{variable}`" in text
    file = shell.directory / "config.toml"
    file.write_text(blocks("configuration.md", "toml")[0])
    found = load(file)
    assert (found.threads, found.jobs) == (16, 2)
    assert found.engines is not None
    assert set(found.engines) == {"ik", "mainline"}


def test_the_gates_shown_are_the_gates() -> None:
    from cook.nightly.pipeline import GatesSpec

    text = (DOCS / "nightly.md").read_text()
    gates = GatesSpec()
    for gate, limit in (
        ("acceptance", gates.acceptance_points),
        ("replayed acceptance", gates.acceptance_points),
        ("speed", gates.speed_percent),
        ("no-draft speed", gates.no_draft_percent),
        ("perplexity", gates.perplexity_percent),
        ("KLD", gates.kld_percent),
        ("size", gates.size_percent),
    ):
        assert re.search(rf"^\| {re.escape(gate)} \|.*\| {limit:g} \|", text, flags=re.MULTILINE)
