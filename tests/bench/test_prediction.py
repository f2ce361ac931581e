"""What the study of predictions says, and the pair of real proportions in small."""

from __future__ import annotations

import json
import os
import re
from contextlib import nullcontext
from dataclasses import asdict, replace
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from bench.prediction import (
    PAIRS,
    Cell,
    Compared,
    Pair,
    compared,
    of_first_layers,
    prediction,
    read_alike,
    read_cells,
    table,
    told,
)
from bench.proportions import (
    DRAFTS,
    SMALL,
    proportions_layout,
    write_pair,
    write_prompts,
    write_recipe,
)
from bench.study import empty_executor
from bench.written import recorded, rewrite
from cook.build.forecast import Forecaster
from cook.build.layout import ForecastPlan, Layout
from cook.formats.gguf import read_gguf
from cook.graph.execute import Executor
from cook.prompts.prompt_set import load_prompts
from cook.record.prompt_runs import PromptRun
from cook.steps.trace import given_trace

TINY = replace(SMALL, vocabulary=1024, layers=10)
FOUND = [
    Compared("no draft", None, 0, 100.0, 101.0, (100.0, 102.0), (50.0, 49.0), (90.0, 110.0)),
    Compared("a n_max=2", "a", 2, 130.0, 124.0, (120.0, 128.0), (60.0, 58.0), (110.0, 130.0)),
    Compared("b n_max=2", "b", 2, 140.0, 140.0, (141.0, 139.0), (62.0, 61.0), (140.0, 120.0)),
    Compared("a n_max=8", "a", 8, 120.0, 150.0, (150.0, 150.0), (60.0, 66.0), (150.0, 140.0)),
    Compared("b n_max=8", "b", 8, 90.0, 90.0, (91.0, 89.0), (45.0, 45.0), (90.0, 80.0)),
]
CELL = Cell(
    "prediction-256-ik",
    "a pair x ik",
    2,
    3,
    11.5,
    tuple(FOUND[:3]),
    day="2026-11-23",
    commit="8be2d0c",
    machine="2 x a processor",
)


def test_errors_are_told_by_length_beside_the_scatter_of_live_runs() -> None:
    study = told("a pair x bundled", FOUND, 2)
    text = "\n".join(study.lines)
    assert "no draft             median 1.0%, worst 1.0% of 1; scatter of a live run 1.4%" in text
    assert "scatter of a live run 1.4% (14.1% by the clock)" in text
    assert "drafts n_max=2       median 2.4%, worst 4.8% of 2; scatter of a live run 2.8%" in text
    assert "drafts n_max=8       median 10.0%, worst 20.0% of 2" in text
    assert "a: predicted best n_max=2, live best n_max=8" in text
    assert not study.within, "20 % off"
    assert told("the rest", [c for c in FOUND if c.name != "a n_max=8"], 2).within


def test_a_single_live_run_has_no_scatter() -> None:
    text = "\n".join(
        told("short", [replace(c, live=c.live[:1], by_clock=c.live[:1]) for c in FOUND], 1).lines
    )
    assert "one live run" in text
    assert "scatter of a live run unknown" in text


def test_what_another_text_would_have_said_is_told_and_not_judged(tmp_path: Path) -> None:
    other = [replace(c, of_written=c.predicted * 1.5 if c.draft else None) for c in FOUND[:3]]
    lines = told("long", other, 2).lines
    assert "on what servers wrote" not in lines[1], "no draft, of the trace itself"
    assert lines[2].endswith("on what servers wrote, not the trace's text, +57.3%")
    assert told("long", other, 2).within, "by the trace's text"
    mended = [*FOUND[:3], replace(FOUND[3], of_written=FOUND[3].typical)]
    assert not told("long", mended, 2).within, "20 % off by the trace's text"
    path = tmp_path / "cells.jsonl"
    path.write_text(json.dumps(asdict(replace(CELL, found=tuple(other)))) + "\n")
    assert read_cells(path) == [replace(CELL, found=tuple(other))]
    text = "\n".join(table(read_cells(path)).lines)
    assert "another text than the trace's for 2 of them, median 2.4%, worst 4.8%" in text
    assert "on what they wrote, not judged, median 53.6%, worst 57.3%" in text
    assert "another text" not in "\n".join(table([CELL]).lines)


