"""The field's own recipe on a real ik_llama.cpp, and both engines in one sweep."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cook.formats.gguf import read_gguf
from cook.formats.quant_types import IK_LLAMA_CPP
from cook.graph.store import Store
from cook.paths import demo_dir
from cook.recipe.foreign.importing import import_recipe
from cook.recipe.load import load_recipe
from cook.recipe.rules import ModelTensors
from cook.record.record import Record, StepRecord
from tests.builds import build

pytestmark = pytest.mark.ik

SCRIPTS = Path(__file__).parent / "data"
QUANTS = ("IQ1_KT", "IQ1_KT-PUFFED", "IQ2_KL")
# Fewer and shorter replies, and one draft length: the rest of the recipe is as it ships.
SHORTER = {
    "  context: 512\n  # 256 experts": "  context: 512\n  chunks: 60\n  # 256 experts",
    "  chunks: 100\n": "  chunks: 3\n",
    "  max_tokens: 128\n": "  max_tokens: 24\n  limit: 4\n  context: 2048\n",
    "  live_budget: {minutes: 120}\n": "  live_budget: {minutes: 0.05}\n",
    "    n_max: [4, 8, 16]\n": "    n_max: [4]\n",
    "    cache_types: [f16, q8_0]\n": "",
}
BOTH = """\
version: 1
name: both
model: {source: "demo://draft-f16.gguf"}
imatrix: {corpus: "demo://data/calibration.txt", chunks: 60, args: {threads: 1}}
quants:
  - {name: Q4_K_M, type: Q4_K_M}
  - {name: Q2_K, type: Q2_K}
  - name: IQ1_KT
    type: IQ1_KT
    rules: [{routed_experts: iq1_kt}, {'.*': iq4_k}]
score:
  target: {source: "demo://target-q8_0.gguf", args: {threads: 1}}
  prompts: demo
  categories: [docstring, tests, literal]
  limit: 4
  max_tokens: 24
  context: 2048
  draft: {n_max: [4], args: {threads: 1}}
  live_budget: {minutes: 0.05}
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ik")


@pytest.fixture(scope="module")
def ling(home: Path, ik_engine: Any) -> Record:
    """``cook build recipes/ling-flash-iq1kt.yaml --engine ik=DIR --demo``, with less of all."""
    text = load_recipe("ling-flash-iq1kt").text
    for old, new in SHORTER.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    engine = f"ik={Path(ik_engine.facts.bin_dir)}"
    return build(home, "ling-flash-iq1kt", text, "--engine", engine, "--demo")


def steps(record: Record, kind: str) -> list[StepRecord]:
    return [step for step in record.steps if step.kind == kind]


def test_it_ends_with_a_pick(ling: Record) -> None:
    assert ling.pick.candidate in {c.name for c in ling.candidates}
    assert [d.quant for d in ling.drafts] == list(QUANTS)
    assert not [s.label for s in ling.steps if s.state != "ran"]


def test_everything_is_in_the_record(ling: Record) -> None:
    assert ling.imatrix is not None
    for draft in ling.drafts:
        assert draft.quality is not None, draft.quality_reason
        assert draft.quality.perplexity > 1
        assert draft.quality.mean_kld is not None
        assert draft.file_bytes
    drafting = [c for c in ling.candidates if c.draft is not None]
    assert {c.draft for c in drafting} == set(QUANTS)
    for candidate in drafting:
        assert candidate.predicted.figures.drafted
    live = [c for c in drafting if c.live is not None]
    assert len({c.draft for c in live}) >= 2, "two files at least are in the first block"
    for candidate in live:
        assert candidate.live.drafted
        # Only text comes back: recounted is what has as many tokens as the server counted.
        assert (candidate.counts is None) == (candidate.counts_reason is not None)
        if candidate.counts is not None:
            recounted = candidate.counts.requests + candidate.counts.passed_over
            assert 0 < recounted <= len(set(candidate.prompts.ids))
            assert candidate.counts.exact <= candidate.counts.requests


