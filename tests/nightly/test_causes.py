"""What changed between two nights is named: one injected change of each kind, in one night."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cook.engines.base import EngineIdentity
from cook.formats.quant_types import Flavour
from cook.nightly.causes import UNCHANGED, CauseKind, causes
from cook.nightly.cell_outcome import read_outcomes
from cook.nightly.gates import Policy, Verdict, judge
from cook.nightly.history import History, append, read_history
from cook.nightly.night import Night
from cook.nightly.tonight import NightRequest, tonight
from cook.output import Mode, Output
from tests.builds import TINY
from tests.nightly.nights import WORLDS, Harm, Series

KEPT: dict[str, Any] = {
    "target_digest": "sha256:" + "a" * 64,
    "draft_digests": {"Q4": "sha256:" + "b" * 64, "Q2": "sha256:" + "c" * 64},
    "quantized_by": {"Q4": "bundled"},
    "defaults": {"bundled": {"--spec-draft-p-min": "0.75", "--spec-type": "none"}},
    "said": ("--spec-draft-p-min",),
}
NEW = EngineIdentity(Flavour.LLAMA_CPP, "b1", None, "f" * 64)
INJECTED: dict[CauseKind, dict[str, Any]] = {
    CauseKind.DEFAULT: {
        "defaults": {"bundled": {"--spec-draft-p-min": "0.75", "--spec-type": "ngram-mod"}}
    },
    CauseKind.ENGINE: {"engines": {"bundled": NEW}},
    CauseKind.DRAFT: {"draft_digests": KEPT["draft_digests"] | {"Q2": "sha256:" + "d" * 64}},
    CauseKind.TARGET: {"target_digest": "sha256:" + "e" * 64},
    CauseKind.PROMPTS: {"prompts_sha256": "1" * 64},
    CauseKind.MACHINE: {"machine": "another machine"},
}
TOLD = {
    CauseKind.DEFAULT: "--spec-type of bundled was none then, is ngram-mod now",
    CauseKind.ENGINE: "bundled was b0 then, is b1 now",
    CauseKind.DRAFT: "the file of Q2 was cccccccccccc then, is dddddddddddd now",
    CauseKind.TARGET: "the file was aaaaaaaaaaaa then, is eeeeeeeeeeee now",
    CauseKind.PROMPTS: "is 111111111111 now",
    CauseKind.MACHINE: "is another machine now",
}


@pytest.fixture(scope="module")
def pair() -> tuple[Night, Night]:
    """(earlier, later), the later one with a loss that a gate sees."""
    series = Series(WORLDS["CPU"], seed=11)
    harm = Harm(acceptance_points=8.0)
    earlier, later = (replace(n, **KEPT) for n in (series.measure(), series.measure(harm)))
    return earlier.judged((), ()), later


@pytest.mark.parametrize("kind", CauseKind)
def test_an_injected_change_of_each_kind_is_found_and_named_in_one_night(
    pair: tuple[Night, Night], kind: CauseKind, tmp_path: Path
) -> None:
    earlier, later = pair
    later = replace(later, **INJECTED[kind])
    path = tmp_path / "history.jsonl"
    append(path, earlier)
    history = read_history(path)
    assert history.nights == (earlier,)
    judged = judge(later, history.last_good(later), Policy(), history)
    (cause,) = judged.causes
    assert cause.kind is kind
    assert TOLD[kind] in cause.text
    assert any(f"changed since then: {kind}: " in note for note in judged.notes)
    if kind in (CauseKind.PROMPTS, CauseKind.MACHINE):
        # Figures of other prompts, or of another machine, are nothing to be worse than.
        assert not judged.regressions
    else:
        assert judged.regressions
    assert UNCHANGED not in judged.notes


def test_a_loss_without_a_change_says_that_nothing_changed(pair: tuple[Night, Night]) -> None:
    earlier, later = pair
    judged = judge(later, earlier, Policy())
    assert judged.causes == ()
    assert judged.regressions
    assert UNCHANGED in judged.notes
    quiet = judge(replace(earlier, id="again"), earlier, Policy())
    assert {f.verdict for f in quiet.findings} <= {Verdict.SAME, Verdict.NOT_JUDGED}
    assert UNCHANGED not in quiet.notes


def test_a_default_that_cook_says_itself_is_told_last(pair: tuple[Night, Night]) -> None:
    """A new build moves several at once: what the figures rest on comes first."""
    earlier, later = pair
    moved = {"--spec-draft-p-min": "0.0", "--spec-type": "ngram-mod", "--new": "1"}
    later = replace(later, defaults={"bundled": moved}, engines={"bundled": NEW})
    first, second, engine = causes(later, earlier)
    assert first.text.startswith("--spec-type")
    assert "cook says it" in second.text
    assert "0.75 then, is 0.0 now" in second.text
    assert engine.kind is CauseKind.ENGINE


def test_builds_of_one_name_are_told_apart(pair: tuple[Night, Night]) -> None:
    earlier, later = pair
    same = earlier.engines["bundled"].build
    later = replace(later, engines={"bundled": replace(NEW, build=same)})
    (cause,) = causes(later, earlier)
    assert "[ffffffffffff]" in cause.text


def test_what_a_new_engine_quantized_anew_is_of_the_engine(pair: tuple[Night, Night]) -> None:
    """A file names what quantized it, so that its bytes change with the engine."""
    earlier, later = pair
    anew = {"Q4": "sha256:" + "0" * 64, "Q2": "sha256:" + "d" * 64}
    engine, draft = causes(replace(later, engines={"bundled": NEW}, draft_digests=anew), earlier)
    assert engine.text == "bundled was b0 then, is b1 now; it made other files of Q4"
    assert (draft.kind, "Q2" in draft.text) == (CauseKind.DRAFT, True)
    (alone, given) = causes(replace(later, draft_digests=anew), earlier)
    assert {alone.kind, given.kind} == {CauseKind.DRAFT}


def test_many_moved_defaults_are_counted(pair: tuple[Night, Night]) -> None:
    earlier, later = pair
    then = {f"--flag-{n:02}": "0" for n in range(20)}
    earlier = replace(earlier, defaults={"bundled": then})
    later = replace(later, defaults={"bundled": dict.fromkeys(then, "1")})
    found = causes(later, earlier)
    assert len(found) == 9
    assert "12 more defaults of bundled moved" in found[-1].text
    assert "--flag-19" in found[-1].text


def test_another_recipe_text_is_told_beside_what_else_changed(
    pair: tuple[Night, Night], tmp_path: Path
) -> None:
    earlier, later = pair
    later = replace(later, recipe_sha256="7" * 64, **INJECTED[CauseKind.TARGET])
    history = History(tmp_path / "none", (earlier,))
    judged = judge(later, history.last_good(later), Policy(), history)
    assert [c.kind for c in judged.causes] == [CauseKind.TARGET]
    assert "the recipe is not the same text as then" in judged.notes
    assert "the cell's last good night is of" in judged.notes[0]


@pytest.mark.engine
def test_a_real_night_names_the_default_that_a_new_build_moved(
    bundled: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bundled tools behind a server whose help tells another p_min on the second night."""
    tools = Path(bundled.facts.bin_dir)
    build = tmp_path / "build" / "bin"
    build.mkdir(parents=True)
    for tool in tools.glob("llama-*"):
        if tool.name != "llama-server":
            (build / tool.name).symlink_to(tool)

    def new_build(p_min: str) -> None:
        real = f'"{tools / "llama-server"}"'
        told = f"sed 's/(greedy) (default: 0.00)/(greedy) (default: {p_min})/'"
        server = build / "llama-server"
        asked = f'[ "$1" = --help ] && {{ {real} --help | {told}; exit; }}'
        server.write_text(f'#!/bin/sh\n{asked}\nexec {real} "$@"\n')
        server.chmod(0o755)

    monkeypatch.setenv("COOK_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COOK_ENGINE_MINE", str(build))
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    (tmp_path / "tiny.yaml").write_text(TINY.replace("engine: bundled\n", ""))
    pipeline = tmp_path / "p.yaml"
    gates = "gates: {speed_percent: 90, no_draft_percent: 90}\n"
    pipeline.write_text(f"version: 1\nname: p\nrecipes: [tiny.yaml]\nengines: mine\n{gates}")
    for p_min in ("0.75", "0.00"):
        new_build(p_min)
        tonight(NightRequest(pipeline, all_cells=True, into=tmp_path / p_min), Output(Mode.QUIET))
    (first,) = read_outcomes([tmp_path / "0.75"])
    assert not first.causes
    (second,) = read_outcomes([tmp_path / "0.00"])
    assert second.causes is not None
    default, engine = second.causes
    assert default.kind is CauseKind.DEFAULT
    assert default.text.startswith("--spec-draft-p-min of mine was 0.75 then, is 0.00 now")
    assert "cook says it" in default.text
    assert engine.kind is CauseKind.ENGINE
    assert engine.text.endswith("; it made other files of Q4_0")
    assert f"changed since then: {default}" in second.notes
