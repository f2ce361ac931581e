"""Heads as candidates, live, next to no draft: on real engines, with random weights."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cook.cli.main import main
from cook.formats.gguf import read_gguf
from cook.formats.quant_types import Flavour
from cook.job import lay_score
from cook.job.count_accuracy import acceptance_deviation
from cook.job.decide import Dealing
from cook.job.forecast import Forecaster
from cook.job.prepare import prepare
from cook.record.record import Figures, Record
from cook.scoring.simulate import simulate
from cook.steps import checks, head_replay
from cook.steps.deal import DealStep
from tests.builds import build
from tests.engines.tiny_heads import write_tiny_heads
from tests.workbench import executor

RECIPE = """\
version: 1
name: heads
drafts:
DRAFTS
score:
  method: live
  target: {source: FOLDER/whole.gguf, args: {threads: 1}}
  prompts: FOLDER/prompts.jsonl
  max_tokens: 40
  context: 1024
  draft: {args: {threads: 1}}
  live_budget: {minutes: 5}
"""
OWN = "  - {name: own, source: target}"
FILES = """
  - {name: alone, source: FOLDER/head.gguf}
  - {name: q8, source: FOLDER/head-q8_0.gguf}
  - {name: zeroed, source: FOLDER/zeroed.gguf}"""


QUANTS = """\
model: {source: FOLDER/whole.gguf}
imatrix: {corpus: demo://data/calibration.txt, context: 128, chunks: 6, coverage: {experts: 0}}
quants:
  - {name: made-q8, part: head, type: Q8_0, rules: [{embeddings: f16}, {output: f16}, {mtp: q8_0}]}
  - name: made-xxs
    extends: made-q8
    type: IQ2_XXS
    drop_rules: [mtp]
    rules: [{mtp.attention: q4_0}, {mtp.eh_proj: q8_0}, {mtp: iq2_xxs}]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny files, and 12 short prompts."""
    found = write_tiny_heads(tmp_path_factory.mktemp("heads"))
    prompts = [
        {"id": f"p{i}", "category": "text", "prompt": f"Say {i * i} and then some more words, {i}:"}
        for i in range(12)
    ]
    (found / "prompts.jsonl").write_text("\n".join(map(json.dumps, prompts)) + "\n")
    return found


def recipe(folder: Path, drafts: str) -> str:
    return RECIPE.replace("DRAFTS", drafts).replace("FOLDER", str(folder))


def by_replay(folder: Path, drafts: str, name: str, draft: str = "") -> str:
    """The same by replay, as ``name``, with more in `score.draft`. No test asks which wins there:
    few blocks decide."""
    text = recipe(folder, drafts).replace("  method: live\n", "")
    text = text.replace("name: heads", f"name: {name}\npick: {{margin: 0.5, confidence: 0.6}}")
    return text.replace("draft: {args", "draft: {" + draft + "args")


@pytest.fixture(scope="module")
def record(folder: Path, bundled: Any) -> Record:
    return build(folder / "home", "heads", recipe(folder, OWN + FILES), "--engine", "bundled")


def by_request(record: Record, draft: str, n_max: int, live: bool) -> dict[str, tuple[int, int]]:
    """(drafted, accepted) by prompt, live or predicted, at p_min 0; of one dealt again the last."""
    (found,) = [
        c.prompts if live else c.predicted.prompts
        for c in record.candidates
        if c.draft == draft and c.settings
        if (c.settings.n_max, c.settings.p_min) == (n_max, 0.0)
    ]
    counted = zip(found.ids, found.drafted, found.accepted, strict=True)
    return {id: (drafted or 0, accepted or 0) for id, drafted, accepted in counted}


def counts(record: Record, draft: str) -> dict[int, tuple[int, int]]:
    """(drafted, accepted) by n_max."""
    return {
        c.settings.n_max: (c.live.drafted or 0, c.live.accepted or 0)
        for c in record.candidates
        if c.draft == draft and c.settings and c.live
    }


def rate(counted: tuple[int, int]) -> float:
    """Of (drafted, accepted)."""
    return counted[1] / counted[0]


def predicted(record: Record) -> dict[tuple[str | None, int, float], Figures]:
    """By draft, n_max and p_min."""
    return {
        (c.draft, c.settings.n_max, c.settings.p_min): c.predicted.figures
        for c in record.candidates
        if c.settings and c.predicted
    }


def laid_out(path: Path, text: str, engine: str = "bundled") -> Any:
    """The layout of the recipe ``text``, written to ``path``."""
    path.write_text(text)
    (layout,) = prepare(path, engines=[engine]).layouts
    return layout


@pytest.mark.engine
def test_heads_run_live_at_short_lengths(record: Record, folder: Path) -> None:
    own, alone = counts(record, "own"), counts(record, "alone")
    assert set(own) == set(alone) == {1, 2, 4}
    # One head, two places. Of a request that was tried again the first draft begins on another row.
    for n_max, counted in own.items():
        assert rate(counted) == pytest.approx(rate(alone[n_max]), abs=0.01)
    assert own[1][0] > 200
    assert rate(own[1]) > 0.3
    assert rate(counts(record, "q8")[1]) > 0.3
    by_name = {c.name: c for c in record.candidates}
    inside, apart = by_name["own n_max=2"], by_name["alone n_max=2"]
    for candidate in (inside, apart):
        assert "draft-mtp" in candidate.command
    assert str(folder / "head.gguf") in apart.command
    assert sum("whole.gguf" in word for word in inside.command) == 1
    assert not any("head.gguf" in word or "draft-model" in word for word in inside.command)
    assert by_name["no draft"].live is not None


@pytest.mark.engine
def test_the_own_head_is_as_large_as_its_tensors_and_a_broken_one_is_named(
    record: Record, folder: Path
) -> None:
    own, alone = record.draft("own"), record.draft("alone")
    block = [t for t in read_gguf(folder / "whole.gguf").tensors if t.name.startswith("blk.2.")]
    assert own.file_bytes == own.tensor_bytes == sum(t.size_bytes or 0 for t in block)
    assert alone.file_bytes == (folder / "head.gguf").stat().st_size
    (warning,) = [w for w in record.warnings if "broken head" in w]
    assert warning.startswith("zeroed: a broken head: ")


@pytest.mark.engine
def test_a_head_is_served_as_it_was_scored(
    record: Record, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("COOK_HOME", str(folder / "home"))
    assert main(["serve", "heads", "--candidate", "own n_max=2", "--print"]) == 0
    command = capsys.readouterr().out
    assert "--spec-type draft-mtp" in command
    assert "draft-model" not in command
    assert "--spec-draft-n-max 2" in command


@pytest.mark.engine
def test_the_command_line_takes_heads(
    folder: Path, bundled: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """`target` is the target's own head. A target without one is refused before it is loaded."""
    monkeypatch.setenv("COOK_HOME", str(folder / "other"))
    common = ["--prompts", str(folder / "prompts.jsonl"), "--limit", "4", "--max-tokens", "16"]
    common += ["--context", "1024", "--n-max", "2", "--threads", "1"]
    whole, head = folder / "whole.gguf", folder / "head-q8_0.gguf"
    assert main(["score", "--target", str(whole), "target", str(head), *common]) == 0
    printed = capsys.readouterr().out
    assert "head n_max=2" in printed
    assert "head-q8_0 n_max=2" in printed
    assert main(["score", "--target", str(folder / "trunk.gguf"), "target", *common]) == 2
    assert "trunk.gguf holds no head: its header counts 1 layers of one" in capsys.readouterr().err


@pytest.fixture(scope="module")
def replayed(folder: Path, bundled: Any) -> Record:
    """The same by replay, with p_min, and every head but the broken one run live."""
    return replayed_record(folder)


def replayed_record(folder: Path) -> Record:
    text = by_replay(folder, OWN + FILES, "heads", "n_max: [1, 2, 4], p_min: [0, 0.3], ")
    text = text.replace("minutes: 5", "minutes: 0.2")
    text += QUANTS.replace("FOLDER", str(folder))
    return build(folder / "replayed", "heads", text, "--engine", "bundled")


@pytest.mark.engine
def test_a_recipe_makes_quants_of_the_head(replayed: Record, folder: Path) -> None:
    """Its own q8_0 drafts as one made of f32; a type of two bits has data for every matrix."""
    found = predicted(replayed)
    for n_max in (1, 2, 4):
        mine, ready = found["made-q8", n_max, 0.0], found["q8", n_max, 0.0]
        assert mine.acceptance_rate == pytest.approx(ready.acceptance_rate, abs=0.03)
    assert {draft for draft, *_ in found} >= {"own", "made-q8"}
    # Random weights are not made for so few bits: what followed a token before is a better guess.
    (reason,) = {c.reason for c in replayed.candidates if c.draft == "made-xxs"}
    assert "of too few bits" in (reason or "")
    file = read_gguf(str(replayed.draft("made-xxs").path))
    assert {t.name.split(".")[1] for t in file.tensors if t.name.startswith("blk.")} == {"2"}
    assert file.tensor("blk.2.attn_q.weight").type_name == "q4_0"
    assert file.tensor("blk.2.ffn_up_exps.weight").type_name == "iq2_xxs"
    assert (replayed.imatrix.skipped_count, replayed.imatrix.experts_total) == (0, 24)
    labels = [step.label for step in replayed.steps]
    assert "imatrix of the head (bundled)" in labels
    assert "imatrix (bundled)" not in labels


@pytest.mark.engine
def test_a_replay_counts_as_the_server_does(record: Record, replayed: Record) -> None:
    """On the same prompts, greedily. In one pass near ties fall otherwise than at a server's batch
    shapes: of q8_0 in 1 to 5 of 12 requests, else in 1. What they move mostly cancels in sums."""
    for draft in ("own", "alone", "q8"):
        sums = np.zeros((2, 2))
        for n_max in (1, 2, 4):
            live = by_request(record, draft, n_max, live=True)
            said = by_request(replayed, draft, n_max, live=False)
            sums += [np.sum(list(each.values()), axis=0) for each in (live, said)]
            equal = sum(said[id] == each for id, each in live.items())
            assert equal >= (4 if draft == "q8" else 8), f"{draft}, {n_max}"
        (drafted, accepted), (simulated, right) = sums
        assert accepted / drafted == pytest.approx(right / simulated, abs=0.01)
    found = predicted(replayed)
    for n_max in (1, 2, 4):
        for p_min in (0.0, 0.3):
            inside, apart = (found[name, n_max, p_min] for name in ("own", "alone"))
            assert (inside.drafted, inside.accepted) == (apart.drafted, apart.accepted)
        careful, always = found["own", n_max, 0.3], found["own", n_max, 0.0]
        assert (careful.drafted or 0) < (always.drafted or 0)
        assert (careful.acceptance_rate or 0) > (always.acceptance_rate or 0)


@pytest.mark.engine
def test_a_forecast_of_heads_is_priced_and_compared_live(replayed: Record) -> None:
    ran = [c for c in replayed.candidates if c.live and c.settings and c.predicted]
    assert ran
    for candidate in ran:
        assert (candidate.predicted.figures.end_to_end_speed or 0) > 0
        assert candidate.counts is not None
        assert candidate.counts.passed
    labels = [step.label for step in replayed.steps]
    assert labels.count("hidden states of the target (bundled)") == 1
    assert "verification curve target with a head (bundled)" in labels


@pytest.mark.engine
def test_sampled_text_is_forecast(folder: Path, bundled: Any) -> None:
    """Servers draw for themselves: their text is another one, and what they accept is forecast.

    In 14 runs of 21 to 90 prompts at 0.6 and 1.0 they lay 0.1 to 1.8 standard errors apart, in one
    of 30 short replies at 1.0 3.4: of so few the error is not known well.
    """
    prompts = folder / "sampled.jsonl"
    texts = (f"Say {i * i} and then some more words, {i}:" for i in range(30))
    lines = [{"id": f"p{i}", "category": "text", "prompt": t} for i, t in enumerate(texts)]
    prompts.write_text("\n".join(map(json.dumps, lines)) + "\n")
    text = by_replay(folder, OWN, "sampled", "n_max: 2, ").replace("prompts.jsonl", prompts.name)
    layout = laid_out(folder / "sampled.yaml", text + "  sampling: {temperature: 0.6}\n")
    plan, (server,) = layout.forecast, layout.grid
    deal = DealStep((server.live,), 0, together=False)
    with executor(folder / "sampled") as running:
        outcomes = running.run([plan.trace, plan.heads[0].replay, deal])
    assert not outcomes.failures
    seen = Forecaster(plan, outcomes).texts(plan.heads[0])
    dealt = outcomes.result(deal).runs
    live = [(run.draft_n or 0, run.draft_n_accepted or 0) for run in dealt]
    runs = [simulate(seen[run.id], server.key.settings, plan.profile) for run in dealt]
    replayed = [(run.draft_n, run.draft_n_accepted) for run in runs]
    assert live != replayed
    rates = [accepted / drafted for drafted, accepted in np.sum([live, replayed], axis=1)]
    error = acceptance_deviation(replayed, live)
    assert error is not None
    assert abs(rates[0] - rates[1]) <= 3 * error, (rates, error)


@pytest.mark.engine
def test_a_head_behind_ngrams_counts_as_the_server_does(
    folder: Path, bundled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It drafts where these have nothing, and the server keeps what it has seen. All requests are
    equal at the server's shapes, from its first line on: what the head begins a prompt on is left
    by the request before, which is another one in the trace."""
    monkeypatch.setattr(checks, "REQUESTS", 12)
    stage = "n_max: [2, 4], after: [{type: ngram-mod, size_n: 4, n_min: 2, n_max: 8}], "
    layout = laid_out(folder / "two.yaml", by_replay(folder, OWN, "two", stage))
    grid = {c.key: c for c in layout.grid if c.key.ngram is not None}
    assert [key.settings.n_max for key in grid] == [2, 4]
    with executor(folder / "two") as running:
        running.run(layout.forecast.steps())
        assert not running.outcomes.failures
        forecaster = Forecaster(layout.forecast, running.outcomes)
        dealing = Dealing(running, True, 600.0, {})
        assert dealing.deal([layout.baseline, *grid.values()], layout.baseline.live.prompts)
        forecasts = {one.key: one for one in forecaster.forecasts()}
        for key in grid:
            dealt = dealing.dealt(key)
            assert dealt is not None, dealing.failed
            recount = layout.checks(grid[key], dealt, None).counts
            counts = running.run([recount]).result(recount)
            assert counts.exact == counts.requests == 12
            live = rate((counts.live_drafted, counts.live_accepted))
            replay = rate((counts.replay_drafted, counts.replay_accepted))
            assert replay == pytest.approx(live, abs=0.01)
            alone = forecasts[replace(key, draft="own", ngram=None)]
            assert forecasts[key].figures.drafted != alone.figures.drafted, "n-grams draft"


@pytest.mark.engine
def test_a_head_is_forecast_in_parallel(folder: Path, bundled: Any) -> None:
    """With several slots no draft and every length are forecast, and the best runs."""
    text = by_replay(folder, OWN, "slots", "n_max: [1, 2], ")
    found = build(folder / "two", "slots", text + "  slots: [1, 2]\n", "--engine", "bundled")
    speeds = [(s.slots, s.settings.n_max if s.settings else 0) for s in found.slots or ()]
    assert speeds == [(slots, n_max) for slots in (1, 2) for n_max in (0, 1, 2)]
    live = [s for s in found.slots or () if s.live_tokens_per_s]
    assert {s.draft for s in live if s.slots == 2} == {None, "own"}
    labels = [step.label for step in found.steps]
    assert "verification target with a head by slots, up to 2 (bundled)" in labels
    assert "draft times own by slots, up to 2 (bundled)" in labels


@pytest.mark.engine
def test_a_broken_head_is_dropped_before_it_runs(replayed: Record) -> None:
    zeroed = [c for c in replayed.candidates if c.draft == "zeroed"]
    (reason,) = {c.reason for c in zeroed}
    assert (reason or "").startswith("a broken head: ")
    assert all(c.live is None for c in zeroed)


@pytest.mark.engine
def test_a_block_that_adds_too_little_is_a_warning(
    replayed: Record, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every block does where it must add all that there is. A broken head is named already."""
    words = "its block adds next to nothing"
    assert not any(words in warning for warning in replayed.warnings)
    monkeypatch.setattr(head_replay, "LEAST_GAIN", 1.0)
    monkeypatch.setattr(head_replay, "LEAST_DRAFTS", 50)
    warnings = [w for w in replayed_record(folder).warnings if words in w]
    named = {warning.split(":")[0] for warning in warnings}
    assert named == {"own", "alone", "q8", "made-q8", "made-xxs"}


def of_another_time(monkeypatch: pytest.MonkeyPatch, flavour: Flavour) -> None:
    """The libraries of ``flavour`` have none of the functions for heads that cook knows."""
    monkeypatch.setitem(lay_score._ROWS_OF_HEADS, flavour, b"of another time")
    monkeypatch.setattr(lay_score, "_gives_rows", lay_score._gives_rows.__wrapped__)


@pytest.mark.engine
def test_a_build_without_the_functions_runs_heads_live(
    folder: Path, bundled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = by_replay(folder, OWN, "replay")
    layout = laid_out(folder / "replay.yaml", text)
    assert [head.draft.name for head in layout.forecast.heads] == ["own"]
    assert layout.warnings == ()
    of_another_time(monkeypatch, Flavour.LLAMA_CPP)
    layout = laid_out(folder / "replay.yaml", text)
    assert layout.forecast is None
    why = "the library of bundled has no functions for heads that cook knows"
    assert layout.warnings == (f"own: live only: {why}",)
    assert [c.key.settings.n_max for c in layout.grid] == [1, 2, 4]


@pytest.mark.engine
def test_what_is_of_models_is_not_asked_of_heads(
    folder: Path, bundled: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("COOK_HOME", str(folder / "shapes"))
    path = folder / "shapes.yaml"
    drafts = OWN.replace("}", ", experts: 4}") + FILES.split("\n")[1].join("\n\n").rstrip("\n")
    path.write_text(recipe(folder, drafts.replace("head.gguf}", "head.gguf, output: q4_0}")))
    assert main(["plan", str(path)]) == 2
    printed = capsys.readouterr().err
    assert "own is a head, which is taken as it is: `experts` is of models" in printed
    assert "alone is a head, which is taken as it is: `output` is of models" in printed
    # KV cache types are of heads as well.
    kinds = "n_max: 2, cache_types: [f16, q8_0], "
    layout = laid_out(path, by_replay(folder, OWN, "shapes", kinds))
    assert [one.live.draft_args.cache_type_k for one in layout.grid] == ["f16", "q8_0"]
    assert [one.name for one in layout.grid] == ["own n_max=2 kv=f16", "own n_max=2 kv=q8_0"]
    assert [head.cache_type for head in layout.forecast.heads] == ["f16", "q8_0"]


@pytest.mark.ik
def test_ik_runs_the_own_head_and_no_other(
    folder: Path, ik_engine: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    engine = f"ik={Path(ik_engine.facts.bin_dir)}"
    on_ik = ("--engine", engine)
    found = build(folder / "ik", "heads", recipe(folder, OWN), *on_ik)
    own = counts(found, "own")
    assert set(own) == {1, 2, 4}
    assert rate(own[1]) > 0.3
    assert not any("reading of the prompt" in warning for warning in found.warnings)
    monkeypatch.setenv("COOK_HOME", str(folder / "ik"))
    path = folder / "ik" / "alone.yaml"
    path.write_text(recipe(folder, FILES.strip("\n")).replace("name: heads", "name: alone"))
    assert main(["plan", str(path), "--engine", engine]) == 2
    assert "only from inside of the target's own file" in capsys.readouterr().err
    # By replay: the same counts, and p_min, which ends a head's drafts there.
    text = by_replay(folder, OWN, "replay", "n_max: [1, 2, 4], p_min: [0, 0.3], ")
    forecast = build(folder / "ik", "replay", text.replace("minutes: 5", "minutes: 0.1"), *on_ik)
    of = predicted(forecast)
    assert len(of) == 6
    for n_max, counted in own.items():
        always = of["own", n_max, 0.0]
        assert rate(counted) == pytest.approx(always.acceptance_rate, abs=0.01)
        assert (always.end_to_end_speed or 0) > 0
    assert (of["own", 4, 0.3].drafted or 0) < (of["own", 4, 0.0].drafted or 0)


@pytest.mark.ik
def test_what_ik_does_not_replay_says_why(
    folder: Path, ik_engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def warnings(draft: str) -> list[str]:
        text, engine = by_replay(folder, OWN, "unlike", draft), Path(ik_engine.facts.bin_dir)
        layout = laid_out(folder / "unlike.yaml", text, f"ik={engine}")
        return [w for w in layout.warnings if "live only" in w]

    assert warnings("n_max: 4, p_min: [0, 0.3], ") == []
    why = "where n_min discards a draft, ik's head misses what is decoded next"
    assert warnings("n_max: 4, n_min: 2, p_min: 0.3, ") == [f"own: live only: {why}"]
    monkeypatch.setattr(lay_score, "_REPLAYED_ON_IK", ())
    why = "heads of glm4moe are not replayed on ik_llama.cpp"
    assert warnings("n_max: 4, ") == [f"own: live only: {why}"]
    monkeypatch.undo()
    of_another_time(monkeypatch, Flavour.IK_LLAMA_CPP)
    (missing,) = warnings("n_max: 4, ")
    assert missing.endswith("has no functions for heads that cook knows")


@pytest.mark.ik
def test_ik_runs_quants_of_a_head_inside_of_copies(
    folder: Path, ik_engine: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    engine = f"ik={Path(ik_engine.facts.bin_dir)}"
    text = recipe(folder, OWN).replace("name: heads", "name: copies")
    text = text.replace("draft: {args", "draft: {n_max: 2, args")
    quants = QUANTS.replace("FOLDER", str(folder)).partition("  - name: made-xxs")[0]
    text += "\n".join(line for line in quants.split("\n") if "imatrix" not in line)
    found = build(folder / "copies", "copies", text, "--engine", engine)
    own, made = counts(found, "own")[2], counts(found, "made-q8")[2]
    assert made[0] > 200
    assert rate(made) == pytest.approx(rate(own), abs=0.05)
    assert [w for w in found.warnings if "1 copies of whole.gguf" in w]
    path = str(found.draft("made-q8").path)
    file, target = read_gguf(path), read_gguf(folder / "whole.gguf")
    for tensor in target.tensors:
        if tensor.name.startswith("blk.2.") and "exps" in tensor.name:
            assert file.tensor(tensor.name).type_name == "q8_0"
        elif not tensor.name.startswith("blk.2."):
            assert file.read_tensor_bytes(tensor.name) == target.read_tensor_bytes(tensor.name)
    monkeypatch.setenv("COOK_HOME", str(folder / "copies"))
    assert main(["serve", "copies", "--candidate", "made-q8 n_max=2", "--print"]) == 0
    command = capsys.readouterr().out
    assert f"--model {path}" in command
    assert "whole.gguf" not in command
    assert "--model-draft" not in command
