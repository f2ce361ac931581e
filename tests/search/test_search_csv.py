"""`cook search --from-csv`, whole: a table as published, and one that is wrong."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cook.graph.execute import Executor
from cook.graph.store import Store
from cook.job.prepare import prepare
from cook.output import Output
from cook.record.search_record import SearchRecord
from cook.search.evaluate import Replays
from cook.search.findings import AGREES
from cook.search.job import SearchJob, SearchRequest
from tests.search.whole import RECIPE, TYPES, searched

pytestmark = pytest.mark.engine
WORDS = ("--size", "1.9MiB", "--budget", "24", *TYPES)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, bundled: Any) -> Path:
    home = tmp_path_factory.mktemp("csv")
    (home / "small.yaml").write_text(RECIPE)
    return home


def alone(home: Path) -> dict[str, float]:
    """Nats that each tensor costs in q2_K alone, as tables of sensitivities are made."""
    request = SearchRequest(home / "small.yaml", 1, home / "no.yaml", types=TYPES[1::2], threads=1)
    quiet = Output(stdout=io.StringIO(), stderr=io.StringIO())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COOK_HOME", str(home))
        ready = prepare(
            request.recipe, engines=(), demo=False, threads=1, unsafe_args=False, output=quiet
        )
        job = SearchJob.of(request, ready)
        with Executor(Store(home / "store"), quiet, logs=home / "logs", threads=1) as executor:
            replays = Replays(job.deployed, job.space, executor)
            replays.prepare()
            prompts = job.prompts
            base = job.space.tensor_types(job.space.largest)
            names = list(base)
            files = [replays.file_of(base | {name: "q2_K"}) for name in names]
            replies = replays.of_files([replays.file_of(base), *files], prompts)
    base_kld, *klds = (one.mean_kld for one in replies)
    return {name: kld - base_kld for name, kld in zip(names, klds, strict=True)}


def write_table(path: Path, nats: Mapping[str, float]) -> Path:
    path.parent.mkdir(exist_ok=True)
    values = ",".join(f"{value:.6f}" for value in nats.values())
    path.write_text(f"QTYPE,{','.join(nats)}\nq2_k,{values}\n")
    return path


@pytest.fixture(scope="module")
def nats(home: Path) -> dict[str, float]:
    return alone(home)


@pytest.fixture(scope="module")
def measured(home: Path) -> SearchRecord:
    return searched(home, *WORDS, "-o", "measured.yaml")


@pytest.fixture(scope="module")
def published(home: Path, nats: dict[str, float]) -> SearchRecord:
    path = write_table(home / "kld_results.csv", nats)
    return searched(home, *WORDS, "-o", "published.yaml", "--from-csv", str(path))


def purposes(record: SearchRecord) -> int:
    return sum(e.purpose == "sensitivity" for e in record.evaluations)


def test_fewer_spans_are_measured_than_without_a_table(
    measured: SearchRecord, published: SearchRecord
) -> None:
    assert purposes(published) < 0.7 * purposes(measured)
    sources = {t.source for s in published.spans for t in s.types if t.type != s.reference}
    assert "csv" in sources
    assert "csv" not in {t.source for s in measured.spans for t in s.types}


def test_the_agreement_is_told(published: SearchRecord, capsys: pytest.CaptureFixture[str]) -> None:
    csv = published.csv
    assert (csv.file, csv.metric, csv.missing) == ("kld_results.csv", "kld", 0)
    assert csv.rank_correlation is not None
    assert csv.rank_correlation > AGREES
    assert published.verdict in ("found", "tie")
    assert not any("kld_results" in warning for warning in published.warnings)


def test_a_table_of_something_else_is_told(
    home: Path, nats: dict[str, float], capsys: pytest.CaptureFixture[str]
) -> None:
    ordered = sorted(nats.values())
    wrong = {n: ordered[-1 - sorted(nats.values()).index(v)] for n, v in nats.items()}
    path = write_table(home / "wrong" / "kld_results.csv", wrong)
    record = searched(home, *WORDS, "-o", "wrong.yaml", "--from-csv", str(path))
    assert record.csv.rank_correlation is not None
    assert record.csv.rank_correlation < AGREES
    told = capsys.readouterr().err
    assert "kld_results.csv: hardly ranks what is lost here" in told
    assert "leave --from-csv out" in told


def test_what_is_missing_is_measured(home: Path, nats: dict[str, float]) -> None:
    some = {n: v for n, v in nats.items() if "attn" not in n}
    path = write_table(home / "some" / "kld_results.csv", some)
    record = searched(home, *WORDS, "-o", "some.yaml", "--from-csv", str(path))
    assert record.csv.missing >= 1
    attention = [s for s in record.spans if s.group == "attention"]
    assert any(t.source == "replay" for s in attention for t in s.types if t.type != s.reference)
