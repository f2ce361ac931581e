"""A quant that the recipe wants in several files: built, told, kept, and published as such."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cook.cli.main import main
from cook.formats.gguf import read_gguf
from cook.formats.naming import shards_of
from cook.record.record import Record
from tests.builds import build

pytestmark = pytest.mark.engine

RECIPE = """\
version: 1
name: split
model: {source: "demo://draft-f16.gguf"}
evaluate: {corpus: "demo://data/evaluation.txt", chunks: 1, args: {threads: 1}}
quants:
  - {name: WHOLE, type: Q4_0, rules: [{'re:.': q4_0}]}
  - {name: SPLIT, extends: WHOLE, split: {max_size: 1M}}
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("split")


@pytest.fixture(scope="module")
def record(home: Path, bundled: object) -> Record:
    return build(home, "split", RECIPE)


@pytest.fixture(autouse=True)
def _at_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COOK_HOME", str(home))


def test_it_is_the_same_model_in_several_files(record: Record) -> None:
    whole, split = record.drafts
    paths = shards_of(Path(str(split.path)))
    assert len(paths) > 2
    assert split.file_bytes == sum(path.stat().st_size for path in paths)
    assert (split.tensor_bytes, split.types) == (whole.tensor_bytes, whole.types)
    assert split.quality == whole.quality is not None
    one, several = read_gguf(str(whole.path)), read_gguf(paths[-1])
    for tensor in one.tensors:
        assert several.read_tensor_bytes(tensor.name) == one.read_tensor_bytes(tensor.name)


def test_inspect_takes_any_of_them(record: Record, capsys: pytest.CaptureFixture[str]) -> None:
    paths = shards_of(Path(str(record.drafts[1].path)))
    told = []
    for path in (paths[0], paths[-1]):
        assert main(["inspect", str(path), "--json"]) == 0
        told.append(json.loads(capsys.readouterr().out))
    assert told[0] == told[1]


def test_gc_keeps_all_of_them_while_a_record_names_the_first(
    record: Record, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = shards_of(Path(str(record.drafts[1].path)))
    assert main(["store", "gc", "--all"]) == 0
    assert all(path.is_file() for path in paths)
    assert main(["store", "verify"]) == 0
    capsys.readouterr()
    assert main(["plan", str(home / "split.yaml"), "--json", "--threads", "1"]) == 0
    steps = json.loads(capsys.readouterr().out)["steps"]
    found = {s["label"]: s["state"] for s in steps if s["label"].startswith("quantize")}
    assert found == {f"quantize {name} (bundled)": "stored" for name in ("WHOLE", "SPLIT")}
