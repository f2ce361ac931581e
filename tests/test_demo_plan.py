"""The demo's whole plan, as JSON: what is laid out, in which order, how large, and why it runs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from cook.cli.main import main

KEPT = Path(__file__).parent / "data" / "demo.plan.json"

pytestmark = pytest.mark.engine


def test_the_demos_plan_is_what_it_was(
    tmp_path: Path,
    bundled: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Without keys, which hold the engine's bytes and the machine (``test_step_keys`` has what
    they are made of), and without what this machine has free and how fast it is."""
    monkeypatch.setenv("COOK_HOME", str(tmp_path / "home"))
    assert main(["plan", "demo", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert main(["plan", "demo", "--check", "--quiet"]) == 1
    steps = [*document["steps"], *document["later_steps"]]
    assert all(len(step.pop("key")) == 64 for step in steps)
    # How long it takes is this machine's, too; that it is known of every step is not.
    assert all(step.pop("seconds") > 0 for step in steps)
    assert all(phase.pop("seconds") > 0 for phase in document["phases"])
    assert document["dealing"].pop("seconds") > 0
    for need in document["needs"]:
        assert need.pop("available_bytes") > 0
    text = json.dumps(document, indent=1) + "\n"
    if os.environ.get("COOK_UPDATE_SNAPSHOTS") == "1":
        KEPT.write_text(text, encoding="utf-8")
    assert text == KEPT.read_text(encoding="utf-8"), "if meant, run with COOK_UPDATE_SNAPSHOTS=1"