@pytest.mark.parametrize("name", QUANTS)
def test_types_are_those_of_the_script(name: str, ling: Record) -> None:
    draft = demo_dir() / "draft-f16.gguf"
    imported = import_recipe(SCRIPTS / f"make-quant-{name}.sh", model=draft)
    source = read_gguf(draft)
    model = ModelTensors(source.tensors, "bailingmoe2")
    wanted = model.resolve(imported.loaded.quants[0], IK_LLAMA_CPP).types
    made = {t.name: t.type_name for t in read_gguf(made_file(ling, name)).tensors}
    assert None not in wanted.values()
    assert made == wanted


@pytest.mark.parametrize("name", QUANTS)
def test_bytes_are_those_of_the_scripts_command(
    name: str, ling: Record, home: Path, ik_engine: Any, tmp_path: Path
) -> None:
    """llama-quantize as the script runs it: its rules joined by commas, its base type."""
    script = (SCRIPTS / f"make-quant-{name}.sh").read_text()
    block = re.search(r'^custom="\n(.*?)^"', script, re.DOTALL | re.MULTILINE)
    assert block is not None
    rules = [line for line in block[1].splitlines() if line and not line.startswith("#")]
    base = re.search(r"\.gguf \\\n +(\w+) \\\n", script)
    assert base is not None
    (imatrix,) = steps(ling, "imatrix")
    artifact = Store(home / "store").find("imatrix", imatrix.key)
    by_hand = tmp_path / "by-hand.gguf"
    words = ("--imatrix", artifact.file("imatrix.dat"), "--custom-q", ",".join(rules))
    files = (demo_dir() / "draft-f16.gguf", by_hand)
    argv = [str(word) for word in (ik_engine.tool("quantize"), *words, *files, base[1], 1)]
    environment = dict(ik_engine.environment())
    subprocess.run(argv, env=environment, cwd=tmp_path, check=True, capture_output=True)
    hand, made = read_gguf(by_hand), read_gguf(made_file(ling, name))
    assert [t.name for t in made.tensors] == [t.name for t in hand.tensors]
    for tensor in made.tensors:
        assert made.read_tensor_bytes(tensor.name) == hand.read_tensor_bytes(tensor.name)


def made_file(record: Record, quant: str) -> Path:
    path = next(d.path for d in record.drafts if d.quant == quant)
    assert path is not None
    return Path(path)


@pytest.mark.engine
def test_both_engines_in_one_table(tmp_path: Path, bundled: Any, ik_engine: Any) -> None:
    ik = f"ik={Path(ik_engine.facts.bin_dir)}"
    record = build(tmp_path / "home", "both", BOTH, "--engine", "bundled", "--engine", ik)
    assert set(record.engines) == {"bundled", "ik"}
    made = {"Q4_K_M@bundled", "Q2_K@bundled", "Q4_K_M@ik", "Q2_K@ik", "IQ1_KT@ik"}
    assert {d.quant for d in record.drafts} == made
    (unmade,) = [e for e in record.left_out if e.candidate.startswith("IQ1_KT")]
    assert "bundled" in f"{unmade.candidate} {unmade.reason}"
    assert "iq1_kt" in unmade.reason.lower()
    assert {s.label for s in steps(record, "trace")} == {"trace (bundled)", "trace (ik)"}
    bare = {c.engine: c for c in record.candidates if c.draft is None}
    assert set(bare) == {"bundled", "ik"}
    speeds = {c.name: c.live.end_to_end_speed for c in record.candidates if c.live is not None}
    assert len(speeds) >= 3
    best = max((c.name for c in bare.values()), key=lambda name: speeds[name] or 0)
    ratios = {c.name: c.speedup for c in record.candidates if c.name in speeds}
    assert ratios[best] == 1.0, "every speedup is over the fastest no draft of any engine"
    for name, speed in speeds.items():
        # Of the same requests, where the figures are of all that each was dealt.
        assert ratios[name] == pytest.approx((speed or 0) / (speeds[best] or 1), rel=0.25)
    predicted = {c.draft for c in record.candidates if c.predicted is not None and c.draft}
    assert predicted == made
    assert record.pick.candidate in {c.name for c in record.candidates}
