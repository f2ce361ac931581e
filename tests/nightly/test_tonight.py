"""How a night ends: files, one document, an exit status."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cook.errors import GateError, InputError, StepError
from cook.job.run import Built
from cook.nightly.cell_outcomes import CellOutcome, CellStatus, exit_status, read_outcomes
from cook.nightly.gates import Verdict
from cook.nightly.history import Night, append, read_history
from cook.nightly.pipeline import load_pipeline
from cook.nightly.tonight import NightRequest, due, raise_for_cells, run_cell, run_night
from cook.output import Mode, Output
from cook.steps.draft_quality import MemoryStep
from cook.steps.quantize import QuantizeStep
from tests.builds import TINY
from tests.nightly.nights import Series, World
from tests.nightly.test_cell_outcomes import FAILED, WORSE, outcome

QUIET = Output(Mode.QUIET)


def test_a_regression_outranks_a_failure() -> None:
    assert exit_status([outcome(), FAILED, WORSE]) == 4
    assert exit_status([outcome(), FAILED]) == 5
    assert exit_status([]) == 0
    with pytest.raises(GateError, match="1 cell got worse: demo-ik"):
        raise_for_cells([FAILED, WORSE])
    with pytest.raises(StepError, match="1 cell failed: broken-ik") as caught:
        raise_for_cells([outcome(), FAILED])
    assert caught.value.exit_code == 5
    raise_for_cells([outcome()])


@pytest.fixture
def pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COOK_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    (tmp_path / "tiny.yaml").write_text(TINY)
    path = tmp_path / "p.yaml"
    # Two nights a minute apart: how fast a shared machine is then is the weather's, not the test's.
    gates = "gates: {speed_percent: 90, no_draft_percent: 90}\n"
    path.write_text(f"version: 1\nname: p\nrecipes: [tiny.yaml]\nengines: bundled\n{gates}")
    return path


def swept(pipeline: Path, output: Output = QUIET, **asked: Any) -> None:
    """``cook sweep`` into the folder ``n`` next to the pipeline."""
    run_night(NightRequest(pipeline, into=pipeline.parent / "n", **asked), output)


def outcomes_of(pipeline: Path) -> tuple[CellOutcome, ...]:
    return read_outcomes([pipeline.parent / "n"])


def history_of(pipeline: Path) -> tuple[Night, ...]:
    return read_history(load_pipeline(pipeline).history).nights


def test_a_sweep_of_cells_ends_in_files_and_one_document(
    pipeline: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.write_text("version: 1\nname: p\nrecipes: [tiny.yaml]\nengines: [a, b]\n")
    made = {"tiny-a": outcome("tiny-a"), "tiny-b": replace(WORSE, cell="tiny-b")}
    monkeypatch.setattr("cook.nightly.tonight.run_cell", lambda _, cell, *__: made[cell.name])
    with pytest.raises(GateError, match="1 cell got worse: tiny-b"):
        swept(pipeline, Output(Mode.HUMAN), all_cells=True)
    shown = capsys.readouterr()
    assert shown.out.splitlines() == ["tiny-a: ok; pick Q4", "tiny-b: ok; pick Q4"]
    assert "1 of 2 cells\n" in shown.err
    assert "tiny-a: 4 starts a side find a loss of 3.0%" in shown.err
    with pytest.raises(GateError):
        swept(pipeline, Output(Mode.JSON), all_cells=True)
    document = json.loads(capsys.readouterr().out)
    assert document["exit_code"] == 4
    assert [c["cell"] for c in document["cells"]] == ["tiny-a", "tiny-b"]
    written = sorted(p.name for p in (pipeline.parent / "n").iterdir())
    assert written == ["junit.xml", "summary.md"]


@pytest.mark.engine
def test_nights_are_compared_and_remembered(
    pipeline: Path,
    bundled: Any,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    swept(pipeline)
    (first,) = outcomes_of(pipeline)
    assert (first.status, first.against) == (CellStatus.OK, None)
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("tiny-bundled: ok; pick ")
    loaded = load_pipeline(pipeline)
    assert [d.reason for d in due(loaded)] == [None]
    with monkeypatch.context() as patched:  # times are of the threads that the command says
        asked: dict[str, Any] = {}

        def lay_out(*_: Any, **options: Any) -> Any:
            asked.update(options)
            raise InputError("no")

        patched.setattr("cook.nightly.tonight.prepare", lay_out)
        assert [d.reason for d in due(loaded, threads=2)] == ["cannot be planned: no"]
        assert asked["threads"] == 2

    # A fresh cell is not run, and its line says so.
    run_night(NightRequest(pipeline), QUIET)
    assert "fresh: last night" in capsys.readouterr().out
    assert len(history_of(pipeline)) == 1

    # The next night is due, measures again, and counts are what they were: one build, greedy.
    (cell,) = due(loaded, now=datetime.now(UTC) + timedelta(hours=21))
    assert cell.reason == "its last night is 21 hours old"
    swept(pipeline, all_cells=True)
    (second,) = outcomes_of(pipeline)
    assert second.against == first.created
    (same,) = (f for f in second.findings if f.text == "identical to the last digit")
    assert "acceptance" in same.gate
    before, after = history_of(pipeline)
    assert before.live[1].prompts != after.live[1].prompts  # times of their own

    # So is what another build of the engine measured.
    text, digest = loaded.history.read_text(), before.record.engines["bundled"].digest
    loaded.history.write_text(text.replace(digest, "0" * len(digest)))
    assert [d.reason for d in due(loaded)] == ["its engine bundled is another build"]
    loaded.history.write_text(text)

    # A changed recipe is stale at once.
    changed = TINY.replace("max_tokens: 24", "max_tokens: 25")
    (pipeline.parent / "tiny.yaml").write_text(changed)
    (cell,) = due(load_pipeline(pipeline))
    assert cell.reason == "its recipe is not that of its last night"


@pytest.mark.engine
def test_a_regression_exits_4_until_it_is_accepted(pipeline: Path, bundled: Any) -> None:
    swept(pipeline, cell="tiny-bundled")
    (night,) = history_of(pipeline)
    # As if the file had been half the size the night before.
    (draft,) = night.record.drafts
    smaller = replace(draft, file_bytes=(draft.file_bytes or 0) // 2)
    history = load_pipeline(pipeline).history
    append(history, replace(night, record=replace(night.record, drafts=(smaller,))))
    with pytest.raises(GateError, match="1 cell got worse: tiny-bundled"):
        swept(pipeline, cell="tiny-bundled")
    (outcome,) = outcomes_of(pipeline)
    assert outcome.status is CellStatus.REGRESSION
    assert [f.gate for f in outcome.findings if f.verdict is Verdict.REGRESSION] == ["size"]
    assert history_of(pipeline)[-1].good is False
    (cell,) = due(load_pipeline(pipeline))
    assert cell.reason == "its last night was worse, and is not accepted"
    run_night(NightRequest(pipeline, accept="tiny-bundled"), QUIET)
    swept(pipeline, cell="tiny-bundled")
    assert history_of(pipeline)[-1].good is True


@pytest.fixture
def run_one(pipeline: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., CellOutcome]:
    """Runs the pipeline's cell with a stand-in for its build."""
    loaded = load_pipeline(pipeline)
    (cell,) = loaded.cells
    layouts = [SimpleNamespace(engine=SimpleNamespace(name="bundled"))]
    prepared = SimpleNamespace(loaded=cell.loaded, layouts=layouts)
    monkeypatch.setattr("cook.nightly.tonight.prepare", lambda *_, **__: prepared)
    request = NightRequest(pipeline, into=pipeline.parent / "n")

    def run(build: Callable[..., Any], say: Callable[[str], None] = lambda _: None) -> CellOutcome:
        monkeypatch.setattr("cook.nightly.tonight.build", lambda *_, **options: build(**options))
        return run_cell(loaded, cell, request, QUIET, say)

    return run


