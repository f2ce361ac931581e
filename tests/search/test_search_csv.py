"""Whole searches of what others published: tables for `--from-csv`, and tensors."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cook.engines.process.supervisor import ask
from cook.graph.execute import Executor
from cook.graph.store import Store
from cook.job.prepare import prepare
from cook.output import Output
from cook.record.search_record import SearchRecord
from cook.search.evaluate import Replays
from cook.search.findings import AGREES
from cook.search.prepared import PreparedSearch, SearchRequest
from tests.hub.shards import NAMES, repository
from tests.search.whole import RECIPE, TYPES, run, searched

pytestmark = pytest.mark.engine
WORDS = ("--size", "1.9MiB", "--budget", "24", *TYPES)


@pytest.fixture(scope="module")
def nats(home: Path, bundled: Any) -> dict[str, float]:
    """What each tensor costs in q2_K alone, as tables of sensitivities are made."""
    request = SearchRequest(home / "small.yaml", 1, home / "no.yaml", types=TYPES[1::2], threads=1)
    quiet = Output(stdout=io.StringIO(), stderr=io.StringIO())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COOK_HOME", str(home))
        recipe = prepare(
            request.recipe, engines=(), demo=False, threads=1, unsafe_args=False, output=quiet
        )
        asked = PreparedSearch.of(request, recipe)
        with Executor(Store(home / "store"), quiet, logs=home / "logs", threads=1) as executor:
            replays = Replays(asked.deployed, asked.space, executor)
            replays.prepare()
            base = asked.space.tensor_types(asked.space.largest)
            files = [replays.file_of(base | {name: "q2_K"}) for name in base]
            replies = replays.of_files([replays.file_of(base), *files], asked.prompts)
    base_kld, *klds = (one.mean_kld for one in replies)
    return {name: kld - base_kld for name, kld in zip(base, klds, strict=True)}


def published_as(home: Path, name: str, nats: Mapping[str, float]) -> SearchRecord:
    """The search with a table of ``nats``."""
    path = home / name / "kld_results.csv"
    path.parent.mkdir(exist_ok=True)
    values = ",".join(f"{value:.6f}" for value in nats.values())
    path.write_text(f"QTYPE,{','.join(nats)}\nq2_k,{values}\n")
    return searched(home, *WORDS, "-o", f"{name}.yaml", "--from-csv", str(path))


@pytest.fixture(scope="module")
def published(home: Path, nats: dict[str, float]) -> SearchRecord:
    return published_as(home, "published", nats)


def test_fewer_spans_are_measured_than_without_a_table(home: Path, published: SearchRecord) -> None:
    measured = searched(home, *WORDS, "-o", "measured.yaml")
    spent, spent_without = (
        sum(e.purpose == "sensitivity" for e in record.evaluations)
        for record in (published, measured)
    )
    assert spent < 0.7 * spent_without
    sources = {t.source for s in published.spans for t in s.types if t.type != s.reference}
    assert "csv" in sources
    assert "csv" not in {t.source for s in measured.spans for t in s.types}


def test_the_agreement_is_reported(published: SearchRecord) -> None:
    csv = published.csv
    assert (csv.file, csv.metric, csv.missing) == ("kld_results.csv", "kld", 0)
    assert (csv.rank_correlation or 0) > AGREES
    assert published.verdict in ("found", "tie")
    assert not any("kld_results" in warning for warning in published.warnings)


def test_a_table_of_something_else_is_reported(
    home: Path, nats: dict[str, float], capsys: pytest.CaptureFixture[str]
) -> None:
    ordered = sorted(nats.values())
    wrong = {n: ordered[-1 - ordered.index(v)] for n, v in nats.items()}
    record = published_as(home, "wrong", wrong)
    assert record.csv.rank_correlation is not None
    assert record.csv.rank_correlation < AGREES
    warned = capsys.readouterr().err
    assert "kld_results.csv: hardly ranks what is lost here" in warned
    assert "leave --from-csv out" in warned


def test_what_is_missing_is_measured(home: Path, nats: dict[str, float]) -> None:
    record = published_as(home, "some", {n: v for n, v in nats.items() if "attn" not in n})
    assert record.csv.missing >= 1
    attention = [s for s in record.spans if s.group == "attention"]
    assert any(t.source == "replay" for s in attention for t in s.types if t.type != s.reference)


GIVEN = """\
  - {name: Q4_0, type: Q4_0, mixture: pure}
  - {name: Q8_0, type: Q8_0}
"""
THEIRS = """\
  - {name: theirs, type: Q8_0, mixture: pure, tensors_from: {publisher: Thireus, model: tiny}}
"""


def test_the_final_reads_the_publishers_tensors(hub: Any, bundled: Any, tmp_path: Path) -> None:
    """A given quant of published tensors is judged as what it is, not as quantized here."""
    whole = tmp_path / "whole.gguf"
    program = next(f for f in bundled.files if f.name == "llama-quantize")
    model = Path(__file__).parents[2] / "cook" / "demo" / "draft-f16.gguf"
    ask(str(program), "--pure", str(model), str(whole), "Q8_0", env=bundled.environment()).check()
    shards = tmp_path / "shards"
    shards.mkdir()
    hub.add(NAMES.repository("q8_0"), repository(shards, whole, "q8_0", imatrix="ab" * 32))
    home = tmp_path / "search"
    home.mkdir()
    small = RECIPE.replace(GIVEN, THEIRS).replace("limit: 18", "limit: 12")
    small = small.replace("max_tokens: 24", "max_tokens: 16").replace("[2, 4]", "[2]")
    (home / "small.yaml").write_text(small)
    assert run(home, "--size", "4MiB", "--budget", "4", "--type", "q8_0", "--type", "q4_K") == 0
    replayed = [a for a in Store(home / "store").entries() if a.kind == "variant"]
    theirs = [a for a in replayed if any(n.startswith("published ") for n in a.made_from or ())]
    assert len(theirs) == 1, "one of the final, and no other"
