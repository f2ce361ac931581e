"""The engine's logits are those of the NumPy reference, for both shipped models."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cook.paths import demo_dir
from tools.demo.reference import Reference

PROGRAM = Path(__file__).with_name("engine_logits.py")


@pytest.mark.parametrize(
    ("name", "tolerance", "same"),
    [("draft-f16.gguf", 0.05, 0.99), ("target-q8_0.gguf", 0.8, 0.95)],
)
def test_engine_equals_reference(tmp_path: Path, name: str, tolerance: float, same: float) -> None:
    model, tokens = demo_dir() / name, np.load(Path(__file__).with_name("tokens.npy"))[:192]
    expected = Reference.read(model).logits(tokens)
    np.save(tmp_path / "tokens.npy", tokens.astype(np.int32))
    command = [sys.executable, str(PROGRAM), str(model), "tokens.npy", "logits.npy"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    found = np.load(tmp_path / "logits.npy")
    assert np.abs(found - expected).max() < tolerance
    assert (found.argmax(-1) == expected.argmax(-1)).mean() >= same
