"""A search on ik_llama.cpp, whole: its own types and mixtures, and the build of what it wrote."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import yaml

from cook.engines.base import Engine
from cook.record.search_record import SearchRecord
from tests.search.whole import RECIPE, run, searched

pytestmark = [pytest.mark.engine, pytest.mark.ik]
CALIBRATED = RECIPE.replace(
    "quants:", 'imatrix: {corpus: "demo://data/calibration.txt", chunks: 8}\nquants:'
).replace("Q4_0, mixture: pure", "IQ4_KS")
SPEC = f"ik={os.environ.get('COOK_ENGINE_IK')}"
TYPES = ("iq1_kt", "iq2_kt", "iq3_kt", "iq4_ks", "iq6_k", "q8_0")


@pytest.fixture(scope="module")
def record(home: Path, ik_engine: Engine) -> SearchRecord:
    (home / "small.yaml").write_text(CALIBRATED)
    words = [word for name in TYPES for word in ("--type", name)]
    return searched(home, "--engine", SPEC, "--size", "1.5MiB", "--budget", "16", *words)


def test_ik_mixes_its_own_types(record: SearchRecord) -> None:
    assert record.identity.flavour == "ik_llama.cpp"
    assert {t.type for s in record.spans for t in s.types} == set(TYPES)
    assert {f.family for f in record.finalists} >= {"engine", "found"}
    assert all(f.size_bytes <= record.aim.max_bytes for f in record.finalists)
    assert record.verdict in ("found", "tie", "given")
    assert record.allocation.gap < 0.005


def test_the_recipe_written_is_built_by_ik(
    home: Path, record: SearchRecord, ik_engine: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert record.found_recipe is not None, "IQ4_KS does not fit"
    document = yaml.safe_load(record.found_recipe)
    del document["score"]  # which takes minutes, and is that of any recipe
    document["quants"] = document["quants"][-1:]
    (home / "found.yaml").write_text(yaml.safe_dump(document))
    words = ("--engine", SPEC, "--json")
    assert run(home, *words, recipe="found.yaml", command="build") == 0
    (draft,) = json.loads(capsys.readouterr().out)["drafts"]
    best = next(f for f in record.finalists if f.name == record.best)
    assert draft["type_counts"] == best.types | {"f32": draft["type_counts"]["f32"]}
