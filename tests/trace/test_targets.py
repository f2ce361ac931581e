"""From what a user names to a target: what is missing is told with the way to mend it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cook.engines.process.supervisor import Supervisor
from cook.errors import CookError, InputError
from cook.trace.targets import Opening, _own_file, opened


def test_a_file_needs_an_engine(tmp_path: Path, tiny_model: Path) -> None:
    how = Opening(str(tiny_model), 512)
    with (
        pytest.raises(InputError, match="no engine to run it"),
        opened(how, None, Supervisor(tmp_path)),
    ):
        pass


def test_a_key_is_not_shown() -> None:
    assert "secret" not in repr(Opening("http://127.0.0.1:1", 512, key="secret"))


def test_an_address_without_an_answer_is_told(tmp_path: Path) -> None:
    how = Opening("http://127.0.0.1:9", 512)
    with pytest.raises(CookError, match=r"127\.0\.0\.1:9"), opened(how, None, Supervisor(tmp_path)):
        pass


def test_a_server_s_file_is_taken_from_this_machine_only(tmp_path: Path, tiny_model: Path) -> None:
    here, there = "http://127.0.0.1:8080", "http://10.0.0.7:8080"
    assert _own_file(here, str(tiny_model)) == tiny_model
    assert _own_file(there, str(tiny_model)) is None
    assert _own_file(here, tiny_model.name) is None
    assert _own_file(here, None) is None
    (tmp_path / "text").write_text("no model")
    assert _own_file(here, str(tmp_path / "text")) is None


@pytest.mark.parametrize("end", ["", "/v1"])
def test_a_server_that_tells_text_only_is_refused(fake: Any, tmp_path: Path, end: str) -> None:
    how = Opening(fake({}).url + end, 512)
    with (
        pytest.raises(InputError, match="is no llama-server") as caught,
        opened(how, None, Supervisor(tmp_path)),
    ):
        pass
    assert "llama-server" in str(caught.value.hint)
