"""``cook serve``: what it prints and refuses; the running server is in tests/test_service.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

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
    done = cook("serve", "--print")
    assert done.status == 2
    check_snapshot(done, "serve-no-record")


def test_another_file_in_place_of_the_draft(cook: Any, served: Any, check_snapshot: Any) -> None:
    draft = cook.directory / "draft.gguf"
    draft.write_bytes(b"GGUF 1")
    scored = record("ml", draft=draft)
    draft.write_bytes(b"GGUF 12")
    write_record(scored, cook.directory / "moved.json")
    done = served("serve", "moved.json")
    assert done.status == 2
    check_snapshot(done, "serve-other-draft")


def test_no_such_engine(served: Any) -> None:
    done = served("serve", "--engine", "nowhere", "--print")
    assert done.status == 5
    assert Path(served.directory / "cook-home" / "serve.key").exists() is False
