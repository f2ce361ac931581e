"""`cook search`, whole, from its command line on the demo pair."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cook.recipe.load import load_recipe
from cook.record.search_record import SearchRecord
from cook.search.evaluate import Budget, Ledger
from cook.search.search import explored
from cook.search.sensitivity import Sensitivity
from tests.search.spaces import PROMPTS, Law, elements, space
from tests.search.whole import TYPES, run, searched


def test_a_search_keeps_to_size_and_budget_and_finds_what_is_as_good() -> None:
    model = space()
    law = Law(model, (1.0, 0.5, 0.2, 3.0, 0.5, 4.0, 2.0), noise=0.01)
    ledger = Ledger(law, PROMPTS, Budget(evaluations=30))
    limit = int(elements(model) * 4.2 / 8) + model.fixed_bytes
    found = explored(Sensitivity.of(model, ledger), limit, 8)
    assert model.bytes_of(found.best) <= limit
    assert len(ledger.entries) <= 30
    assert ledger.known(found.best) is not None, "what is found was replayed whole"
    assert found.law is not None
    fitting = (m for m in itertools.product(*model.types) if model.bytes_of(m) <= limit)
    assert law.damage(found.best) <= 1.1 * min(map(law.damage, fitting))
    again = Ledger(law, PROMPTS, Budget(evaluations=30))
    assert explored(Sensitivity.of(model, again), limit, 8).best == found.best


SEARCH = ("--size", "2.2MiB", "--budget", "16", *TYPES)


@pytest.fixture(scope="module")
def record(home: Path, bundled: Any) -> SearchRecord:
    return searched(home, *SEARCH)


@pytest.mark.engine
def test_prompts_of_search_and_verdict_are_apart(record: SearchRecord) -> None:
    assert not set(record.prompts.search) & set(record.prompts.verdict)
    assert len(record.prompts.search) == len(record.prompts.verdict) == 9


@pytest.mark.engine
def test_the_budget_holds_and_no_variant_is_kept(home: Path, record: SearchRecord) -> None:
    assert len(record.evaluations) <= 16
    assert record.allocation.gap < 0.005
    assert record.allocation.bound <= record.allocation.damage
    for span in record.spans:
        for effect in span.types:
            if effect.source == "replay" and effect.type != span.reference:
                assert effect.kld.interval is not None
                assert effect.acceptance_length is not None
    tensors = [t for span in record.spans if not span.split_into for t in span.tensors]
    assert len(tensors) == len(set(tensors))
    assert not list((home / "store").rglob("*.gguf"))
    assert not list((home / "store" / "tmp").glob("*"))


@pytest.mark.engine
def test_the_final_has_the_given_the_engines_and_the_least_damaging(record: SearchRecord) -> None:
    finalists = {f.name: f for f in record.finalists}
    assert {f.family for f in record.finalists} >= {"given", "engine", "found"}
    kld = min(f.replayed.mean_kld or 0 for f in record.finalists if f.family != "perplexity")
    assert next(f for f in record.finalists if f.family == "found").replayed.mean_kld == kld
    assert all(f.size_bytes <= record.aim.max_bytes for f in record.finalists)
    assert "Q8_0" not in finalists, "it does not fit"
    assert record.verdict in ("found", "tie", "given")
    best = finalists[record.best]
    if (gain := best.against_given) is None:
        assert best.family == "given"
    else:
        length = best.replayed.acceptance_length or 0
        assert gain.interval.low >= -record.aim.margin * (length - gain.value)


@pytest.mark.engine
def test_the_same_search_again_replays_nothing(
    home: Path, record: SearchRecord, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sum(1 for _ in (home / "store").rglob("artifact.json"))
    assert run(home, *SEARCH, "--json", "--force", "-o", "again.yaml") == 0
    again = json.loads(capsys.readouterr().out)
    assert sum(1 for _ in (home / "store").rglob("artifact.json")) == before
    assert again["best"] == record.best
    assert [e["mix"] for e in again["evaluations"]] == [e.mix for e in record.evaluations]


@pytest.mark.engine
def test_the_recipe_written_is_one_that_cook_takes(home: Path, record: SearchRecord) -> None:
    path = home / "small-searched.yaml"
    if record.found_recipe is None:
        assert not path.exists(), "the recipe given is the best"
        return
    assert path.read_text() == record.found_recipe
    assert [q.name for q in load_recipe(path).quants] == ["Q4_0", "Q8_0", "SEARCHED-2.2MiB"]


@pytest.mark.engine
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--size", f"{'9' * 400}GiB"), "no size"),
        (("--budget", "soon"), "--budget soon: no budget"),
        (("--size", "100KiB"), "no mix fits into --size"),
        (("--type", "q9"), "q9"),
        (("--floor", "q9"), "q9"),
        ((*TYPES, "--floor", "f16"), "reaches the floor f16: q2_K, q4_K, q8_0"),
        (("-o", "small.yaml"), "small.yaml exists"),
        (("-o", "kld"), "kld is a folder"),
        (("-o", "absent/new.yaml"), "there is no folder absent"),
        (("--from-csv", "kld"), "kld: not a regular file"),
        (("--from-csv", "kld.csv"), "kld.csv: cannot be read: No such file"),
        (("--from-csv", "kld_other.csv"), "none of its 1 column is a tensor"),
        (("--from-csv", "kld_wrong.csv"), "kld_wrong.csv:2:1: 3 cells"),
    ],
)
def test_what_cannot_be_searched_is_refused_before_anything_runs(
    home: Path,
    record: SearchRecord,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    message: str,
) -> None:
    (home / "kld").mkdir(exist_ok=True)
    (home / "kld_other.csv").write_text("QTYPE,blk.99.attn_q.weight\nq2_K,0.1\n")
    (home / "kld_wrong.csv").write_text("QTYPE,output.weight\nq2_K,0.1,0.2\n")
    assert run(home, "-o", "other.yaml", "--size", "2.2MiB", *words) == 2
    assert message in capsys.readouterr().err


@pytest.mark.engine
def test_an_interrupted_search_leaves_nothing_running_and_goes_on(
    home: Path, record: SearchRecord
) -> None:
    words = ("--size", "2.1MiB", "--budget", "12", *TYPES, "-o", "broken-off.yaml")
    argv = [sys.executable, "-m", "cook", "search", "small.yaml", "--threads", "1", *words]
    env = os.environ | {"COOK_HOME": str(home), "PYTHONPATH": str(Path.cwd())}
    with subprocess.Popen(argv, cwd=home, env=env, stderr=subprocess.PIPE, text=True) as running:
        for line in running.stderr:
            if "replay mix" in line:
                break
        running.send_signal(signal.SIGINT)
        said = running.stderr.read()
    assert running.returncode == 130
    assert "Traceback" not in said
    assert "the same command again goes on" in said
    assert not (home / "broken-off.yaml").exists()
    assert not list((home / "store" / "tmp").glob("*"))
    programs = subprocess.check_output(["ps", "-eo", "args"], text=True)
    assert str(home / "cache" / "workers") not in programs
