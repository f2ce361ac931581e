"""The whole job on the real engine and the demo models, small: build, rebuild, by hand, faults."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cook.cli.main import main
from cook.formats.gguf import read_gguf
from cook.formats.naming import shards_of
from cook.graph.store import Store
from cook.paths import demo_dir
from cook.record.record import Record, to_json
from tests.builds import build

pytestmark = pytest.mark.engine

RECIPE = """\
version: 1
name: small
model: {source: "demo://draft-f16.gguf"}
imatrix: {corpus: "demo://data/calibration.txt", chunks: 10, args: {threads: 1}}
evaluate: {corpus: "demo://data/evaluation.txt", chunks: 4, args: {threads: 1}}
quants:
  - {name: Q4_K_M, type: Q4_K_M}
  - name: MIXED
    type: IQ2_XXS
    rules:
      - attention: q8_0
      - 'ffn_(gate|up)_exps': iq2_xxs
      - routed_experts: q2_K
      - embeddings: q4_K
      - output: q6_K
      - '.*': q3_K
score:
  method: live
  target: {source: "demo://target-q8_0.gguf", args: {threads: 1}}
  prompts: demo
  limit: 8
  max_tokens: 24
  context: 3072
  draft: {n_max: [2, 4], args: {threads: 1}}
  live_budget: {minutes: 0.05}
"""
HAND_RULES = (
    *("--tensor-type", r"attn_(qkv|output)\.weight=q8_0"),
    *("--tensor-type", "ffn_(gate|up)_exps=iq2_xxs"),
    *("--tensor-type", "ffn_down_exps=q2_k"),
    *("--tensor-type", "token_embd=q4_k"),
    *("--tensor-type", r"^output\.weight$=q6_k"),
    *("--tensor-type", "ffn=q3_k"),
)
SPLIT = """\
version: 1
name: split
model: {source: "demo://draft-f16.gguf"}
evaluate: {corpus: "demo://data/evaluation.txt", chunks: 1, args: {threads: 1}}
quants:
  - {name: WHOLE, type: Q4_0, rules: [{'re:.': q4_0}]}
  - {name: SPLIT, extends: WHOLE, split: {max_size: 1M}}
"""
SOURCE = demo_dir() / "draft-f16.gguf"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("executor")


@pytest.fixture(scope="module")
def record(home: Path, bundled: Any) -> Record:
    """The recipe built once, into ``home``."""
    return build(home, "small", RECIPE)


@pytest.fixture(scope="module")
def split(
    tmp_path_factory: pytest.TempPathFactory, bundled: Any
) -> tuple[Record, tuple[Path, ...]]:
    """:data:`SPLIT` built once, and the files of its second quant."""
    record = build(tmp_path_factory.mktemp("split"), "split", SPLIT)
    return record, shards_of(Path(str(record.drafts[1].path)))


def test_every_figure_is_there(record: Record) -> None:
    assert [d.quant for d in record.drafts] == ["Q4_K_M", "MIXED"]
    for draft in record.drafts:
        assert draft.quality.mean_kld is not None
        assert (draft.memory_bytes or 0) > (draft.file_bytes or 0) * 0.9 > 0
    names = [c.name for c in record.candidates]
    assert names[0] == "no draft"
    assert sorted(names[1:]) == [f"{d} n_max={n}" for d in ("MIXED", "Q4_K_M") for n in (2, 4)]
    for candidate in record.candidates[1:]:
        live = candidate.live
        drafted, accepted = live.drafted, live.accepted
        assert drafted is not None
        assert accepted is not None
        assert 0 <= accepted <= drafted
        assert live.cycles is not None
        assert live.requests >= 8, "8 prompts, once more where that decided nothing"
        assert live.requests % 8 == 0
        assert candidate.speedup is not None
        assert candidate.speedup_interval is not None
        assert candidate.output.replies == 8
    assert record.pick.candidate in names
    assert record.source_quality is not None


def test_built_again_nothing_runs_and_of_a_changed_rule_only_its_quant(
    record: Record,
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COOK_HOME", str(home))
    recipe, changed = home / "small.yaml", tmp_path / "small.yaml"
    assert list(Store(home / "store").verify()) == []
    assert main(["plan", str(recipe), "--check"]) == 0
    capsys.readouterr()
    assert main(["build", str(recipe), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["ran"] == []
    before = to_json(record)
    assert document["candidates"] == before["candidates"]
    assert document["pick"] == before["pick"]
    changed.write_text(RECIPE.replace("attention: q8_0", "attention: q6_K"))
    assert main(["plan", str(changed), "--check", "--json"]) == 1
    steps = json.loads(capsys.readouterr().out)["steps"]
    stale = {s["label"]: s for s in steps if s["state"] == "run"}
    assert all("MIXED" in label for label in stale)
    quantize = stale["quantize MIXED (bundled)"]
    assert (quantize["reason"], quantize["detail"]) == ("parameters changed", "rules")
    assert stale["memory MIXED (bundled)"]["reason"] == "an input changed"


def test_tensor_data_equal_a_hand_run_llama_quantize(
    record: Record, home: Path, bundled: Any, tmp_path: Path
) -> None:
    """The same rules, said in the tool's own way by hand, give the same bytes."""
    imatrix = next(a for a in Store(home / "store").entries() if a.kind == "imatrix")
    for quant, ftype, rules in (("Q4_K_M", "Q4_K_M", ()), ("MIXED", "IQ2_XXS", HAND_RULES)):
        by_hand = tmp_path / f"{quant}.gguf"
        subprocess.run(
            [
                str(bundled.tool("quantize")),
                *("--imatrix", str(imatrix.file("imatrix.gguf"))),
                *(*rules, str(SOURCE), str(by_hand), ftype, "1"),
            ],
            check=True,
            capture_output=True,
            env=dict(bundled.environment()),
        )
        ours, theirs = read_gguf(str(record.draft(quant).path)), read_gguf(by_hand)
        assert [t.name for t in ours.tensors] == [t.name for t in theirs.tensors]
        for tensor in ours.tensors:
            assert tensor.type_name == theirs.tensor(tensor.name).type_name, tensor.name
            same = ours.read_tensor_bytes(tensor.name) == theirs.read_tensor_bytes(tensor.name)
            assert same, tensor.name


