"""``cook store`` on an empty store, a good one, and a damaged one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cook.graph.store import Store
from cook.record.find import keep_record, kept_records
from tests import bare_records as bare
from tests.stored import stored

RECIPE = """\
version: 1
name: kept
model: {source: "demo://draft-f16.gguf"}
quants:
  - {name: Q8_0, type: q8_0, mixture: pure}
"""


def fill(
    root: Path, kind: str = "quantize", inputs: dict[str, str] | None = None, **fields: Any
) -> Path:
    """One artifact made from ``inputs``; its directory."""
    parts = {"metric": 1, "kind": kind, "inputs": inputs or {}}
    files = {"model.gguf": b"x" * 1000}
    return stored(Store(root), files, parts, kind=kind, label="Q4_0", **fields).directory


def test_empty(cook: Any, check_snapshot: Any) -> None:
    check_snapshot(cook("store", "ls"), "store-ls-empty")
    check_snapshot(cook("store", "verify"), "store-verify-empty")
    check_snapshot(cook("store", "gc"), "store-gc-empty")


def test_ls_tells_sizes(cook: Any) -> None:
    fill(cook.directory / "cook-home" / "store")
    done = cook("store", "ls", "--json")
    assert done.status == 0
    document = json.loads(done.stdout)
    (artifact,) = document["artifacts"]
    assert artifact["kind"] == "quantize"
    assert artifact["size_bytes"] == document["size_bytes"] == 1000


def test_verify_finds_damage(cook: Any) -> None:
    directory = fill(cook.directory / "cook-home" / "store")
    assert cook("store", "verify").status == 0
    (directory / "model.gguf").write_bytes(b"y" * 1000)
    done = cook("store", "verify", "--json")
    assert done.status == 1
    (fault,) = json.loads(done.stdout)["faults"]
    assert fault["path"] == str(directory / "model.gguf")
    assert "error: 1 fault in" in done.stderr


def test_verify_mends_with_all_that_was_made_from_it(cook: Any) -> None:
    root = cook.directory / "cook-home" / "store"
    quant = fill(root)
    measured = fill(root, kind="perplexity", inputs={"quant": quant.name})
    judged = fill(root, kind="compare", inputs={"one": measured.name})
    beside = fill(root, kind="perplexity", inputs={"quant": "0" * 64})
    (quant / "model.gguf").write_bytes(b"y" * 1000)
    told = cook("store", "verify", "--json")
    assert told.status == 1
    assert json.loads(told.stdout)["made_from_faults"] == [str(measured), str(judged)]
    assert "verify --mend" in told.stderr
    assert quant.is_dir()
    done = cook("store", "verify", "--mend", "--json")
    assert done.status == 0
    assert json.loads(done.stdout)["mended"]
    assert [p.is_dir() for p in (quant, measured, judged, beside)] == [False, False, False, True]
    assert cook("store", "verify").status == 0


def test_gc_removes_what_is_named(cook: Any) -> None:
    directory = fill(cook.directory / "cook-home" / "store")
    assert cook("store", "gc").status == 0
    assert cook("store", "gc", "--all", "--older", "1").status == 0
    assert cook("store", "gc", "--kind", "quantize", "--dry-run").status == 0
    assert directory.is_dir()
    done = cook("store", "gc", "--kind", "quantize", "--json")
    assert json.loads(done.stdout)["freed_bytes"] == 1000
    assert not directory.exists()


def test_gc_refuses_what_it_does_not_know(cook: Any, check_snapshot: Any) -> None:
    check_snapshot(cook("store", "gc", "--kind", "nope"), "store-gc-unknown-kind")
    check_snapshot(cook("store", "gc", "--older", "3"), "store-gc-older-alone")


def test_gc_spares_what_a_record_names(cook: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COOK_HOME", str(cook.directory / "cook-home"))
    directory = fill(cook.directory / "cook-home" / "store")
    named = replace(bare.DRAFT, path=str(directory / "model.gguf"))
    keep_record(replace(bare.RECORD, recipe="demo", drafts=(named,)))
    done = cook("store", "gc", "--all")
    assert "0 artifacts" in done.stdout
    assert "1 artifact kept, named by records" in done.stderr
    assert directory.is_dir()
    assert cook("store", "gc", "--all", "--named").status == 0
    assert not directory.exists()


def test_gc_says_that_an_unreadable_record_spares_nothing(
    cook: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COOK_HOME", str(cook.directory / "cook-home"))
    fill(cook.directory / "cook-home" / "store")
    keep_record(bare.RECORD).write_text("{}")
    done = cook("store", "gc", "--all", "--dry-run")
    assert done.status == 0
    assert "cannot be read, so models that only such a record names do not stay" in done.stderr


@pytest.mark.engine
def test_what_a_build_without_a_record_left_stays_for_its_recipe(cook: Any) -> None:
    recipe = cook.directory / "kept.yaml"
    recipe.write_text(RECIPE)
    assert cook("build", str(recipe), "--quiet").status == 0
    for record in (cook.directory / "cook-home" / "records").rglob("*"):
        if not record.is_dir():
            record.unlink()
    kept = cook("store", "gc", "--all", "--recipe", str(recipe), "--json")
    assert kept.status == 0
    left = json.loads(cook("store", "ls", "--json").stdout)["artifacts"]
    assert {"quantize", "tensor"} <= {artifact["kind"] for artifact in left}
    recipe.write_text(RECIPE.replace("q8_0", "q4_k"))  # another quant of the same source
    cook("store", "gc", "--all", "--recipe", str(recipe))
    left = json.loads(cook("store", "ls", "--json").stdout)["artifacts"]
    kinds = {artifact["kind"] for artifact in left}
    assert "tensor" in kinds
    assert "quantize" not in kinds
    assert cook("store", "gc", "--all", "--recipe", "nowhere.yaml").status == 2
    cook("store", "gc", "--all")
    assert json.loads(cook("store", "ls", "--json").stdout)["artifacts"] == []


def test_tensors_are_told_by_the_models_that_they_are_part_of(cook: Any) -> None:
    """One line for all, or each with its models; gc leaves those of models that stay."""
    root = cook.directory / "cook-home" / "store"
    used, unused = fill(root, "tensor"), fill(root, "tensor", {"source": "x"})
    model = fill(root, "quantize", pieces=frozenset({used.name}))
    assert "2 tensors, 1 of no model" in cook("store", "ls").stdout
    listed = cook("store", "ls", "--kind", "tensor").stdout
    assert listed.count("Q4_0, of Q4_0") == 1
    found = json.loads(cook("store", "ls", "--kind", "tensor", "--json").stdout)["artifacts"]
    assert {a["key"]: a["part_of"] for a in found} == {used.name: [model.name], unused.name: []}
    done = cook("store", "gc", "--kind", "tensor")
    assert done.status == 0
    assert "1 tensor of Q4_0\n" in done.stderr
    assert (used.is_dir(), unused.is_dir()) == (True, False)
    assert cook("store", "gc", "--all").status == 0
    assert not used.exists()
    assert not model.exists()


def test_gc_of_records_leaves_what_a_name_means(cook: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COOK_HOME", str(cook.directory / "cook-home"))
    for day in (20, 21, 22):
        keep_record(replace(bare.RECORD, recipe="demo", created=f"2026-11-{day}T00:00:00Z"))
    assert "would free" in cook("store", "gc", "--kind", "record", "--dry-run").stdout
    assert "2 records" in cook("store", "gc", "--kind", "record").stdout
    (left,) = kept_records("demo")
    assert left.newest