def nights_of(pipeline: Path, count: int) -> list[Night]:
    """Simulated nights of the pipeline's cell."""
    (cell,) = load_pipeline(pipeline).cells
    text = hashlib.sha256(cell.loaded.text.encode()).hexdigest()
    series = Series(World(prompts=12, new_builds=0), seed=4)
    nights = [series.measure() for _ in range(count)]
    records = [replace(night.record, recipe_sha256=text) for night in nights]
    return [replace(n, cell=cell.name, record=r) for n, r in zip(nights, records, strict=True)]


def test_the_last_good_pick_runs_again(pipeline: Path, run_one: Any) -> None:
    """Its speed is compared even on a night whose finalists are others."""
    asked: list[str | None] = []

    def build(again: str | None, reference: Any, **_: Any) -> Any:
        asked.append(again)
        assert reference == {}
        raise StepError("enough")

    assert run_one(build).status is CellStatus.FAILED
    (night,) = nights_of(pipeline, 1)
    # A night that was no good is no measure.
    for found in (night.judged((), ()), replace(night, id="worse", good=False)):
        append(load_pipeline(pipeline).history, found)
        run_one(build)
    assert asked == [None, night.pick, night.pick]


def test_nights_of_a_cell_end_in_a_verdict_each(pipeline: Path, run_one: Any) -> None:
    """First night, the same, a larger file, and a night on which the pick did not run live."""
    nights = [night.record for night in nights_of(pipeline, 4)]
    pick = nights[0].pick.candidate
    larger = tuple(replace(draft, file_bytes=2 * 10**9) for draft in nights[2].drafts)
    nights[2] = replace(nights[2], drafts=larger)
    left = tuple(c for c in nights[3].candidates if c.name != pick)
    nights[3] = replace(nights[3], candidates=left)
    made = (Built(record, Path("r"), (), (), ()) for record in nights)
    outcomes = [run_one(lambda **_: next(made)) for _ in nights]
    status = CellStatus
    assert [(one.status, one.exit_code) for one in outcomes] == [
        *((status.OK, 0), (status.OK, 0), (status.REGRESSION, 4), (status.NOT_JUDGED, 0))
    ]
    first, second, worse, unjudged = (outcome.summary for outcome in outcomes)
    assert "first night" in first
    assert f"against {nights[0].created}" in second
    assert worse.startswith("REGRESSION: size of Q4: ")
    assert "and 2 more" in worse
    assert unjudged.startswith(f"not judged: {pick}: not run live tonight: it was no finalist")
    assert outcomes[1].power is not None
    assert [night.good for night in history_of(pipeline)] == [True, True, False, True]
    assert outcomes_of(pipeline) == (outcomes[-1],)


