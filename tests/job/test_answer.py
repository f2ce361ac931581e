"""A question answered once is answered by its receipt, until it is asked afresh."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from cook.job.answer import print_build
from cook.job.run import Built
from cook.output import Mode, Output
from cook.report.show import NOTHING_RAN

QUESTION = {"recipe": "made-up.yaml"}


@pytest.fixture
def ask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made_up: Built
) -> Callable[..., tuple[str, int]]:
    """``ask(mode, fresh=False)``: what is printed, and how many builds there were so far."""
    monkeypatch.setenv("COOK_HOME", str(tmp_path))
    builds = 0

    def build() -> Built:
        nonlocal builds
        builds += 1
        return made_up

    def asked(mode: Mode = Mode.HUMAN, *, fresh: bool = False) -> tuple[str, int]:
        out, told = io.StringIO(), io.StringIO()
        print_build(QUESTION, build, Output(mode, out, told), fresh=fresh)
        return out.getvalue() + told.getvalue(), builds

    return asked


def test_the_second_answer_is_the_first_one_s(ask: Callable[..., tuple[str, int]]) -> None:
    first, builds = ask()
    assert builds == 1
    assert "large" in first
    again, builds = ask()
    assert builds == 1
    assert NOTHING_RAN in again
    document = json.loads(ask(Mode.JSON)[0])
    assert document["ran"] == []
    assert Path(document["record"]).exists()


def test_afresh_means_built_again(ask: Callable[..., tuple[str, int]]) -> None:
    ask()
    assert ask(fresh=True)[1] == 2