def test_cells_are_read_back_and_judged_together(tmp_path: Path) -> None:
    cell = CELL
    other = replace(cell, name="prediction-256-bundled", found=tuple(FOUND))
    path = tmp_path / "cells.jsonl"
    lines = [json.dumps(asdict(one)) + "\n" for one in (replace(cell, minutes=1.0), other, cell)]
    path.write_text("".join(lines))
    assert read_cells(path) == [cell, other], "each as it was last run"
    assert table([cell]).within
    both = table([cell, other])
    assert not both.within
    assert "prediction-256-bundled        1.0%   20.0%     -1.0%" in "\n".join(both.lines)
    assert both.lines[1].endswith("11.5  2026-11-23 8be2d0c")
    continued = table([replace(cell, minutes=None)]).lines[1]
    assert continued.split()[-3:] == ["-", "2026-11-23", "8be2d0c"]
    assert both.lines[-1].startswith("2 cells, 8 configurations: median 1.0%")


def test_a_cell_may_be_run_draft_by_draft(tmp_path: Path) -> None:
    path = tmp_path / "cells.jsonl"
    whole = replace(CELL, found=tuple(FOUND))

    def of(draft: str, day: str) -> Cell:
        return replace(CELL, day=day, found=(FOUND[0], *(c for c in FOUND if c.draft == draft)))

    first, second, anew = of("a", "first"), of("b", "second"), of("a", "anew")

    def left(*cells: Cell) -> list[Cell]:
        path.write_text("".join(json.dumps(asdict(cell)) + "\n" for cell in cells))
        return read_cells(path)

    other = replace(CELL, name="prediction-256-bundled")
    assert left(whole, other, first) == [
        replace(of("b", CELL.day), found=(FOUND[0], FOUND[2], FOUND[4])),
        first,
        other,
    ]
    assert left(whole, first, second) == [first, second]
    assert left(first, second, anew) == [second, anew]
    assert left(first, second, whole) == [whole]
    lines = table([first, second, other]).lines
    assert [line.rpartition(", ")[2] for line in lines[1:3]] == ["a", "b"]
    assert lines[3].endswith(other.commit), "whole"
    assert lines[4].startswith("2 cells, 9 configurations")


def test_the_last_run_of_every_cell_is_kept() -> None:
    cells = read_cells(Path("bench/results/prediction.jsonl"))
    known = {f"{pair}-{engine}": PAIRS[pair] for pair in PAIRS for engine in ("bundled", "ik")}
    assert cells
    found: dict[str, list[tuple[int, str]]] = {}
    for cell in cells:
        # The demo's cells are from before its target had the layers in front, and say so.
        title = cell.title.rpartition(" x ")[0].replace("/target-f16.gguf", "/target.gguf")
        assert title == known[cell.name].title
        assert not cell.commit.endswith("+"), "measured with code that is in the history"
        bare, *drafted = cell.found
        assert (bare.draft, bare.n_max) == (None, 0)
        found.setdefault(cell.name, []).extend((c.n_max, c.draft or "") for c in drafted)
    for name, of in found.items():
        drafts = DRAFTS if "demo" not in known[name].title else ("Q8_0", "Q4_K_M", "Q2_K")
        assert sorted(of) == sorted((n, draft) for draft in drafts for n in (2, 4, 8)), name
    assert len(table(cells).lines) >= 2 + len(cells)


def request(name: str, wall_ms: float, decoding_ms: float, late_ms: float | None) -> PromptRun:
    return PromptRun(
        id=name,
        category="random",
        prompt_n=16_384,
        prompt_ms=wall_ms - decoding_ms,
        predicted_n=512,
        predicted_ms=decoding_ms,
        wall_ms=wall_ms,
        draft_n=None,
        draft_n_accepted=None,
        tokens=None,
        text="",
        stop="limit",
        draft_prompt_ms=late_ms,
    )


