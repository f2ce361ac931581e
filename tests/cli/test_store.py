"""``cook store`` on an empty store, a good one, and a damaged one."""

from __future__ import annotations

import json
import time
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


@pytest.fixture
def root(cook: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The store of ``cook``, whose home is the test's own as well."""
    monkeypatch.setenv("COOK_HOME", str(cook.directory / "cook-home"))
    return Path(cook.directory / "cook-home" / "store")


def listed(cook: Any, *words: str) -> list[dict[str, Any]]:
    """The artifacts of ``cook store ls``."""
    document: dict[str, Any] = json.loads(cook("store", "ls", *words, "--json").stdout)
    return list(document["artifacts"])


def test_empty(cook: Any, check_snapshot: Any) -> None:
    check_snapshot(cook("store", "ls"), "store-ls-empty")
    check_snapshot(cook("store", "verify"), "store-verify-empty")
    check_snapshot(cook("store", "gc"), "store-gc-empty")


def test_verify_mends_with_all_that_was_made_from_it(cook: Any, root: Path) -> None:
    quant = fill(root)
    measured = fill(root, kind="perplexity", inputs={"quant": quant.name})
    judged = fill(root, kind="compare", inputs={"one": measured.name})
    other = fill(root, kind="perplexity", inputs={"quant": "0" * 64})
    assert cook("store", "verify").status == 0
    (quant / "model.gguf").write_bytes(b"y" * 1000)
    done = cook("store", "verify", "--json")
    assert done.status == 1
    document = json.loads(done.stdout)
    assert [fault["path"] for fault in document["faults"]] == [str(quant / "model.gguf")]
    assert document["made_from_faults"] == [str(measured), str(judged)]
    assert "error: 1 fault in" in done.stderr
    assert "verify --mend" in done.stderr
    assert quant.is_dir()
    done = cook("store", "verify", "--mend", "--json")
    assert done.status == 0
    assert json.loads(done.stdout)["mended"]
    assert [p.is_dir() for p in (quant, measured, judged, other)] == [False, False, False, True]
    assert cook("store", "verify").status == 0


def test_gc_removes_what_is_named(cook: Any, root: Path) -> None:
    directory = fill(root)
    document = json.loads(cook("store", "ls", "--json").stdout)
    (artifact,) = document["artifacts"]
    assert artifact["kind"] == "quantize"
    assert artifact["size_bytes"] == document["size_bytes"] == 1000
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


def test_gc_spares_what_a_record_names(cook: Any, root: Path) -> None:
    directory = fill(root)
    named = replace(bare.DRAFT, path=str(directory / "model.gguf"))
    keep_record(replace(bare.RECORD, recipe="demo", drafts=(named,)))
    done = cook("store", "gc", "--all")
    assert "0 artifacts" in done.stdout
    assert "1 artifact kept, named by records" in done.stderr
    assert directory.is_dir()
    assert cook("store", "gc", "--all", "--named").status == 0
    assert not directory.exists()


def test_gc_says_that_an_unreadable_record_spares_nothing(cook: Any, root: Path) -> None:
    fill(root)
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
    assert cook("store", "gc", "--all", "--recipe", str(recipe), "--json").status == 0
    assert {"quantize", "tensor"} <= {artifact["kind"] for artifact in listed(cook)}
    recipe.write_text(RECIPE.replace("q8_0", "q4_k"))  # another quant of the same source
    cook("store", "gc", "--all", "--recipe", str(recipe))
    kinds = {artifact["kind"] for artifact in listed(cook)}
    assert "tensor" in kinds
    assert "quantize" not in kinds
    assert cook("store", "gc", "--all", "--recipe", "nowhere.yaml").status == 2
    cook("store", "gc", "--all")
    assert listed(cook) == []


def test_tensors_are_shown_with_the_models_that_they_are_part_of(cook: Any, root: Path) -> None:
    """One line for all, or each with its models; gc leaves those of models that stay."""
    used, unused = fill(root, "tensor"), fill(root, "tensor", {"source": "x"})
    model = fill(root, "quantize", pieces=frozenset({used.name}))
    assert "2 tensors, 1 of no model" in cook("store", "ls").stdout
    assert cook("store", "ls", "--kind", "tensor").stdout.count("Q4_0, of Q4_0") == 1
    parts = {a["key"]: a["part_of"] for a in listed(cook, "--kind", "tensor")}
    assert parts == {used.name: [model.name], unused.name: []}
    done = cook("store", "gc", "--kind", "tensor")
    assert done.status == 0
    assert "1 tensor of Q4_0\n" in done.stderr
    assert (used.is_dir(), unused.is_dir()) == (True, False)
    assert cook("store", "gc", "--all").status == 0
    assert not used.exists()
    assert not model.exists()


def test_gc_of_records_leaves_what_a_name_means(cook: Any, root: Path) -> None:
    for day in (20, 21, 22):
        keep_record(replace(bare.RECORD, recipe="demo", created=f"2026-11-{day}T00:00:00Z"))
    assert "would free" in cook("store", "gc", "--kind", "record", "--dry-run").stdout
    assert "2 records" in cook("store", "gc", "--kind", "record").stdout
    (left,) = kept_records("demo")
    assert left.newest


def test_gc_of_records_goes_by_the_hour_and_refuses_impossible_ages(cook: Any, root: Path) -> None:
    for hours in (40, 30, 3):
        ago = time.gmtime(time.time() - 3600 * hours)
        keep_record(replace(bare.RECORD, created=time.strftime("%Y-%m-%dT%H:%M:%SZ", ago)))
    done = cook("store", "gc", "--kind", "record", "--older", "1.5", "--json")
    assert json.loads(done.stdout)["removed"] == 1
    assert len(kept_records()) == 2
    for days in ("nan", "-1", "1e300"):
        done = cook("store", "gc", "--kind", "record", "--older", days)
        assert (done.status, "days are 0 to 36,500" in done.stderr) == (2, True)
