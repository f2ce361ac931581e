"""A question answered once is answered by its receipt, while every file it watches is as it was."""

from __future__ import annotations

import io
import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from cook.job.answer import find, keep, print_build
from cook.job.run import Built
from cook.output import Mode, Output
from cook.provenance import machine
from cook.report.document import Table
from cook.report.show import NOTHING_RAN, Shown

QUESTION = {"build": Path("r.yaml"), "engine": None}
SHEET = Table((("quant", "left"),), (("Q8_0",), (None,)), strong=0)
ANSWER = Shown(SHEET, SHEET, ("pick: x",), ("careful",), ("note",))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COOK_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def watched(tmp_path: Path) -> Path:
    """A file that the kept answer depends on."""
    file = tmp_path / "model.gguf"
    file.write_bytes(b"model")
    keep_answer(file, began=time.time() + 1)
    return file


def keep_answer(file: Path, began: float) -> None:
    record = file.with_name("record.json")
    record.write_text("{}")
    keep(QUESTION, [file], ANSWER, record, began=began)


def test_the_second_answer_is_the_first_one_s_until_asked_afresh(made_up: Built) -> None:
    builds: list[Built] = []

    def ask(mode: Mode = Mode.HUMAN, again: str | None = None) -> str:
        def build() -> Built:
            builds.append(made_up)
            return made_up

        out, err = io.StringIO(), io.StringIO()
        print_build({"recipe": "made-up.yaml"}, build, Output(mode, out, err), again=again)
        return out.getvalue() + err.getvalue()

    assert "large" in ask()
    assert NOTHING_RAN in ask()
    document = json.loads(ask(Mode.JSON))
    assert document["ran"] == []
    assert Path(document["record"]).exists()
    assert len(builds) == 1
    ask(again="--remeasure")
    ask(again="--fresh")
    assert len(builds) == 3


def test_the_same_question_gets_the_same_answer_and_another_none(watched: Path) -> None:
    assert find(QUESTION) == (ANSWER, watched.with_name("record.json"))
    assert find({**QUESTION, "engine": "ik"}) is None


@pytest.mark.parametrize("change", ["in place", "touch", "replace", "remove"])
def test_any_change_of_a_file_voids_it(watched: Path, change: str) -> None:
    if change == "in place":
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


def test_what_changed_while_it_was_built_is_not_kept(tmp_path: Path) -> None:
    """A recipe edited during a build: the answer is not about it."""
    recipe, began = tmp_path / "r.yaml", time.time()
    time.sleep(0.1)
    recipe.write_text("after")
    keep_answer(recipe, began)
    assert find(QUESTION) is None


def test_nothing_is_kept_of_what_another_cook_has_removed(home: Path) -> None:
    """`cook store gc` while the answer is written down: the next build makes it again."""
    removed = home / "store" / "imatrix" / "k" / "data"
    removed.parent.mkdir(parents=True)
    keep_answer(removed, time.time() + 1)
    assert find(QUESTION) is None


@pytest.mark.parametrize("name", ["COOK_ENGINE_IK", "OMP_PROC_BIND", "CUDA_VISIBLE_DEVICES"])
def test_an_environment_that_changes_engines_voids_it(
    watched: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """What is timed has the variables of devices and threads in its key."""
    monkeypatch.setenv(name, "somewhere")
    assert find(QUESTION) is None


def test_another_machine_voids_it(watched: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer cores of the same, say: its timings are none of what was answered."""
    smaller = replace(machine(), cores=machine().cores + 1)
    monkeypatch.setattr("cook.job.answer.machine", lambda: smaller)
    assert find(QUESTION) is None


@pytest.mark.parametrize("name", ["HF_TOKEN", "COOK_API_KEY"])
def test_a_login_is_neither_kept_nor_asked_about(
    tmp_path: Path, watched: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "s3cret-s3cret")
    assert find(QUESTION) is not None
    keep_answer(watched, time.time() + 1)
    for file in (p for p in tmp_path.rglob("*") if p.is_file()):
        assert b"s3cret" not in file.read_bytes()


def test_a_receipt_that_is_damaged_or_a_pipe_is_none(watched: Path, home: Path) -> None:
    (receipt,) = (home / "receipts").iterdir()
    receipt.write_text('{"format": 1, "files": 3}')
    assert find(QUESTION) is None
    receipt.unlink()
    os.mkfifo(receipt)
    assert find(QUESTION) is None