def test_a_prompt_is_read_alike_with_every_draft_and_by_a_draft_at_every_length() -> None:
    live = {
        "no draft": [[request("a", 160, 50, None)], [request("a", 140, 52, None)]],
        "x n_max=2": [[request("a", 250, 120, 28.0)]],
        "x n_max=8": [[request("a", 300, 170, 22.0)]],
        "y n_max=2": [[request("a", 200, 80, 10.0)]],
    }
    drafts = {name: None if name == "no draft" else name[0] for name in live}
    read = read_alike(live, drafts)
    # The target's reading: 110 and 88, then 102, 108 and 110; the draft x's: 28 and 22.
    walls = {
        name: [run.wall_ms for runs in rounds for run in runs] for name, rounds in read.items()
    }
    assert walls == {
        "no draft": [158, 160],
        "x n_max=2": [253],
        "x n_max=8": [303],
        "y n_max=2": [198],
    }
    assert read["x n_max=2"][0][0].predicted_ms == 120, "decoding is each run's own"


def test_what_an_engine_does_not_tell_apart_stays_with_the_draft() -> None:
    live = {
        "no draft": [[request("a", 150, 50, None)]],
        "x n_max=2": [[request("a", 240, 110, None)]],
        "x n_max=8": [[request("a", 300, 180, None)]],
    }
    read = read_alike(live, {"no draft": None, "x n_max=2": "x", "x n_max=8": "x"})
    assert [rounds[0][0].wall_ms for rounds in read.values()] == [150, 235, 305]


def test_a_cell_of_long_prompts_is_judged_end_to_end() -> None:
    far = [replace(one, whole=(60.0, 55.0)) for one in FOUND[:3]]
    assert told("a pair", far, 2).within
    judged = told("a pair", far, 2, whole=True)
    assert not judged.within
    assert judged.lines[-1] == "a pair: end to end worst 9.1% (at most 5%)"


def test_long_prompts_on_ik_are_judged_end_to_end_too() -> None:
    cell = replace(CELL, name="prediction-4096-ik")
    assert table([cell]).lines[-1].endswith("worst 3.4% (at most 5%)")
    assert table([cell]).within
    far = replace(FOUND[1], whole=(60.0, 55.0))
    assert not table([replace(cell, found=(FOUND[0], far))]).within
    short = replace(cell, name="prediction-256-ik", found=(FOUND[0], far))
    assert table([short]).within, "shown, not bound"


def test_a_cell_is_kept_in_the_file_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to = tmp_path / "cells.jsonl"
    monkeypatch.setenv("COOK_BENCH_CELLS", str(to))
    laid = cast("Layout", None)
    monkeypatch.setitem(PAIRS, "a-pair", Pair("a pair", lambda _: nullcontext(laid), "a", 2))
    monkeypatch.setattr("bench.prediction.compared", lambda *_, **__: FOUND[:3])
    study = prediction("a-pair", ["ik"])
    assert study.within
    (cell,) = read_cells(to)
    assert (cell.name, cell.title, cell.turns) == ("a-pair-ik", "a pair x ik", 2)
    assert cell.found == tuple(FOUND[:3])
    assert re.fullmatch(r"[0-9a-f]{7,}\+?", cell.commit)
    assert cell.day == date.today().isoformat()
    assert study.lines[-1].startswith("a pair x ik: ")
    prediction("a-pair", ["bundled", "ik"])
    assert [c.name for c in read_cells(to)] == ["a-pair-ik", "a-pair-bundled"]


def test_drafts_of_another_pair_are_refused(tmp_path: Path) -> None:
    plan = SimpleNamespace(drafts=[SimpleNamespace(draft=SimpleNamespace(name="first-2"))])
    layout: Any = SimpleNamespace(
        baseline=object(), grid=(), forecast=plan, prompts=SimpleNamespace(prompts=())
    )
    with pytest.raises(ValueError, match="no drafts of this pair: Q8_0, first-9"):
        compared(
            layout, "first-2", 1, 2, drafts=["first-9", "Q8_0", "first-2"], kept=tmp_path / "no"
        )
    assert not list(tmp_path.iterdir())


