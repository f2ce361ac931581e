"""``cook sweep`` and ``cook report --against`` as they are typed: streams, faults, exit codes."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from cook.nightly.history import append
from cook.nightly.night import Night, night_of
from cook.record.measured import Figures, PromptFigures, Quality
from cook.record.record import Candidate, Pick, Record, write_record
from tests.bare_records import CANDIDATE, DRAFT, RECORD

PROMPTS = 40


def figures(prompts: PromptFigures) -> Figures:
    tokens, ms = sum(prompts.tokens), sum(prompts.decode_ms)
    return Figures(
        requests=PROMPTS,
        prompt_tokens=400,
        tokens=tokens,
        decode_ms=ms,
        wall_ms=ms,
        drafted=None,
        accepted=None,
        cycles=None,
        decode_speed=1000 * tokens / ms,
        end_to_end_speed=1000 * tokens / ms,
    )


def column(ms: float, accepted: int | None) -> PromptFigures:
    wave = [1 + 0.01 * (i % 5) for i in range(PROMPTS)]
    return PromptFigures(
        ids=tuple(f"p{i}" for i in range(PROMPTS)),
        categories=tuple(f"c{i % 4}" for i in range(PROMPTS)),
        tokens=(100,) * PROMPTS,
        decode_ms=tuple(ms * w for w in wave),
        wall_ms=tuple(ms * w + 10 for w in wave),
        drafted=(None if accepted is None else 120,) * PROMPTS,
        accepted=tuple(None if accepted is None else accepted - i % 3 for i in range(PROMPTS)),
    )


def candidate(name: str, draft: str | None, prompts: PromptFigures) -> Candidate:
    return replace(CANDIDATE, name=name, draft=draft, live=figures(prompts), prompts=prompts)


def record(created: str, accepted: int = 70) -> Record:
    quality = Quality(8.0, 0.1, 100, 512, mean_kld=0.05, mean_kld_error=0.001)
    return replace(
        RECORD,
        created=created,
        recipe="tiny",
        recipe_sha256="1" * 64,
        prompts_sha256="2" * 64,
        max_tokens=101,
        drafts=(
            replace(
                DRAFT,
                file_bytes=1000,
                tensor_bytes=900,
                bpw=4.5,
                quality=quality,
                quality_reason=None,
                memory_reason=None,
            ),
        ),
        candidates=(
            candidate("no draft", None, column(1000, None)),
            candidate("Q4 n_max=4", "Q4", column(600, accepted)),
        ),
        pick=Pick("Q4 n_max=4", "Q4.", "decode_speed", 0.95, 0.01, 1.0, (), ()),
    )


def written(cook: Any, name: str, made: Record) -> str:
    write_record(made, cook.directory / name)
    return name


def test_a_record_against_itself_and_against_a_better_one(cook: Any) -> None:
    before = written(cook, "before.json", record("2026-11-20T02:00:00Z"))
    same = written(cook, "same.json", record("2026-11-21T02:00:00Z"))
    worse = written(cook, "worse.json", record("2026-11-21T02:00:00Z", accepted=60))
    done = cook("report", same, "--against", before)
    assert done.status == 0, done.stderr
    assert "regression" not in done.stdout
    done = cook("report", worse, "--against", before)
    assert done.status == 4, done.stderr
    first = " ".join(done.stdout.splitlines()[1].split())
    assert first.startswith("regression acceptance Q4 n_max=4 57.5% to 49.2%, -8.3 points")
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
    first, bad = nights(record("2026-11-18T02:00:00Z"), record("2026-11-19T02:00:00Z", accepted=60))
    append(history, first)
    append(history, replace(bad, good=False, regressions=("acceptance",)))
    tonight = record("2026-11-20T02:00:00Z", accepted=60)
    append(history, night_of(tonight, "tiny-bundled").judged((), ("acceptance",)))
    name = written(cook, "tonight.json", tonight)
    done = cook("report", name, "--against", "h.jsonl")
    assert done.status == 4, done.stderr
    assert "compared with 2026-11-18T02:00:00Z" in done.stderr


def test_nothing_to_compare_with_is_said(cook: Any) -> None:
    name = written(cook, "tonight.json", record("2026-11-20T02:00:00Z"))
    done = cook("report", name, "--against", "none.jsonl")
    assert done.status == 2
    assert "no such history" in done.stderr
    append(cook.directory / "h.jsonl", nights(record("2026-11-21T02:00:00Z"))[0])
    done = cook("report", name, "--against", "h.jsonl")
    assert done.status == 2
    assert "no earlier good night of tiny" in done.stderr


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


def test_a_cell_that_is_not_there_and_questions_that_do_not_go_together(cook: Any) -> None:
    done = cook("sweep", "demo", "--cell", "demo-bundeld")
    assert done.status == 2
    assert "did you mean `demo-bundled`?" in done.stderr
    done = cook("sweep", "demo", "--plan", "--all")
    assert done.status == 2
    assert "cannot be asked together" in done.stderr
    done = cook("sweep", "demo", "--report", "nowhere")
    assert done.status == 2
    assert "no such folder" in done.stderr
