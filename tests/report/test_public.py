"""What is shared names files, and nothing of the machine that made the record."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from cook.hub.upload import PublishRequest, pack
from cook.record.record import Record, StepRecord
from cook.report.card import CardFacts, card
from cook.report.public import NAMES_NOTE, public
from cook.report.view import document
from cook.report.writing import html_page, markdown

HOMES = {
    "/home/jane": "jane",
    "/Users/Jane Doe (my pc)": "Jane",
    "/root/work": "/root",
    "/data/jäne's $files/a=b,c": "jäne",
}


def made_at(home: str, record: Record) -> Record:
    """``record`` as a machine with ``home`` would have made it."""
    model = f"{home}/models/My Models/Ling-BF16.gguf"
    target = f"{home}/models/Ling-1T.gguf"
    made, *others = record.drafts
    stored = f"{home}/.local/share/cook/store/quantize/{made.key}/model.gguf"
    winner = replace(
        record.candidates[1],
        name=record.pick.candidate or "",
        command=(
            *(f"{home}/ik/build/bin/llama-server", "--model", target, "--port", "8080"),
            *("--api-key-file", f"{home}/key", "--spec-draft-model", stored),
            *(f"--slot-save-path={home}/slots/", "-ngld", "99"),
        ),
    )
    quantize = (f"{home}/ik/build/bin/llama-quantize", "--imatrix", f"{home}/m/imatrix.dat")
    return replace(
        record,
        command=(f"{home}/cook/cook/__main__.py", "build", f"{home}/recipes/mine.yaml"),
        target=target,
        drafts=(replace(made, path=stored), *others),
        candidates=(winner, *(c for c in record.candidates if c.name != winner.name)),
        recipe_text=f"name: mine\nmodel: {{source: '{model}'}}\n# see {home}/notes/today.md\n",
        warnings=(f"{target}: read slowly from file://{home}/models/Ling-1T.gguf.", f"in {home}"),
        steps=(
            StepRecord(
                *("quantize", "quantize", made.key, "failed", 1.0),
                (*quantize, model, f"{home}/store/tmp/12/model.gguf", "IQ1_KT", "8"),
                error=f"cannot write {home}/store/tmp/12/model.gguf: No space left on device",
            ),
        ),
    )


@pytest.mark.parametrize("home", HOMES)
def test_no_path_of_the_machine_is_shared(record: Record, home: str) -> None:
    record = made_at(home, record)
    shown = document(record)
    facts = CardFacts("Ling", {"Q8_0": ("Ling-Q8_0.gguf",)})
    for text in (html_page(shown), markdown(shown), card(record, facts)):
        for part in (home, HOMES[home], "My Models", ".local", "/store"):
            assert part not in text
        assert "Ling-1T.gguf" in text
        assert "Ling-BF16.gguf" in text
    assert NAMES_NOTE in html_page(shown)
    assert NAMES_NOTE in markdown(shown)


def test_files_have_names_that_tell_them_apart(record: Record) -> None:
    found = public(made_at("/home/jane", record))
    assert found.command == ("cook", "build", "mine.yaml")
    assert found.candidates[0].command[:3] == ("llama-server", "--model", "Ling-1T.gguf")
    assert found.drafts[0].path == "Q8_0.gguf"
    assert "Q8_0.gguf" in found.candidates[0].command
    assert found.steps[0].command[3:] == ("Ling-BF16.gguf", "Q8_0.gguf", "IQ1_KT", "8")
    assert found.steps[0].error == "cannot write Q8_0.gguf: No space left on device"
    assert found.warnings == ("Ling-1T.gguf: read slowly from Ling-1T.gguf.", "in ~")


def test_what_is_no_path_of_a_machine_stays(record: Record) -> None:
    texts = (
        "62.5 t/s and 3/4 of them",
        "https://huggingface.co/org/name/file.gguf",
        "hf://org/name/file.gguf",
        r"blk\.(0|1)\.ffn_(up|down)_exps=iq1_kt",
        "recipes/demo.yaml, ../imatrix/v1.txt, ./a/b and ~/ik/build",
    )
    found = public(replace(record, warnings=texts, recipe_text="\n".join(texts)))
    assert found.warnings == texts
    assert found.recipe_text == "\n".join(texts)


def test_a_publication_holds_no_path(
    record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "Jane Doe (my pc)"
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("COOK_HOME", str(home / "cook"))
    record = made_at(str(home), record)
    stored = Path(record.drafts[0].path or "")
    stored.parent.mkdir(parents=True)
    stored.write_bytes(b"a draft")
    drafts = (replace(record.drafts[0], file_bytes=7), *record.drafts[1:])
    package = pack(replace(record, drafts=drafts), PublishRequest("me/Ling-GGUF"))
    texts = {item.path: item.content for item in package.items if isinstance(item.content, bytes)}
    assert set(texts) == {"README.md", "recipe.yaml", "record.json"}
    for content in texts.values():
        assert b"Jane" not in content
        assert str(tmp_path).encode() not in content
    assert json.loads(texts["record.json"])["drafts"][0]["path"] == "Ling-Q8_0.gguf"
