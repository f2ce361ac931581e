"""``cook serve``: what it prints and refuses; the running server is in tests/test_service.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from cook.record.find import keep_record
from cook.record.record import write_record
from tests.served_records import record


@pytest.fixture
def served(cook: Any, standin_engine: Callable[..., Any]) -> Any:
    """A cook whose home has one record, made on a stand-in called ``ml``."""
    engine = standin_engine(name="ml")
    write_record(record("ml"), cook.directory / "cook-home" / "records" / "r.json")
    return replace(
        cook, environment={**cook.environment, "COOK_ENGINE_ML": str(engine.facts.bin_dir)}
    )


def test_the_command_and_the_unit(served: Any, check_snapshot: Any) -> None:
    check_snapshot(served("serve", "--print"), "serve-print")
    check_snapshot(served("serve", "r", "--systemd", "--port", "9000"), "serve-systemd")


def test_no_record(cook: Any, check_snapshot: Any) -> None:
    check_snapshot(cook("serve", "--print"), "serve-no-record")


def test_another_file_in_place_of_the_draft(cook: Any, served: Any, check_snapshot: Any) -> None:
    draft = cook.directory / "draft.gguf"
    draft.write_bytes(b"GGUF 1")
    scored = record("ml", draft=draft)
    draft.write_bytes(b"GGUF 12")
    write_record(scored, cook.directory / "moved.json")
    check_snapshot(served("serve", "moved.json"), "serve-other-draft")


def test_no_such_engine(served: Any) -> None:
    done = served("serve", "--engine", "nowhere", "--print")
    assert done.status == 5
    assert not (served.directory / "cook-home" / "serve.key").exists()


def test_a_name_that_means_another_pick_than_before_says_so(
    served: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COOK_HOME", str(served.directory / "cook-home"))
    earlier = replace(record("ml"), recipe="q", created="2026-11-21T00:00:00Z")
    keep_record(replace(earlier, pick=replace(earlier.pick, candidate="no draft")))
    keep_record(replace(earlier, created="2026-11-22T00:00:00Z"))
    done = served("serve", "q", "--print")
    assert "q@2026-11-21-00-00-00 picks no draft" in done.stderr
    assert "picks no draft" not in served("serve", "q@2026-11-21", "--print").stderr


def test_a_context_beyond_the_model_s_is_warned_of(served: Any) -> None:
    done = served("serve", "r", "--print", "--context", "1048576")
    assert "--ctx-size 1048576" in done.stdout
    assert "beyond what the target was trained on" in done.stderr
    assert "scored with a context of 512 tokens" in done.stderr
