"""From replays to a decision, on engines whose truth is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cook.build.choose import Aim
from cook.build.decide import Decision, decide
from cook.formats.quant_types import Flavour
from cook.record.objective import Objective
from tests.build.fabricated import Fabrication, FakeEngine, World, prompt_set
from tests.build.laid_out import layout, score

AIM = Aim(Objective.DECODE_SPEED)


def decided(
    folder: Path, world: World | None = None, layouts: Any = None, **changes: Any
) -> tuple[Decision | None, Fabrication]:
    fabrication = Fabrication(folder, world)
    found = decide(
        *(layouts or [layout(score(**changes))], prompt_set(), score(**changes), AIM, ()),
        fabrication,
    )
    return found, fabrication


def live(fabrication: Fabrication) -> list[str]:
    """Labels of the live rounds, in the order in which they ran."""
    return [label for label in fabrication.asked if label.startswith("live ")]


def test_the_choice_its_rival_of_another_file_and_no_draft_run_live(tmp_path: Path) -> None:
    found, fabrication = decided(tmp_path)
    assert found is not None
    assert found.final.key is not None
    assert found.final.key.draft is not None
    files = {c.draft.name for c in found.finalists if c.draft is not None}
    assert files == {"small", "large"}
    assert [c.draft for c in found.baselines] == [None]
    assert {f.key for f in found.reported} >= {c.key for c in found.finalists}
    (calibration,) = found.fitted.values()
    assert calibration.candidates[0] == "no draft"
    leader = calibration.candidates[1].split(" ")[0]
    assert all(name.startswith(leader) for name in calibration.candidates[1:]), "of one file"
    assert len(calibration.candidates) > 2, "one length cannot tell a step from a drafted token"
    assert found.noise.keys() == found.fitted.keys()
    first, last = fabrication.asked.index("trace (bundled)"), len(fabrication.asked)
    timed = [i for i, label in enumerate(fabrication.asked) if "pass 1" in label]
    ran = [fabrication.asked.index(label) for label in live(fabrication)]
    assert first < min(timed) < max(timed) < min(ran) < last


def test_where_no_draft_leads_the_best_draft_is_its_rival(tmp_path: Path) -> None:
    world = World(accuracy={"small": 0.05, "large": 0.1}, draft_ms={"small": 15.0, "large": 19.0})
    found, fabrication = decided(tmp_path, world)
    assert found is not None
    assert found.final.key is not None
    assert found.final.key.draft is None
    assert len({c.draft.name for c in found.finalists if c.draft is not None}) == 1
    drafting = {label.split(" ")[1] for label in live(fabrication)} - {"no"}
    assert drafting == {"small"}, "one file"


def test_nothing_is_decided_where_nothing_can_be_predicted(tmp_path: Path) -> None:
    found, fabrication = decided(tmp_path, World(failing=("trace",)))
    assert found is None
    assert live(fabrication) == []


def test_an_engine_of_which_nothing_can_be_predicted_is_named_with_the_reason(
    tmp_path: Path,
) -> None:
    other = FakeEngine("ik", Flavour.IK_LLAMA_CPP)
    layouts = [layout(), layout(engine=other, suffix=" on ik")]
    found, _ = decided(tmp_path, World(failing=("trace (ik)",)), layouts)
    assert found is not None
    assert found.silent == {"ik": "trace (ik): it crashed"}
    assert set(found.fitted) == {"bundled"}
    assert {c.engine.name for c in (r for f in found.finalists for r in f.rounds)} == {"bundled"}


@pytest.mark.parametrize("minutes", [0.0001, 30])
def test_what_the_budget_has_no_room_for_is_left_out(tmp_path: Path, minutes: float) -> None:
    found, _ = decided(tmp_path, live_budget={"minutes": minutes})
    assert found is not None
    assert bool(found.left_out) == (minutes < 1)
    assert found.final.key is not None, "the forecasts are there"
