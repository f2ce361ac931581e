"""A receipt answers only while every file it watches is as it was."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from cook.job.answer import find, keep
from cook.report.document import Table
from cook.report.show import Shown

QUESTION = {"build": Path("r.yaml"), "engine": None}
SHEET = Table((("quant", "left"),), (("Q8_0",), (None,)), strong=0)
ANSWER = Shown(SHEET, SHEET, ("pick: x",), ("careful",), ("note",))


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that the kept answer depends on."""
    monkeypatch.setenv("COOK_HOME", str(tmp_path / "home"))
    file, record = tmp_path / "model.gguf", tmp_path / "record.json"
    file.write_bytes(b"model")
    record.write_text("{}")
    keep(QUESTION, [file], ANSWER, record, began=time.time() + 1)
    return file


def test_the_same_question_gets_the_same_answer(watched: Path) -> None:
    found = find(QUESTION)
    assert found is not None
    assert found[0] == ANSWER
    assert found[1].name == "record.json"


def test_another_question_gets_none(watched: Path) -> None:
    assert find({**QUESTION, "engine": "ik"}) is None


@pytest.mark.parametrize("change", ["content", "in place", "touch", "replace", "remove"])
def test_any_change_of_a_file_voids_it(watched: Path, change: str) -> None:
    if change == "content":
        watched.write_bytes(b"MODEL")
    elif change == "in place":
        stat = watched.stat()
        watched.write_bytes(b"MODEL")
        os.utime(watched, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    elif change == "touch":
        os.utime(watched, ns=(1, 1))
    elif change == "replace":
        other = watched.with_suffix(".new")
        other.write_bytes(b"model")
        other.replace(watched)
    else:
        watched.unlink()
    assert find(QUESTION) is None


def test_what_changed_while_it_was_built_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recipe edited during a build: the answer is not about it."""
    monkeypatch.setenv("COOK_HOME", str(tmp_path / "home"))
    recipe, record = tmp_path / "r.yaml", tmp_path / "record.json"
    record.write_text("{}")
    recipe.write_text("before")
    began = time.time()
    time.sleep(0.1)
    recipe.write_text("after")
    keep(QUESTION, [recipe], ANSWER, record, began=began)
    assert find(QUESTION) is None


def test_nothing_is_kept_of_what_another_cook_has_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`cook store gc` while the answer is written down: the next build makes it again."""
    monkeypatch.setenv("COOK_HOME", str(tmp_path / "home"))
    removed, record = tmp_path / "home" / "store" / "imatrix" / "k" / "data", tmp_path / "r.json"
    record.write_text("{}")
    keep(QUESTION, [removed], ANSWER, record, began=time.time() + 1)
    assert find(QUESTION) is None


def test_an_environment_that_changes_engines_voids_it(
    watched: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COOK_ENGINE_IK", "/somewhere")
    assert find(QUESTION) is None


@pytest.mark.parametrize("name", ["HF_TOKEN", "COOK_API_KEY"])
def test_a_login_is_neither_kept_nor_asked_about(
    tmp_path: Path, watched: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "s3cret-s3cret")
    assert find(QUESTION) is not None
    record = tmp_path / "record.json"
    keep(QUESTION, [watched], ANSWER, record, began=time.time() + 1)
    for file in (p for p in tmp_path.rglob("*") if p.is_file()):
        assert b"s3cret" not in file.read_bytes()


def test_a_damaged_receipt_is_none(watched: Path, tmp_path: Path) -> None:
    for file in (tmp_path / "home" / "receipts").iterdir():
        file.write_text('{"format": 1, "files": 3}')
    assert find(QUESTION) is None


def test_a_pipe_in_the_place_of_a_receipt_is_not_waited_for(watched: Path, tmp_path: Path) -> None:
    for file in (tmp_path / "home" / "receipts").iterdir():
        file.unlink()
        os.mkfifo(file)
    assert find(QUESTION) is None
