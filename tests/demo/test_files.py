"""What ships is what the provenance says, and every candidate type fits it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from gguf import GGUFReader

import cook.demo
from tools.demo.config import DRAFT, HEAD, TARGET, ModelConfig
from tools.demo.export import END_OF_TEXT, is_quantizable

DEMO = Path(cook.demo.__file__).parent
FILES = {"target-q8_0.gguf": TARGET, "draft-f16.gguf": DRAFT, "head-q8_0.gguf": HEAD}


def test_the_files_are_those_of_the_provenance_and_under_48_megabytes() -> None:
    provenance = json.loads((DEMO / "provenance.json").read_text(encoding="utf-8"))
    assert provenance["files"].keys() >= FILES.keys()
    for name, listed in provenance["files"].items():
        content = (DEMO / name).read_bytes()
        assert hashlib.sha256(content).hexdigest() == listed["sha256"], name
    assert sum((DEMO / name).stat().st_size for name in FILES) < 48_000_000


@pytest.mark.parametrize(("name", "config"), FILES.items())
def test_tensors_are_those_of_the_configuration(name: str, config: ModelConfig) -> None:
    reader = GGUFReader(DEMO / name)
    shapes = {t.name: tuple(reversed([int(n) for n in t.shape])) for t in reader.tensors}
    assert shapes == config.tensor_shapes()
    rows = {n: s[-1] for n, s in shapes.items() if is_quantizable(n, s)}
    assert rows
    assert all(length % 256 == 0 for length in rows.values()), rows
    assert reader.fields["general.architecture"].contents() == "bailingmoe2"


def test_they_share_a_vocabulary() -> None:
    kept, *others = (
        {k: f.contents() for k, f in GGUFReader(DEMO / name).fields.items() if "tokenizer." in k}
        for name in FILES
    )
    assert others == [kept, kept]
    assert kept["tokenizer.ggml.tokens"][kept["tokenizer.ggml.eos_token_id"]] == END_OF_TEXT
    assert kept["tokenizer.ggml.add_bos_token"] is False


def test_prompts_are_not_in_the_calibration_text() -> None:
    calibration = (DEMO / "data" / "calibration.txt").read_text(encoding="utf-8")
    for name in ("prompts.jsonl", "prompts-calibration.jsonl"):
        lines = (DEMO / "data" / name).read_text(encoding="utf-8").splitlines()
        prompts = [json.loads(line) for line in lines]
        assert len({p["id"] for p in prompts}) == len(prompts)
        assert all(p.keys() == {"id", "category", "prompt"} for p in prompts)
        assert not [p["id"] for p in prompts if p["prompt"][-400:] in calibration]
