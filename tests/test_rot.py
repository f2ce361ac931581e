"""Rot and wrong memories, on the real engine: what a flipped byte does to the figures."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from cook.cli.main import main
from cook.graph.store import Artifact, Store
from cook.record.record import Record, read_record
from tests.builds import build

pytestmark = pytest.mark.engine

RECIPE = """\
version: 1
name: rot
model: {source: "demo://draft-f16.gguf"}
evaluate: {corpus: "demo://data/evaluation.txt", chunks: 4, args: {threads: 1}}
quants: [{name: Q8_0, type: Q8_0}]
"""
MORE = RECIPE.replace("chunks: 4", "chunks: 5")


def perplexity(record: Record) -> float:
    quality = record.drafts[0].quality
    assert quality.perplexity is not None
    return quality.perplexity


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory, bundled: Any) -> float:
    """The perplexity of the second recipe where nothing is rotten."""
    return perplexity(build(tmp_path_factory.mktemp("clean"), "rot", MORE))


def flip(path: Path) -> None:
    """One bit of the weights, high in an f16 scale, with size and modification time kept."""
    stat = path.stat()
    with path.open("r+b") as file:
        offset = stat.st_size * 2 // 3
        file.seek(offset)
        old = file.read(4096)
        file.seek(offset)
        file.write(bytes(b ^ 0x40 for b in old))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def quant(home: Path) -> Artifact:
    (found,) = (a for a in Store(home / "store").entries() if a.kind == "quantize")
    return found


def test_a_flipped_byte_is_caught_before_it_is_measured(
    tmp_path: Path, clean: float, capsys: pytest.CaptureFixture[str]
) -> None:
    """By another recipe, and by the same command again."""
    build(tmp_path, "rot", RECIPE)
    for message in ("has other content than was recorded; it is made again", "it is made again"):
        flip(quant(tmp_path).file("model.gguf"))
        capsys.readouterr()
        record = build(tmp_path, "rot", MORE)
        assert message in capsys.readouterr().err
        assert perplexity(record) == clean
        assert list(Store(tmp_path / "store").verify()) == []


def test_mending_takes_the_figures_of_the_rotten_quant_with_it(
    tmp_path: Path, clean: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rotten quant was measured under the good key."""
    build(tmp_path, "rot", RECIPE)
    artifact = quant(tmp_path)
    whole = artifact.meta.read_bytes()
    path = artifact.file("model.gguf")
    flip(path)
    # As a cook that looked at sizes only would have gone on.
    with monkeypatch.context() as patch:
        patch.setattr(Store, "damage", lambda *_: None)
        wrong = build(tmp_path, "rot", MORE)
    assert perplexity(wrong) != clean
    assert artifact.meta.read_bytes() == whole
    store = Store(tmp_path / "store")
    monkeypatch.setenv("COOK_HOME", str(tmp_path))
    assert main(["store", "verify"]) == 1
    assert main(["store", "verify", "--mend"]) == 0
    left = {a.kind for a in store.entries()}
    assert "quantize" not in left
    assert left, "the source's own figures stay"
    right = build(tmp_path, "rot", MORE)
    assert perplexity(right) == clean
    assert read_record(tmp_path / "records" / "rot.json").drafts == right.drafts
