"""`cook search`, whole, from its command line on the demo pair."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cook.cli.main import main
from cook.recipe.load import load_recipe
from cook.record.search_record import SearchRecord, read_search_record
from cook.search.ledger import Budget, Ledger
from cook.search.pace import ByCycle
from cook.search.search import Aims, explored
from tests.search.spaces import ROUNDS, Law, elements, space

RECIPE = """\
version: 1
name: small
model: {source: "demo://draft-f16.gguf"}
quants:
  - {name: Q4_0, type: Q4_0, mixture: pure}
  - {name: Q8_0, type: Q8_0}
score:
  target: {source: "demo://target-q8_0.gguf", args: {threads: 1}}
  prompts: demo
  categories: [docstring, tests, literal]
  limit: 18
  max_tokens: 24
  context: 2048
  draft: {n_max: [2, 4], args: {threads: 1}}
"""
TYPES = ("--type", "q2_K", "--type", "q4_K", "--type", "q8_0")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("search")


def run(home: Path, *words: str) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COOK_HOME", str(home))
        patch.chdir(home)
        return main(["search", "small.yaml", "--threads", "1", *words])


def test_a_search_keeps_to_size_and_budget_and_finds_what_is_as_good() -> None:
    model = space()
    law = Law(model, (1.0, 0.5, 0.2, 3.0, 0.5, 4.0, 2.0), noise=0.01)
    ledger = Ledger(law, ROUNDS, Budget(evaluations=30))
    limit = int(elements(model) * 4.2 / 8) + model.fixed_bytes
    hand = tuple(types[0] for types in model.types)
    found = explored(model, ledger, Aims(limit, ByCycle(), 8), [hand])
    assert model.bytes_of(found.best) <= limit
    assert ledger.spent <= 31
    assert law.damage(found.best) < law.damage(hand)
    again = Ledger(law, ROUNDS, Budget(evaluations=30))
    assert explored(model, again, Aims(limit, ByCycle(), 8), [hand]).best == found.best


@pytest.fixture(scope="module")
def record(home: Path, bundled: Any) -> SearchRecord:
    (home / "small.yaml").write_text(RECIPE)
    assert run(home, "--size", "2.2MiB", "--budget", "16", *TYPES) == 0
    (path,) = (home / "searches" / "small").glob("*.json")
    return read_search_record(path)


@pytest.mark.engine
def test_prompts_of_search_and_verdict_are_apart(record: SearchRecord) -> None:
    assert not set(record.prompts.search) & set(record.prompts.verdict)
    assert len(record.prompts.search) == len(record.prompts.verdict) == 9


@pytest.mark.engine
def test_the_final_has_the_given_the_engines_and_the_least_damaging(record: SearchRecord) -> None:
    families = {f.family for f in record.finalists}
    assert families == {"given", "engine", "kld", "perplexity", "found"}
    assert all(f.size_bytes <= record.aim.max_bytes for f in record.finalists)
    assert "Q8_0" not in {f.name for f in record.finalists}, "it does not fit"
    assert record.verdict in ("found", "tie", "given")
    best = next(f for f in record.finalists if f.name == record.best)
    if (gain := best.against_given) is None:
        assert best.family == "given"
    else:
        assert gain.interval is not None
        length = best.replayed.acceptance_length or 0
        assert gain.interval.low >= -record.aim.margin * (length - gain.value)


@pytest.mark.engine
def test_the_budget_holds_and_the_gap_is_told(record: SearchRecord) -> None:
    asked = [e for e in record.evaluations if e.purpose != "final"]
    assert sum(e.replayed.prompts for e in asked) <= 17 * len(record.prompts.search)
    assert record.allocation is not None
    assert record.allocation.gap < 0.005
    assert record.allocation.bound <= record.allocation.damage


@pytest.mark.engine
def test_every_span_has_its_types_with_intervals_where_they_were_replayed(
    record: SearchRecord,
) -> None:
    for span in record.spans:
        for effect in span.types:
            if effect.source == "replay" and effect.type != span.reference:
                assert effect.kld is not None
                assert effect.kld.interval is not None
                assert effect.acceptance_length is not None
    tensors = [t for span in record.spans if not span.split_into for t in span.tensors]
    assert len(tensors) == len(set(tensors))


@pytest.mark.engine
def test_no_variant_is_kept_as_a_file(home: Path, record: SearchRecord) -> None:
    assert not list((home / "store").rglob("*.gguf"))
    assert not list((home / "store" / "tmp").glob("*"))


@pytest.mark.engine
def test_the_same_search_again_replays_nothing(
    home: Path, record: SearchRecord, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sum(1 for _ in (home / "store").rglob("artifact.json"))
    words = ("--size", "2.2MiB", "--budget", "16", *TYPES, "--json", "--force", "-o", "again.yaml")
    assert run(home, *words) == 0
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
    ("words", "told"),
    [
        (("--size", "nothing"), "--size nothing: no size"),
        (("--size", "1MiB", "--budget", "soon"), "--budget soon: no budget"),
        (("--size", "100KiB"), "no mix fits into"),
        (("--size", "2.2MiB", "--type", "q9"), "q9"),
        (("--size", "2.2MiB", "-o", "small.yaml"), "small.yaml exists"),
    ],
)
def test_what_cannot_be_searched_is_told_before_anything_runs(
    home: Path,
    record: SearchRecord,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    told: str,
) -> None:
    assert run(home, "-o", "other.yaml", *words) == 2
    assert told in capsys.readouterr().err
