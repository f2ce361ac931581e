"""Command lines and their exit codes, in a home without engines that has a few documents.

The file is the list: a line of it is a code and the words after `cook`. To add one, write it with
any code and freeze.
"""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest

from cook.cli.main import COMMANDS, MEMBERS, main
from cook.engines import discover
from cook.paths import demo_dir
from cook.record.find import keep_record
from cook.record.record import read_record
from tests.oracles.freeze import FILES, require_frozen

DATA = FILES.parent
ROWS = [line.split("\t") for line in (FILES / "exit_codes.tsv").read_text("utf-8").splitlines()[1:]]
COPIES = {
    "demo.json": "records/demo.json",
    "live.json": "records/live.json",
    "t.trace": "records/target.trace",
    "history.jsonl": "records/history.jsonl",
    "server.log": "server_logs/llama-cpp.log",
    "tensors.tsv": "ling-flash-2.0.tensors.tsv",
    "make.sh": "make-quant-IQ1_KT.sh",
    "broken.yaml": "broken_recipes/unknown_keys.yaml",
    "unsafe.yaml": "broken_recipes/hostile_flags.yaml",
}


TEXTS = {
    "noise.json": "{",
    "text.txt": "a text\n",
    "mine.yaml": "version: 1\nmodel: {source: draft.gguf}\nquants: [{name: A, type: q4_K}]\n",
    "night.yaml": "version: 1\nname: night\nrecipes: [mine.yaml]\nengines: [bundled]\n",
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the documents, and a home in which one record is kept."""
    folder, home = tmp_path / "here", tmp_path / "home"
    folder.mkdir()
    home.mkdir()
    for name, source in COPIES.items():
        shutil.copy(DATA / source, folder / name)
    for name, text in TEXTS.items():
        (folder / name).write_text(text, "utf-8")
    (folder / "draft.gguf").symlink_to(draft := demo_dir() / "draft-f16.gguf")
    (folder / "cut.gguf").write_bytes(draft.read_bytes()[:3000])
    (folder / "cut.trace").write_bytes((DATA / "records/target.trace").read_bytes()[:3000])
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COOK_HOME", str(home))
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("COOK_ENGINE_IK", raising=False)
    monkeypatch.setattr(discover, "_bundled_dir", lambda: tmp_path / "no-engine")
    keep_record(read_record(DATA / "records/demo.json"))
    return folder


@pytest.fixture(scope="module")
def found() -> dict[str, int]:
    return {}


@pytest.mark.parametrize("line", [line for _, line in ROWS])
def test_runs(
    here: Path, line: str, found: dict[str, int], capsys: pytest.CaptureFixture[str]
) -> None:
    """It ends without a traceback; the code is compared below, with all others."""
    found[line] = main(shlex.split(line))
    captured = capsys.readouterr()
    assert "Traceback" not in captured.out + captured.err
    assert found[line] != 3, captured.err


def test_the_codes(found: dict[str, int]) -> None:
    """Of the lines that ran: all, or those that the command line of pytest names."""
    if found.keys() < {line for _, line in ROWS}:
        pytest.skip("not every line ran")
    require_frozen(
        "exit_codes.tsv",
        ["code\tcook ...", *(f"{found[line]}\t{line}" for _, line in ROWS)],
    )


def test_every_command_ends_well_and_badly() -> None:
    """Those that need an engine or the Hub for a good end stand with --help only."""
    lines = [(int(code), line) for code, line in ROWS]
    for name in COMMANDS:
        for member in MEMBERS.get(name, ("",)):
            path = f"{name} {member}".strip()
            own = {code for code, line in lines if f"{line} ".startswith(f"{path} ")}
            assert 0 in own, path
            assert own - {0}, path
