"""Guards of live runs that no other test shows without an ik_llama.cpp."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cook.engines.base import ModelArgs, ServerJob


@pytest.mark.parametrize("flavour", ["llama.cpp", "ik_llama.cpp"])
def test_a_server_keeps_no_past_requests_in_memory(
    flavour: str, standin_engine: Callable[..., Any], tmp_path: Path
) -> None:
    engine = standin_engine("silent", "server", flavour=flavour)
    job = ServerJob(tmp_path / "t.gguf", ModelArgs(), 4096, None, ModelArgs(), None)
    command = [str(word) for word in engine.server_command(job, 4321, None)]
    assert command[command.index("--cache-ram") + 1] == "0"
