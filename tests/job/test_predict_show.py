"""What ``cook predict`` prints, whole, with an engine whose outcomes are made up.

COOK_UPDATE_SNAPSHOTS=1 writes the snapshots again.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from cook.cli.main import main
from tests.job.fabricated import World
from tests.job.whole import predicted

SNAPSHOTS = Path(__file__).parent / "snapshots"
TYPED = ("--verify", "1:20,2:22,5:26", "--draft-ms", "1.5")
TWO = ("--n-max", "2", "--n-max", "4")
TARGET = ("--target", "target.gguf")
INVOCATIONS: dict[str, tuple[str, ...]] = {
    "typed": (*TWO, *TYPED),
    "untimed": ("--n-max", "4"),
    "measured": (*TWO, *TARGET),
    "p-min": ("--n-max", "4", "--p-min", "0", "--p-min", "0.5", *TYPED),
    "as-ik": ("--n-max", "4", "--profile", "ik", "--target-ms", "20", "--draft-ms", "1"),
    "slots": (*TWO, *TARGET, "--slots", "1", "--slots", "4"),
    "far-away": ("--n-max", "4", *TARGET, "--link-ms", "1", "--link-mbit", "1000"),
    "what-ifs": (*TWO, *TYPED, "--rival", "ngram-map-k:size_n=3,size_m=8"),
    "sampled": ("--n-max", "2", *TARGET),
}


def rounded(value: Any) -> Any:
    """Floats to nine digits: what the last ones are is the processor's affair."""
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    return [rounded(one) for one in value] if isinstance(value, list) else value


@pytest.mark.parametrize("name", INVOCATIONS)
def test_both_outputs_stay_as_they_are(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, world = INVOCATIONS[name], World(temperature=0.8 if name == "sampled" else 0.0)
    assert predicted(tmp_path, monkeypatch, *arguments, world=world) == 0
    shown = capsys.readouterr()
    assert predicted(tmp_path, monkeypatch, *arguments, "--json", world=world) == 0
    document = rounded(json.loads(capsys.readouterr().out))
    text = (
        f"$ cook predict {' '.join(arguments)}\n--- stdout\n{shown.out}--- stderr\n{shown.err}"
        f"--- json\n{json.dumps(document, indent=1)}\n"
    )
    file = SNAPSHOTS / f"predict-{name}.txt"
    if os.environ.get("COOK_UPDATE_SNAPSHOTS") == "1":
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    assert text == file.read_text(), "if this is meant, run with COOK_UPDATE_SNAPSHOTS=1"


def test_a_trace_that_ends_with_its_replies_is_named_where_servers_draft_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tests.job.fabricated.EXTRA", 2)
    asked = ("--n-max", "4", "--target-ms", "20", "--draft-ms", "1", "--profile")
    for profile, warned in (("ik", True), ("mainline", False)):
        assert predicted(tmp_path, monkeypatch, *asked, profile) == 0
        said = "has 2 tokens there, n_max 4 needs 5" in capsys.readouterr().err.replace("\n", " ")
        assert said == warned, profile


def test_typed_numbers_alone(capsys: pytest.CaptureFixture[str]) -> None:
    numbers = ("--acceptance", "0.6", "--target-ms", "20", "--draft-ms", "1")
    assert main(["predict", *numbers, "--n-max", "1", "--n-max", "4", "--json"]) == 0
    shown = capsys.readouterr()
    document = json.loads(shown.out)
    assert [row["n_max"] for row in document["settings"]] == [1, 4]
    assert document["best_length_closed_form"] == pytest.approx(5.0, abs=2)
    assert "every batch is taken to cost what one token costs" in shown.err
    assert "pooled" in shown.err


THREAD = ("--acceptance", "0.62", "--target-speed", "6.27")
"""ik_llama.cpp's discussion 839: a target of 6.27 t/s, a draft of 100, 62 to 66 %."""


def test_the_field_thread_s_question(capsys: pytest.CaptureFixture[str]) -> None:
    asked = (*THREAD, "--draft-speed", "100", "--profile", "ik", "--n-max", "4")
    assert main(["predict", *asked]) == 0
    shown = capsys.readouterr()
    verdict = shown.out.splitlines()[-1]
    assert verdict.startswith("drafting pays: n_max=4 is 2.78x as fast as no draft")
    assert "17.44 t/s for 6.27" in verdict
    assert "every batch taken to cost one token's time" in verdict
    assert "verification is dearer" in shown.err
    assert main(["predict", *asked, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["settings"][document["best"]]["speedup"] == pytest.approx(2.78, abs=0.01)


def test_what_is_not_worth_it_says_so_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", *THREAD, "--draft-speed", "8", "--n-max", "2"]) == 0
    verdict = capsys.readouterr().out.splitlines()[-1]
    assert verdict.startswith("not worth it: the fastest, n_max=2 is 0.")
    assert main(["predict", *THREAD, "--draft-speed", "100", "--target-ms", "9"]) == 2
    assert "say the same: give one of them" in capsys.readouterr().err


def test_a_replay_that_fails_or_an_option_that_does_not_fit_is_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert predicted(tmp_path, monkeypatch, world=World(failing=("replay large",))) == 1
    assert "replay large (bundled): it crashed" in capsys.readouterr().err
    assert predicted(tmp_path, monkeypatch, "--overhead-ms", "1") == 2
    assert "--overhead-ms and --acceptance-at go with --acceptance" in capsys.readouterr().err
