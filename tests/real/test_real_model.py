"""What cook does with a real model: real text, a vocabulary of 49,152 tokens, a chat template.

One short build is shared. Nothing here asks how fast the machine was.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from cook.cli.main import main
from cook.engines.speculation import NgramType
from cook.formats.gguf import read_gguf
from cook.formats.imatrix_file import read_imatrix
from cook.formats.trace_file import TraceFile
from cook.graph.store import Store
from cook.job.plan import plan
from cook.job.prepare import prepare
from cook.record.record import Record, read_record
from cook.record.search_record import read_search_record

pytestmark = pytest.mark.engine

SEARCH = """\
version: 1
name: mixes
engine: bundled
model: {source: demo://smollm2-135m-instruct-f16.gguf}
quants: [{name: Q4_0, type: Q4_0, mixture: pure}]
score:
  target: {source: demo://smollm2-135m-instruct-f16.gguf, args: {threads: 2}}
  prompts: default
  categories: [code, explain, chat]
  limit: 12
  max_tokens: 24
  context: 1024
  draft: {n_max: [4], args: {threads: 2}}
"""


def artifact(home: Path, kind: str, name: str) -> Path:
    (found,) = [a.file(name) for a in Store(home / "store").entries() if a.kind == kind]
    return found


def text_of(tokens: list[int], words: tuple[bytes, ...]) -> str:
    return b"".join(words[t] for t in tokens).decode("utf-8", "replace")


def test_prompts_are_rendered_by_its_own_template(record: Record, real_home: Path) -> None:
    trace = TraceFile(artifact(real_home, "trace", "target.trace"))
    vocabulary = trace.vocabulary
    assert len(vocabulary.tokens) == 49_152
    assert len(trace) == 8
    for reply in trace:
        prompt = text_of(reply.prompt.tolist(), vocabulary.tokens)
        assert prompt.startswith("<|im_start|>system"), prompt[:80]
        assert prompt.count("<|im_start|>") == 3, "system, user, and where the reply begins"
        # Real text: words between blanks, not a token over and over.
        assert len(set(reply.tokens.tolist())) > 8


def test_the_imatrix_covers_every_layer(record: Record, real_home: Path, real_model: Path) -> None:
    matrix = read_imatrix(artifact(real_home, "imatrix", "imatrix.gguf"))
    wanted = {t.name for t in read_gguf(real_model).tensors if len(t.shape) == 2}
    assert set(matrix.entries) == wanted - {"token_embd.weight"}
    assert record.imatrix.entries == 210
    assert record.imatrix.perplexity is not None
    assert 2 < record.imatrix.perplexity < 60, "it reads English"


def test_replay_counts_what_the_server_counts(record: Record) -> None:
    ran = [c for c in record.candidates if c.live and c.settings]
    assert ran
    for candidate in ran:
        assert candidate.counts is not None, candidate.counts_reason
        assert candidate.counts.exact == candidate.counts.requests > 0
        assert candidate.counts.live_drafted > 0


def test_one_pass_counts_as_the_server_does(record: Record) -> None:
    """It was 2 to 7 points off: flash attention rounds otherwise from 64 tokens a batch on."""
    for found in (c.counts for c in record.candidates if c.live and c.settings):
        assert found.replay_drafted
        ours = (found.replay_accepted or 0) / found.replay_drafted
        assert found.live_accepted / found.live_drafted == pytest.approx(ours, abs=0.005)


def test_every_candidate_has_a_forecast(record: Record) -> None:
    drafting = {(c.draft, c.settings.n_max): c for c in record.candidates if c.settings}
    assert set(drafting) == {
        (name, n_max) for name in ("Q8_0", "Q4_0 prune_layers=12,16,20") for n_max in (2, 8)
    }
    for candidate in record.candidates:
        assert candidate.predicted is not None, candidate.name
        assert (candidate.predicted.figures.end_to_end_speed or 0) > 0
    accepted = {key: c.predicted.figures for key, c in drafting.items() if c.predicted}
    whole, short = accepted["Q8_0", 8], accepted["Q4_0 prune_layers=12,16,20", 8]
    assert (whole.acceptance_rate or 0) > 0.8, "8 bits of the target itself"
    assert (short.acceptance_rate or 1) < (whole.acceptance_rate or 0) - 0.1
    assert (whole.cycles or 0) < (short.cycles or 0)


def test_an_ngram_rival_is_simulated_as_it_runs(record: Record) -> None:
    (rival,) = [c for c in record.candidates if c.ngram is not None]
    assert rival.name == "ngram-simple"
    assert rival.ngram.type is NgramType.SIMPLE
    assert rival.predicted is not None
    if rival.live is not None:
        assert rival.counts is not None, rival.counts_reason
        assert rival.counts.exact == rival.counts.requests


def test_it_is_published_and_served_as_far_as_a_dry_run(
    record: Record,
    real_home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COOK_HOME", str(real_home))
    words = ["me/SmolLM2-GGUF", "--dry-run", "--license", "apache-2.0"]
    assert main(["publish", "short", *words]) == 0
    card = capsys.readouterr()
    assert "license: apache-2.0" in card.out
    assert str(real_home) not in card.out
    assert main(["serve", "short", "--print", "--candidate", "Q8_0 n_max=2"]) == 0
    command = capsys.readouterr().out
    assert "smollm2-135m-instruct-f16.gguf" in command
    assert main(["report", "short"]) == 0


@pytest.mark.soak
def test_it_answers_when_it_is_served(record: Record, real_home: Path) -> None:
    command = [sys.executable, "-m", "cook", "serve", "short", "--port", "0"]
    command += ["--candidate", "Q8_0 n_max=2"]
    environment = {**os.environ, "COOK_HOME": str(real_home), "PYTHONUNBUFFERED": "1"}
    nothing, pipe = subprocess.DEVNULL, subprocess.PIPE
    with subprocess.Popen(
        command, env=environment, stdout=pipe, stderr=nothing, text=True
    ) as server:
        try:
            assert server.stdout is not None
            address = next(line for line in server.stdout if "http://" in line).split()[-1]
            asked = {"messages": [{"role": "user", "content": "What is the capital of France?"}]}
            key = (real_home / "serve.key").read_text().strip()
            document = httpx.post(
                f"{address}/v1/chat/completions",
                json=asked | {"max_tokens": 24, "temperature": 0},
                headers={"Authorization": f"Bearer {key}"},
                timeout=120,
            ).json()
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(60)
    assert "Paris" in document["choices"][0]["message"]["content"]
    assert document["timings"]["draft_n"] > 0


@pytest.mark.soak
def test_a_search_finds_a_mix_that_fits(real_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COOK_HOME", str(real_home))
    monkeypatch.chdir(real_home)
    (real_home / "mixes.yaml").write_text(SEARCH)
    words = ["--size", "105MiB", "--type", "q4_0", "--type", "q5_0", "--type", "q8_0"]
    assert main(["search", "mixes.yaml", "--budget", "12", "--threads", "2", *words]) == 0
    (kept,) = (real_home / "searches" / "mixes").glob("*.json")
    found = read_search_record(kept)
    assert found.best in {finalist.name for finalist in found.finalists}
    assert min(finalist.size_bytes for finalist in found.finalists) <= 105 << 20
    assert (real_home / "mixes-searched.yaml").is_file()


@pytest.mark.soak
def test_the_shipped_recipe_is_built(real_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every candidate of it; that n-grams win and drafts lose is a fact of two cores, and is not
    asked."""
    monkeypatch.setenv("COOK_HOME", str(real_home))
    assert main(["build", "smollm2-135m"]) == 0
    made = read_record(real_home / "records" / "smollm2-135m.json")
    assert made.pick.candidate is not None
    assert len({c.draft for c in made.candidates if c.settings}) == 7
    assert not plan(prepare("smollm2-135m", plan_only=True)).stale