def test_perplexity_and_kld_equal_a_hand_run(record: Record, bundled: Any, tmp_path: Path) -> None:
    base = tmp_path / "base.kld"
    tool = str(bundled.tool("perplexity"))
    text = str(demo_dir() / "data/evaluation.txt")
    common = ["-c", "512", "-t", "1"]

    def run(last_line: bytes, *args: str) -> bytes:
        """All that the tool says; again where it ends well and loses its last lines."""
        for _ in range(4):
            ended = subprocess.run(
                [tool, *args], check=True, capture_output=True, env=dict(bundled.environment())
            )
            if last_line in (said := ended.stderr + ended.stdout):
                return said
        raise AssertionError(f"no {last_line!r} in four runs")

    first = run(
        b"Final estimate: PPL",
        *("-m", str(SOURCE), "-f", text, "--chunks", "4", *common),
        *("--kl-divergence-base", str(base)),
    )
    printed = re.search(rb"Final estimate: PPL = ([\d.]+) \+/- ([\d.]+)", first)
    assert printed is not None
    assert record.source_quality.perplexity == float(printed[1])
    assert record.source_quality.perplexity_error == float(printed[2])
    draft = record.draft("MIXED")
    second = run(
        b"Same top p:",
        *("-m", str(draft.path), "--kl-divergence-base", str(base), "--kl-divergence", *common),
    )
    kld = re.search(rb"Mean    KLD: +([\d.-]+) ", second)
    perplexity = re.search(rb"Mean PPL\(Q\) +: +([\d.]+) ", second)
    assert kld is not None
    assert perplexity is not None
    assert draft.quality.mean_kld == float(kld[1])
    assert draft.quality.perplexity == float(perplexity[1])


def test_one_broken_quant_does_not_stop_the_sweep(
    bundled: Any,
    standin_engine: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """llama-quantize segfaults on one quant: the other is made, measured, and picked from."""
    engine = standin_engine(
        "segfault", "quantize", "IQ2_XXS", real=Path(bundled.tool("quantize")).parent
    )
    recipe = tmp_path / "small.yaml"
    recipe.write_text(RECIPE.replace("limit: 8", "limit: 4"))
    monkeypatch.setenv("COOK_HOME", str(tmp_path / "home"))
    spec = f"standin={Path(engine.facts.bin_dir)}"
    assert main(["build", str(recipe), "--engine", spec, "--threads", "1", "--json"]) == 1
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert "Traceback" not in captured.err
    states = {s["label"]: s["state"] for s in document["steps"]}
    assert states["quantize MIXED (standin)"] == "failed"
    assert states["quantize Q4_K_M (standin)"] == "ran"
    live = {c["name"]: c["live"] is not None for c in document["candidates"]}
    assert len(live) == 5
    assert {name for name in live if not live[name]} == {"MIXED n_max=2", "MIXED n_max=4"}
    assert "segfault" in captured.err.lower() or "SIGSEGV" in captured.err
    assert list(Store(tmp_path / "home" / "store").verify()) == []


def test_a_split_quant_is_the_same_model_in_several_files(
    split: tuple[Record, tuple[Path, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    (whole, parted), paths = split[0].drafts, split[1]
    assert len(paths) > 2
    assert parted.file_bytes == sum(path.stat().st_size for path in paths)
    assert (parted.tensor_bytes, parted.types) == (whole.tensor_bytes, whole.types)
    assert parted.quality == whole.quality is not None
    one, several = read_gguf(str(whole.path)), read_gguf(paths[-1])
    for tensor in one.tensors:
        assert several.read_tensor_bytes(tensor.name) == one.read_tensor_bytes(tensor.name)
    inspected = []
    for path in (paths[0], paths[-1]):
        assert main(["inspect", str(path), "--json"]) == 0
        inspected.append(json.loads(capsys.readouterr().out))
    assert inspected[0] == inspected[1]


def test_gc_keeps_all_files_of_a_quant_while_a_record_names_the_first(
    split: tuple[Record, tuple[Path, ...]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    home = next(p for p in split[1][0].parents if (p / "split.yaml").exists())
    monkeypatch.setenv("COOK_HOME", str(home))
    assert main(["store", "gc", "--all"]) == 0
    assert all(path.is_file() for path in split[1])
    assert main(["store", "verify"]) == 0
    capsys.readouterr()
    assert main(["plan", str(home / "split.yaml"), "--json", "--threads", "1"]) == 0
    steps = json.loads(capsys.readouterr().out)["steps"]
    found = {s["label"]: s["state"] for s in steps if s["label"].startswith("quantize")}
    assert found == {f"quantize {name} (bundled)": "stored" for name in ("WHOLE", "SPLIT")}
