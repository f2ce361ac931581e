"""``cook doctor`` on this machine, and where the engine's tools are absent."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cook import engine_setup

CHANGED = """\
import sys
from pathlib import Path
import cook.cli.doctor
{}
from cook.cli.main import run
run(sys.argv[1:])
"""
WITHOUT_TOOLS = CHANGED.format("cook.engine_setup.bin_dir = lambda: Path('/nowhere')")


@pytest.mark.engine
def test_here(cook: Any) -> None:
    done = cook("doctor", "--json")
    assert done.status == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["usable"]
    checks = {check["name"]: check for check in report["checks"]}
    assert checks["bundled engine"]["status"] == "ok"
    assert {f"bundled llama-{tool}" for tool in engine_setup.TOOLS} <= checks.keys()


def test_without_tools_it_says_what_builds_them(cook: Any) -> None:
    done = cook("doctor", code=WITHOUT_TOOLS)
    assert done.status == 5
    assert "bundled llama-quantize" in done.stdout
    assert "hint: make setup" in done.stderr
    assert "Traceback" not in done.stderr
    document = cook("doctor", "--json", code=WITHOUT_TOOLS)
    assert document.status == 5
    assert not json.loads(document.stdout)["usable"]


def test_a_broken_configuration_is_a_finding(cook: Any) -> None:
    config = cook.directory / "home" / ".config" / "cook"
    config.mkdir(parents=True)
    (config / "config.toml").write_text("[engines\n")
    done = cook("doctor", code=WITHOUT_TOOLS)
    assert done.status == 5
    assert "config.toml:1:9: error: not TOML" in done.stdout


@pytest.mark.engine
def test_a_configuration_of_the_system_s_is_shown(cook: Any) -> None:
    """mainline reads it whatever cook does."""
    here = f"cook.cli.doctor.SYSTEM_CONFIG = Path('{cook.directory}')"
    done = cook("doctor", "--json", code=CHANGED.format(here))
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    (name,) = (name for name in checks if name.startswith("bundled engine: /"))
    assert checks[name]["status"] == "warning"
