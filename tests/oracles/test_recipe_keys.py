"""Keys of the steps that every shipped recipe lays out on the demo models, as `--demo` does.

Of those that are neither timed nor live, nor built on one that is. An engine's bytes and a
machine are in no frozen key: a step's digest here is made of its kind, version, params and
inputs; `tests/test_step_keys.py` has whole keys, of steps of every kind.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from cook.engines import mixture
from cook.engines.base import QuantizeJob
from cook.formats.gguf import read_gguf
from cook.formats.quant_types import Flavour
from cook.graph.step import Step
from cook.job.prepare import prepare
from cook.recipe.load import load_recipe, shipped_recipes
from cook.steps.live import LiveStep
from tests.oracles.freeze import require_frozen

OF_HEADS = ("glm-4.5-air-head",)
"""Recipes that make quants of a head alone, which the demo's draft has not."""


def is_live_or_timed(step: Step[Any]) -> bool:
    return step.timed or isinstance(step, LiveStep) or any(map(is_live_or_timed, step.steps()))


def digest(step: Step[Any]) -> str:
    """Of the key's parts less the engine, with inputs by their own digests."""
    parts = {
        **{name: step.key_parts[name] for name in ("kind", "version", "params")},
        "inputs": {
            name: digest(node) if isinstance(node, Step) else node.key
            for name, node in sorted(step.inputs().items())
        },
    }
    return sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def lines(name: str, spec: str) -> Iterator[str]:
    found = set()
    for layout in prepare(name, engines=[spec], demo=True).layouts:
        for step in layout.all_steps():
            if not is_live_or_timed(step):
                found.add(f"{step.kind}\t{step.version}\t{digest(step)}")
    yield "kind\tversion\tdigest"
    yield from sorted(found)


@pytest.mark.parametrize("name", [n for n in shipped_recipes() if n not in OF_HEADS])
def test_keys_of_a_recipe(
    name: str,
    standin_engine: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The stand-in quantizes nothing: what the engine's mixture would be is q8_0 throughout."""

    def q8_0(_engine: object, job: QuantizeJob, _part: object) -> dict[str, str]:
        tensors = read_gguf(job.source).tensors
        return {t.name: "q8_0" if t.shape[0] % 32 == 0 else t.type_name for t in tensors}

    monkeypatch.setattr(mixture, "_dry_run", q8_0)
    monkeypatch.setenv("COOK_HOME", str(tmp_path / "home"))
    engine = load_recipe(name).recipe.engine
    flavour = Flavour.IK_LLAMA_CPP if "ik_llama.cpp" in engine else Flavour.LLAMA_CPP
    directory = standin_engine(flavour=flavour, name="engine").facts.bin_dir
    require_frozen(f"keys/{name}.tsv", lines(name, f"engine={directory}"))
