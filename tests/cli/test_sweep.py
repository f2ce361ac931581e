"""``cook sweep`` and ``cook report --against`` as they are typed: streams, faults, exit codes."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from cook.nightly.history import Night, append, night_of
from cook.record.record import Record, write_record
from tests.nightly.nights import Series, World


def record(created: str, share: float = 1.0) -> Record:
    """That of one night; its draft accepts ``share`` of what it does on all others."""
    made = Series(World(prompts=40, tokens=101), seed=1, lengths=(4,)).measure().record
    bare, draft = made.candidates
    assert draft.prompts is not None
    accepted = tuple(int(share * (n or 0)) for n in draft.prompts.accepted)
    draft = replace(draft, prompts=replace(draft.prompts, accepted=accepted))
    return replace(made, created=created, recipe="tiny", replayed=(), candidates=(bare, draft))


def written(cook: Any, name: str, made: Record) -> str:
    write_record(made, cook.directory / name)
    return name


def test_a_record_against_itself_and_against_a_better_one(cook: Any) -> None:
    before = written(cook, "before.json", record("2026-11-20T02:00:00Z"))
    same = written(cook, "same.json", record("2026-11-21T02:00:00Z"))
    worse = written(cook, "worse.json", record("2026-11-21T02:00:00Z", share=0.85))
    done = cook("report", same, "--against", before)
    assert done.status == 0, done.stderr
    assert "regression" not in done.stdout
    done = cook("report", worse, "--against", before)
    assert done.status == 4, done.stderr
    first = " ".join(done.stdout.splitlines()[1].split())
    assert first.startswith("regression acceptance Q4 n_max=4 ")
    assert re.search(r"\d\d\.\d% to \d\d\.\d%, -\d+\.\d points", first)
    assert done.stderr.splitlines()[-1] == "error: 1 regression: acceptance of Q4 n_max=4"
    done = cook("report", worse, "--against", before, "--json")
    assert done.status == 4
    document = json.loads(done.stdout)
    assert document["against"]["before"] == "2026-11-20T02:00:00Z"
    verdicts = {(f["gate"], f["verdict"]) for f in document["against"]["findings"]}
    assert ("acceptance", "regression") in verdicts
    assert ("perplexity, KLD, size", "same") in verdicts
    assert not list(cook.directory.glob("*.html"))


def nights(*records: Record) -> list[Night]:
    return [night_of(made, "tiny-bundled").judged((), ()) for made in records]


def test_against_a_history_the_last_good_night_counts(cook: Any) -> None:
    history = cook.directory / "h.jsonl"
    first, bad = nights(record("2026-11-18T02:00:00Z"), record("2026-11-19T02:00:00Z", share=0.85))
    append(history, first)
    append(history, replace(bad, good=False, regressions=("acceptance",)))
    tonight = record("2026-11-20T02:00:00Z", share=0.85)
    append(history, night_of(tonight, "tiny-bundled").judged((), ("acceptance",)))
    name = written(cook, "tonight.json", tonight)
    done = cook("report", name, "--against", "h.jsonl")
    assert done.status == 4, done.stderr
    assert "compared with 2026-11-18T02:00:00Z" in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("report tonight.json --against none.jsonl", "no such history"),
        ("report tonight.json --against h.jsonl", "no earlier good night of tiny"),
        ("sweep demo --cell demo-bundeld", "did you mean `demo-bundled`?"),
        ("sweep demo --plan --all", "cannot be asked together"),
        ("sweep demo --report nowhere", "no such folder"),
    ],
)
def test_what_cannot_be_answered(cook: Any, words: str, message: str) -> None:
    written(cook, "tonight.json", record("2026-11-20T02:00:00Z"))
    append(cook.directory / "h.jsonl", nights(record("2026-11-21T02:00:00Z"))[0])
    done = cook(*words.split())
    assert done.status == 2
    assert message in done.stderr


def test_faults_of_a_pipeline_have_their_place(cook: Any) -> None:
    (cook.directory / "p.yaml").write_text("version: 1\nname: p\nrecipes: [demo]\nfoo: 1\n")
    done = cook("sweep", "p.yaml", "--json")
    assert done.status == 2
    error = json.loads(done.stdout)["error"]
    assert [(p["line"], p["column"]) for p in error["problems"]] == [(4, 1)]
    assert "1 error in the pipeline" in done.stderr


def test_the_plan_is_one_line_on_stdout(cook: Any) -> None:
    done = cook("sweep", "demo", "--plan")
    assert done.status == 0, done.stderr
    (line,) = done.stdout.splitlines()
    assert json.loads(line)["include"][0]["cell"] == "demo-bundled"
    assert json.loads(cook("sweep", "demo", "--plan", "--json").stdout) == json.loads(line)
