"""``cook score`` refuses what it cannot score: one clear error, its status, nothing left behind."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cook.cli.main import main
from cook.paths import demo_dir

pytestmark = pytest.mark.engine

TARGET, DRAFT = str(demo_dir() / "target-q8_0.gguf"), str(demo_dir() / "draft-f16.gguf")
PAIR = ("--target", TARGET, DRAFT)
GIVEN = (*PAIR, "--prompts", "p.jsonl", "--trace", "t.trace")
PROMPTS = "".join(
    json.dumps({"id": f"p{i}", "category": "ab"[i % 2], "prompt": f"def area_{i}(width):\n"}) + "\n"
    for i in range(4)
)


@pytest.fixture(scope="module")
def recorded(bundled: Any, engine_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with prompts and the demo target's trace over them, 16 tokens each."""
    folder = tmp_path_factory.mktemp("recorded")
    (folder / "p.jsonl").write_text(PROMPTS)
    trace, prompts = str(folder / "t.trace"), str(folder / "p.jsonl")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COOK_HOME", str(engine_home))
        asked = ["trace", "--target", TARGET, "--prompts", prompts, "-o", trace, "-q"]
        limits = ["--max-tokens", "16", "--context", "512", "--threads", "1"]
        assert main([*asked, *limits]) == 0
    return folder


@pytest.fixture
def here(cook: Any, recorded: Path, engine_home: Path, tiny_model: Path, tiny_draft: Path) -> Any:
    """A cook next to copies of the trace, whole and cut, and of models with other tokens."""
    shutil.copytree(recorded, cook.directory, dirs_exist_ok=True)
    whole = (recorded / "t.trace").read_bytes()
    (cook.directory / "header.trace").write_bytes(whole[:3000])
    (cook.directory / "short.trace").write_bytes(whole[:-200])
    shutil.copy(tiny_model, cook.directory / "tiny.gguf")
    shutil.copy(tiny_draft, cook.directory / "tiny-draft.gguf")
    (cook.directory / "others.jsonl").write_text(PROMPTS.replace('"id": "p', '"id": "q'))
    (cook.directory / "changed.jsonl").write_text(PROMPTS.replace("width", "height"))
    (cook.directory / "one.jsonl").write_text(PROMPTS.splitlines()[0])
    return replace(cook, environment={**cook.environment, "COOK_HOME": str(engine_home)})


REFUSED: dict[str, tuple[int, tuple[str, ...]]] = {
    "no-target": (2, (DRAFT,)),
    "no-drafts": (2, ("--target", TARGET)),
    "no-draft-file": (2, ("--target", TARGET, "no.gguf")),
    "no-target-file": (2, ("--target", "no.gguf", DRAFT)),
    "no-trace-file": (2, (*PAIR, "--trace", "no.trace")),
    "lengths-twice": (2, (*PAIR, "--n-max", "4", "--n-max", "4")),
    "no-such-prompts": (2, (*PAIR, "--prompts", "nonsense")),
    "one-prompt": (2, (*PAIR, "--prompts", "one.jsonl")),
    "one-token": (2, (*PAIR, "--max-tokens", "1")),
    "no-such-engine": (5, (*PAIR, "--engine", "unknown")),
    "cache-type-of-another-engine": (5, (*PAIR, "--draft-cache-type", "q6_0")),
    "other-tokens": (2, ("--target", TARGET, "tiny.gguf")),
    "trace-of-another-target": (2, ("--target", DRAFT, *GIVEN[2:])),
    "trace-of-another-tokenizer": (2, ("--target", "tiny.gguf", "tiny-draft.gguf", *GIVEN[3:])),
    "trace-of-another-length": (2, (*GIVEN, "--max-tokens", "32")),
    "trace-of-another-chain": (2, (*GIVEN, "--temperature", "0.8")),
    "trace-without-a-header": (2, (*GIVEN[:-1], "header.trace")),
    "trace-that-is-none": (2, (*GIVEN[:-1], "p.jsonl")),
    "trace-of-other-prompts": (2, (*PAIR, "--prompts", "others.jsonl", "--trace", "t.trace")),
    "trace-of-changed-prompts": (2, (*PAIR, "--prompts", "changed.jsonl", "--trace", "t.trace")),
    "url-and-temperature": (2, ("--url", "http://127.0.0.1:9", "--temperature", "0")),
    "url-and-p-min": (2, ("--url", "http://127.0.0.1:9", "--p-min", "0")),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, here: Any, check_snapshot: Any) -> None:
    status, arguments = REFUSED[name]
    done = here("score", *arguments)
    assert (done.status, done.stdout) == (status, "")
    assert "Traceback" not in done.stderr
    assert done.stderr.count("error: ") == 1
    check_snapshot(done, f"score-{name}")


SMALL = ("--n-max", "2", "--n-max", "3", "--threads", "1", "--context", "512", "--budget", "0.05")


def test_a_whole_score_and_its_receipt(here: Any, tmp_path: Path) -> None:
    """Every option is part of the question: another one is asked, the same one runs nothing."""
    home = tmp_path / "own-home"
    here = replace(here, environment={**here.environment, "COOK_HOME": str(home)})
    first = here("score", *GIVEN, *SMALL, "--json")
    assert first.status == 0, first.stderr
    document = json.loads(first.stdout)
    assert {c["name"] for c in document["candidates"]} == {
        "no draft",
        *(f"draft-f16 n_max={n}" for n in (2, 3)),
    }
    assert document["max_tokens"] == 16, "the trace's own"
    assert document["ran"]
    again = here("score", *GIVEN, *SMALL, "--json")
    assert json.loads(again.stdout)["ran"] == []
    assert len(list((home / "receipts").iterdir())) == 1
    for more in (("--maximize", "acceptance"), ("--p-min", "0.5"), ("--budget", "0.06")):
        other = here("score", *GIVEN, *SMALL, *more, "--json")
        assert other.status == 0, other.stderr
    assert len(list((home / "receipts").iterdir())) == 4
    short = here("score", *GIVEN[:-1], "short.trace", *SMALL, "--json")
    assert short.status == 0, short.stderr
    warned = json.loads(short.stdout)["warnings"]
    assert any("was cut short after 3 whole replies" in text for text in warned)
    # another trace at the same place voids the receipt
    shutil.copy(here.directory / "short.trace", here.directory / "t.trace")
    replaced = here("score", *GIVEN, *SMALL, "--json")
    assert any("cut short" in text for text in json.loads(replaced.stdout)["warnings"])
