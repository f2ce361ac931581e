"""Commands for single steps: what they say, in which order; run by a real shell, and then a build
that finds everything stored. Every way that a key is no step's is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cook.errors import InputError, PrerequisiteError
from cook.graph.execute import closure
from cook.graph.step import Source
from cook.graph.store import Artifact, Store
from cook.job.one_step import (
    SHOWN,
    RecipeArgs,
    StepCommand,
    UsedArtifacts,
    run_step,
    step_commands,
    used_artifacts,
)
from cook.job.plan import Planned, Reason, State
from cook.job.prepare import Prepared
from cook.output import Mode, Output
from cook.steps.quantize import TENSOR_KIND
from tests.attacks.builds import SMALL, WHOLE
from tests.builds import TINY
from tests.job.laid_out import layout
from tests.stored import stored


def fabricated(stored: tuple[str, ...] = ()) -> tuple[Prepared, Any]:
    """Of drafts that are there already: a trace, replays, timings; and as much of their plan as
    commands are made of, where the kinds ``stored`` are."""
    laid, loaded = layout(), cast("Any", None)
    steps = [
        Planned(
            *(s.label, s.kind, s.key),
            state=State.STORED if s.kind in stored else State.RUN,
            reason=Reason.NEW,
            detail="",
            size_bytes=0,
            seconds=4.0,
            seconds_reason=None,
            timed=s.timed,
        )
        for s in closure(laid.forecast.steps()).values()
    ]
    return Prepared(loaded, False, (laid,), ()), SimpleNamespace(steps=steps)


ASKED = RecipeArgs(Path("my recipe.yaml"), ("ik=/builds/ik; rm -rf /",), threads=3)


def test_commands_come_wave_by_wave_and_timed_ones_last() -> None:
    prepared, plan = fabricated()
    commands = {c.key: c for c in step_commands(ASKED, prepared, plan)}
    assert commands
    before: list[str] = []
    for key, command in commands.items():
        needed = [s.key for s in prepared.steps()[key].steps() if s.key in commands]
        assert set(needed) <= set(before)
        assert command.wave == 1 + max((commands[one].wave for one in needed), default=0)
        assert command.timed == (command.machine is not None)
        before.append(key)
    order = [(c.wave, c.timed) for c in commands.values()]
    assert order == sorted(order)
    assert not any(c.label.startswith("deal") for c in commands.values()), "not known yet"
    after = step_commands(ASKED, *fabricated(stored=("trace",)))
    assert {c.wave for c in after} == {1}, "what is stored is no command"
    assert not any(c.label.startswith("trace") for c in after)


def test_a_command_is_one_line_whatever_its_parts_are_called() -> None:
    line = StepCommand(
        command=ASKED.command("run", "0" * SHOWN),
        wave=2,
        key="0" * 64,
        label="quantize A\nrm -rf / #\x1b[2J",
        cores=3,
        memory_bytes=3 << 30,
        device=True,
        timed=True,
        machine="host",
        seconds=64.0,
    ).line
    words = "cook run 0000000000000000 'my recipe.yaml' --engine 'ik=/builds/ik; rm -rf /'"
    assert line == (
        f"{words} --threads 3  # wave 2, 3 cores, 3.00 GiB of memory, device, timed, alone on "
        "host, about 1 min 04 s: quantize A\\nrm -rf / #\\x1b[2J"
    )


@pytest.fixture
def sh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], subprocess.CompletedProcess[str]]:
    """``sh(script)`` in an empty COOK_HOME, where ``cook`` is this one."""
    shim = tmp_path / "bin" / "cook"
    shim.parent.mkdir()
    shim.write_text(f'#!/bin/sh\nexec {sys.executable} -m cook "$@"\n')
    shim.chmod(0o755)
    monkeypatch.setenv("COOK_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", f"{shim.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[2]))

    def run(script: str) -> subprocess.CompletedProcess[str]:
        command = ["/bin/sh", "-e", "-c", script]
        return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)

    return run


LIVE = WHOLE + "  live_budget: {minutes: 0.05}\n"
REPLAYED = TINY.replace("method: live", "method: replay").replace("n_max: [4]", "n_max: [2]")


@pytest.mark.engine
@pytest.mark.usefixtures("bundled")
@pytest.mark.parametrize("text", [LIVE, REPLAYED], ids=["live", "replayed"])
def test_sh_runs_what_is_printed_and_a_build_finds_it_all(
    text: str, tmp_path: Path, sh: Callable[[str], Any]
) -> None:
    recipe = tmp_path / "r.yaml"
    recipe.write_text(text)
    asked = f"{recipe} --threads 1"
    document = json.loads(sh(f"cook plan {asked} --commands --json").stdout)
    keys = [command["key"] for command in document["commands"]]
    assert len(keys) >= 4
    ran = sh(f"cook plan {asked} --commands | sh -e")
    assert ran.returncode == 0, ran.stderr
    assert [Path(line).name for line in ran.stdout.splitlines()] == keys
    made = kept(tmp_path)
    assert made.keys() == set(keys)
    left = sh(f"cook plan {asked} --commands")
    assert (left.stdout, left.returncode) == ("", 0)
    assert document["finish"] == f"cook build {asked}"
    built = sh(document["finish"])
    assert built.returncode == 0, built.stderr
    assert made.items() <= kept(tmp_path).items(), "nothing of it ran again"


def kept(folder: Path) -> dict[str, int]:
    """Keys of what steps have stored, and when each was made; tensors are no steps."""
    steps = (a for a in Store(folder / "home" / "store").entries() if a.kind != TENSOR_KIND)
    return {artifact.key: artifact.meta.stat().st_mtime_ns for artifact in steps}


@pytest.mark.engine
@pytest.mark.usefixtures("bundled")
def test_a_step_again_runs_nothing_and_side_by_side_once(
    tmp_path: Path, sh: Callable[[str], Any]
) -> None:
    recipe = tmp_path / "r.yaml"
    recipe.write_text(SMALL)
    first = sh(f"cook plan {recipe} --commands").stdout.splitlines()[0]
    command = first.partition("#")[0]
    both = sh(f"{command} & {command} & wait")
    assert both.stderr.count("stored already, nothing ran") == 1, both.stderr
    assert json.loads(sh(f"{command} --json").stdout)["ran"] is False


@pytest.mark.engine
@pytest.mark.usefixtures("bundled")
def test_what_is_wrong_with_a_key_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COOK_HOME", str(tmp_path / "home"))
    recipe = tmp_path / "r.yaml"
    recipe.write_text(SMALL)
    asked, output = RecipeArgs(recipe, threads=1), Output(Mode.QUIET)
    layouts = asked.prepared(output).layouts
    steps = {s.label: s for layout in layouts for s in layout.all_steps()}
    listing = f"cook plan {recipe} --threads 1 --commands"
    imatrix, quantize = steps["imatrix (bundled)"], steps["quantize A (bundled)"]
    unlike, none = "is no key of a step", "no step has the key 0123456789"
    for key, why in (("imatrix", unlike), ("0" * 7, unlike), ("0123456789", none)):
        with pytest.raises(InputError, match=why) as refused:
            run_step(key, asked, output)
        assert refused.value.hint == listing
    with pytest.raises(PrerequisiteError, match=r"its input imatrix .* is not made yet") as absent:
        run_step(quantize.key, asked, output)
    assert absent.value.hint == f"cook run {imatrix.key[:SHOWN]} {recipe} --threads 1"
    run_step(imatrix.key[:12], asked, output)
    directory = capsys.readouterr().out.strip()
    assert directory.endswith(imatrix.key)
    # The recipe is another now; what was made under the key says which step it was.
    recipe.write_text(SMALL.replace("chunks: 2,", "chunks: 3,"))
    with pytest.raises(InputError, match=r"imatrix \(bundled\) was made under it, which is") as was:
        run_step(imatrix.key, asked, output)
    assert "params changed" in was.value.message


def test_live_runs_and_checks_of_what_a_recipe_uses_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = SimpleNamespace(kind="quantize", inputs=lambda: {"source": Source(tmp_path, "s", 1)})
    prepared = SimpleNamespace(steps=lambda: {"q": first}, layouts=())
    after = [SimpleNamespace(kind=kind) for kind in ("deal", "compare")]
    monkeypatch.setattr("cook.job.one_step.later_steps", lambda _: ([], after))
    made = stored(Store(tmp_path), {}, key="x")

    def of(kind: str, key: str, *inputs: str) -> Artifact:
        parts = {"inputs": dict(enumerate(inputs))}
        return replace(made, kind=kind, key=key, key_parts=parts)

    stays = [of("compare", "c", "d"), of("deal", "d", "s", "q")]
    goes = [of("deal", "other", "s", "p"), of("quantize", "p", "s"), of("compare", "e", "other")]
    recipe: Any = SimpleNamespace(prepared=lambda _: prepared)
    used = used_artifacts([recipe], [*goes, *stays], Output(Mode.QUIET))
    assert all(map(used.covers, stays))
    assert not any(map(used.covers, goes))


def test_steps_are_known_by_key_and_tensors_by_their_source(tmp_path: Path) -> None:
    used = UsedArtifacts(frozenset({"k"}), frozenset({"sha256:1"}))
    step = stored(Store(tmp_path), {}, key="k")
    of_it = replace(step, kind="tensor", key="t", key_parts={"inputs": {"source": "sha256:1"}})
    assert used.covers(step)
    assert not used.covers(replace(step, key="other"))
    assert used.covers(of_it)
    assert not used.covers(replace(of_it, key_parts={"inputs": {"source": "sha256:2"}}))
    assert not used.covers(replace(of_it, key_parts={}))