def test_a_cell_prints_its_start_and_each_phase_once(run_one: Any) -> None:
    def build(watch: Any, **_: Any) -> Any:
        for step in (QuantizeStep, MemoryStep, QuantizeStep):
            watch(SimpleNamespace(phase=step.phase))
        raise StepError("enough")

    lines: list[str] = []
    run_one(build, lines.append)
    assert [line.partition(", after")[0] for line in lines] == [
        "tiny-bundled: started",
        "tiny-bundled: quantize the drafts",
        "tiny-bundled: PPL, KLD and memory",
    ]


@pytest.mark.parametrize("error", [InputError("broken"), GateError("none"), StepError("x")])
def test_a_broken_cell_is_a_failed_one_not_a_wrong_command_line(
    pipeline: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def prepare(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr("cook.nightly.tonight.prepare", prepare)
    with pytest.raises(StepError) as caught:
        swept(pipeline)
    assert caught.value.exit_code == 1


def test_a_missing_engine_fails_its_cell_and_no_other(
    pipeline: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pipeline.write_text("version: 1\nname: p\nrecipes: [tiny.yaml]\nengines: [absent, gone]\n")
    with pytest.raises(StepError, match="2 cells failed") as caught:
        swept(pipeline)
    assert caught.value.exit_code == 5
    assert len(outcomes_of(pipeline)) == 2
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("tiny-absent: failed: no engine is called 'absent'")
    assert history_of(pipeline) == ()


def test_the_plan_is_one_line_for_a_matrix(
    pipeline: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_night(NightRequest(pipeline, plan=True), QUIET)
    (line,) = capsys.readouterr().out.splitlines()
    cell = {"cell": "tiny-bundled", "recipe": "tiny", "engine": "bundled"}
    assert json.loads(line) == {"include": [{**cell, "reason": "never run here"}]}
    with pytest.raises(InputError, match="--plan and --cell cannot be asked together"):
        NightRequest(pipeline, plan=True, cell="x")
