"""The engine's logits are those of the NumPy reference, for both shipped models."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import cook.demo
from tools.demo.reference import Reference

DEMO = Path(cook.demo.__file__).parent
PROGRAM = Path(__file__).with_name("engine_logits.py")


def engine_logits(model: Path, tokens: NDArray[np.int64], folder: Path) -> NDArray[np.float32]:
    np.save(folder / "tokens.npy", tokens.astype(np.int32))
    command = [sys.executable, str(PROGRAM), str(model), "tokens.npy", "logits.npy"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    logits: NDArray[np.float32] = np.load(folder / "logits.npy")
    return logits


@pytest.mark.parametrize(
    ("name", "tolerance", "same"),
    [("draft-f16.gguf", 0.05, 0.99), ("target-q8_0.gguf", 0.8, 0.95)],
)
def test_engine_equals_reference(tmp_path: Path, name: str, tolerance: float, same: float) -> None:
    tokens = np.load(Path(__file__).with_name("tokens.npy"))[:192]
    expected = Reference.read(DEMO / name).logits(tokens)
    found = engine_logits(DEMO / name, tokens, tmp_path)
    assert np.abs(found - expected).max() < tolerance
    assert (found.argmax(-1) == expected.argmax(-1)).mean() >= same