def test_drafts_are_the_targets_first_layers(tmp_path: Path) -> None:
    write_pair(tmp_path, TINY)
    target = {t.name: t for t in read_gguf(tmp_path / "target.gguf").tensors}
    whole = (tmp_path / "target.gguf").read_bytes()
    for name, layers in zip(DRAFTS, (2, 4, 8), strict=True):
        draft = read_gguf(tmp_path / f"{name}.gguf")
        blocks = {t.name.split(".")[1] for t in draft.tensors if t.name.startswith("blk.")}
        assert blocks == {str(layer) for layer in range(layers)}
        for tensor in draft.tensors:
            assert (tensor.shape, tensor.type_name) == (
                target[tensor.name].shape,
                target[tensor.name].type_name,
            )
    assert target["blk.9.ffn_down.weight"].type_name == "q8_0"
    write_pair(tmp_path, TINY)
    assert (tmp_path / "target.gguf").read_bytes() == whole


def test_prompts_have_about_the_length_asked_for(tmp_path: Path) -> None:
    prompts = load_prompts(str(write_prompts(tmp_path / "p.jsonl", 256, 8))).prompts
    lengths = [len(p.text) for p in prompts]
    assert max(lengths) == 254
    assert min(lengths) > 0.9 * 254
    assert [p.half for p in prompts[:2]] == ["pick", "report"]


@pytest.mark.engine
@pytest.mark.parametrize(("tokens", "flash_attention"), [(256, None), (4096, False)])
def test_long_prompts_go_without_flash_attention(tokens: int, flash_attention: bool | None) -> None:
    with of_first_layers(TINY, tokens, 2, 16, "bundled") as laid_out:
        assert laid_out.forecast is not None
        given = [step.args for step in laid_out.forecast.verify]
        given += [draft.replays[0].args for draft in laid_out.forecast.drafts]
        assert {args.flash_attention for args in given} == {flash_attention}
        assert {args.threads for args in given} == {len(os.sched_getaffinity(0))}


@pytest.mark.engine
def test_drafts_are_replayed_on_what_servers_wrote(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, 64, n_max=(4,), shape=TINY, prompts=4, max_tokens=24)
    plan = proportions_layout(recipe, "bundled").forecast
    assert plan is not None

    def accepted(plan: ForecastPlan, executor: Executor) -> list[int | None]:
        counted = replace(plan, verify=(), plain=())
        found = Forecaster(counted, executor.outcomes).forecasts()
        assert [run.predicted_n for run in found[1].runs] == [24] * 4
        return [run.draft_n_accepted for run in found[1].runs]

    with empty_executor() as executor:
        executor.run([plan.trace, *(r for d in plan.drafts for r in d.replays)])
        trace = Forecaster(plan, executor.outcomes).trace
        texts = recorded(trace)
        # Of r02 alone another text was written: its own, backwards.
        path = tmp_path / "written.trace"
        rewrite(trace, {"r01": texts["r01"], "r02": texts["r02"][::-1]}, path)
        written = plan.on(given_trace(path))
        executor.run([written.trace, *(r for d in written.drafts for r in d.replays)])
        before, after = accepted(plan, executor), accepted(written, executor)
    assert before[:2] + before[3:] == after[:2] + after[3:]
    assert before[2] != after[2]


@pytest.mark.engine
@pytest.mark.soak
@pytest.mark.parametrize("experts", [0, 4], ids=["dense", "sparse"])
def test_the_pair_in_small_is_predicted(tmp_path: Path, experts: int) -> None:
    shape = replace(TINY, experts=experts)
    recipe = write_recipe(tmp_path, 256, n_max=(2, 4), shape=shape, prompts=8, max_tokens=24)
    layout = proportions_layout(recipe, "bundled")
    some: dict[str, Any] = {"drafts": ["first-2"], "apart": True} if experts else {}
    found = compared(layout, "first-4", 2, 1 if experts else 3, **some)
    assert [c.n_max for c in found] == ([0, 2, 4] if experts else [0, 2, 2, 2, 4, 4, 4])
    assert {c.draft for c in found} == {None, "first-2", *(() if experts else DRAFTS)}
    assert all(c.predicted > 0 and np.isfinite(c.error) for c in found)
    bare = 2 if experts else 4
    assert all(len(c.live) == (bare if c.draft is None else 2) for c in found)
    assert all(len(c.by_clock) == len(c.live) for c in found)
    assert told("small", found, 2).lines
