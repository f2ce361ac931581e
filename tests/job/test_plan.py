"""Plans of scores by replay: the trace once an engine, replays and timings of every draft."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from cook.graph.step import READ_BYTES_S
from cook.job import plan as machine_pace
from cook.job.plan import LATER, plan, show_plan
from cook.job.prepare import prepare
from cook.output import Mode, Output
from cook.scoring.compare import APART, START, TURN
from cook.steps.work import Phase

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("bundled")]


@pytest.fixture(autouse=True)
def _empty_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COOK_HOME", str(tmp_path / "home"))


def recipe(folder: Path, quants: int, **score: Any) -> Path:
    types = ("Q8_0", "Q6_K", "Q5_0", "Q4_0", "Q3_K", "Q2_K")
    target = {"source": "demo://target-q8_0.gguf", **score.pop("target", {})}
    scored = {"prompts": "demo", "limit": 8, "draft": {"n_max": [2, 4]}, **score}
    made = [{"name": t, "type": t} for t in types[:quants]]
    document: dict[str, Any] = {"version": 1, "name": "r", "quants": made}
    document["model"] = {"source": "demo://draft-f16.gguf"}
    document["score"] = {"target": target, **scored}
    path = folder / "r.yaml"
    path.write_text(json.dumps(document))
    return path


def test_an_empty_store(tmp_path: Path) -> None:
    found = plan(prepare(recipe(tmp_path, 2), plan_only=True))
    kinds = Counter(step.kind for step in found.steps)
    assert (kinds["trace"], kinds["quantize"]) == (1, 2)
    assert kinds["replay"] == 3, "one a draft, and the noise floor's"
    assert kinds["curve"] == 3, "target and drafts, one pass"
    assert kinds["deal"] == 0, "which drafts go live is not known yet"
    assert (found.dealing.prompts, found.dealing.servers) == (8, 3)
    assert (found.dealing.starts, found.dealing.loads) == (2, 6), "three prompts a block, at least"
    assert found.stale
    assert found.later == LATER


def test_a_first_build_is_reckoned_in_minutes_loads_and_what_the_budget_buys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It said "about 0.0 s and 59 steps never timed here"."""
    monkeypatch.setattr(machine_pace, "memory_bytes_s", lambda: READ_BYTES_S)
    monkeypatch.setattr(machine_pace, "processor_flops", lambda: machine_pace.FLOPS)
    found = plan(prepare(recipe(tmp_path, 2), plan_only=True))
    assert all(step.seconds for step in (*found.steps, *found.later_steps))
    later = Counter(step.kind for step in found.later_steps)
    assert later == {"deal": 2, "selfcheck": 2, "compare": 1, "control": 1}
    assert not {s.key for s in found.steps} & {s.key for s in found.later_steps}
    show_plan(found, Output(Mode.HUMAN))
    shown = capsys.readouterr()
    (titles, *phases), reads = (part.splitlines() for part in shown.out.split("\n\n"))
    assert titles.split("  ")[0] == "phase"
    first = [line[:18].rstrip() for line in phases][:2]
    assert first == ["quantize the draft", "PPL, KLD and memor"]
    assert all(" min " in line or " s " in line for line in phases), "minutes, on the first run too"
    columns = ["draft", "a", "token", "reads", "attention", "experts", "shared", "output", "dense"]
    assert reads[0].split() == [*columns, "other"]
    assert [line.split()[0] for line in reads[1:]] == ["Q8_0", "Q6_K"]
    assert max(map(len, reads)) < 80
    for said in (
        "steps would run, about ",
        " model loads",
        "* of typical candidates; then, known only once predicted: ",
        "in all about ",
        "times reckoned by size and a probe of this machine",
        "finalists: 8 prompts to 3 servers ",
        "2 starts each, 6 model loads, about ",
        "score.live_budget: 30 minutes of live runs; ",
        "the first pass over the prompts may take twice that",
    ):
        assert said in shown.err
    assert re.search(r"it can decide a difference of \d\.\d % \(95%\)", shown.err)
    assert "of unknown length" not in shown.err


def test_a_line_a_phase_and_with_steps_a_line_a_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = plan(prepare(recipe(tmp_path, 2), plan_only=True))
    show_plan(found, Output(Mode.QUIET))
    assert len(capsys.readouterr().out.splitlines()) == len(found.phases)
    show_plan(found, Output(Mode.QUIET), steps=True)
    assert len(capsys.readouterr().out.splitlines()) == len(found.steps)
    of = {p.phase: p for p in found.phases}
    assert of[Phase.QUANTIZE].to_run == of[Phase.QUANTIZE].steps == 2
    assert of[Phase.LIVE].later > 0
    assert of[Phase.LIVE].memory_bytes > of[Phase.TRACE].memory_bytes
    assert sum(p.steps for p in found.phases) == len(found.steps) + len(found.later_steps)


def test_the_smallest_difference_falls_with_starts_and_prompts(tmp_path: Path) -> None:
    """Two starts of one configuration differ by 0.5 %, whatever is dealt to them."""
    found = {}
    for limit in (4, 8, 16):
        path = recipe(tmp_path, 2, limit=limit)
        dealing = plan(prepare(path, plan_only=True)).dealing
        found[dealing.starts] = dealing.prompts, dealing.smallest_difference
    assert list(found) == [1, 2, 5]
    for starts, (prompts, difference) in found.items():
        expected = 1.96 * math.sqrt(2 * (START**2 / starts + 0.02**2 / prompts))
        assert math.log1p(difference) == pytest.approx(expected, rel=0.01)


def test_servers_with_layers_on_a_device_are_planned_in_turns(tmp_path: Path) -> None:
    path = recipe(tmp_path, 6, target={"args": {"n_gpu_layers": 99}})
    dealing = plan(prepare(path, plan_only=True)).dealing
    assert not dealing.together
    assert (dealing.servers, dealing.starts) == (3, 2), "no draft and two others, both orders"
    assert dealing.start_sd == APART
    few = recipe(tmp_path, 6, limit=4, target={"args": {"n_gpu_layers": 99}})
    once = plan(prepare(few, plan_only=True)).dealing
    assert (once.starts, once.start_sd) == (1, TURN), "one turn each, minutes apart"


def test_one_build_under_two_names_makes_nothing_twice(tmp_path: Path, bundled: Any) -> None:
    twin = f"twin={Path(bundled.tool('quantize')).parent}"
    path = recipe(tmp_path, 2)
    both = plan(prepare(path, engines=["bundled", twin], plan_only=True))
    alone = plan(prepare(path, plan_only=True))
    assert [label.split(" ")[0] for label in both.engine.split(", ")] == ["bundled", "twin"]
    assert {step.key for step in both.steps} == {step.key for step in alone.steps}
    assert both.later == LATER
