"""Blocks of prompts: how many, to how many servers, at what cost; and what is kept of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cook.job.decide import BLOCKS, FEW_BLOCKS, MOST_SEATS, TURN_SEATS, Dealing, fit_together
from cook.job.layout import Configuration
from cook.record.record import PromptRun
from tests.job.fabricated import Fabrication, FakeEngine, World, prompt_set
from tests.job.laid_out import SIZES, TARGET, layout, score

LAYOUT = layout()
PROMPTS = prompt_set().prompts


def seated(*names: str) -> list[Configuration]:
    assert LAYOUT.baseline is not None
    by_name = {c.name: c for c in LAYOUT.grid}
    return [LAYOUT.baseline, *(by_name[name] for name in names)]


TWO = seated("small n_max=4", "large n_max=4")
ALL_MODELS = TARGET.size_bytes + sum(SIZES.values())


def request(prompt: str, wall_ms: float) -> PromptRun:
    return PromptRun(prompt, "a", 5, 1.0, 24, wall_ms, wall_ms, None, None, None, "", "limit")


def dealing(folder: Path, *, wall_ms: float | None = None, load_s: float = 0.0) -> Dealing:
    """Every request of everybody forecast to take ``wall_ms``; None: nothing is known."""
    said = [request(p.id, wall_ms) for p in PROMPTS] if wall_ms is not None else []
    return Dealing(
        Fabrication(folder), True, 600.0, {c.key: said for c in TWO} if said else {}, load_s
    )


def test_blocks_hold_every_prompt_once_and_their_part_of_every_category(tmp_path: Path) -> None:
    found = dealing(tmp_path, wall_ms=1000).blocks(PROMPTS, TWO)
    assert len(found) == BLOCKS
    assert Counter(p.id for block in found for p in block) == Counter(p.id for p in PROMPTS)
    for block in found:
        assert Counter(p.category for p in block) == {"a": 2, "b": 2}


def test_loads_that_are_long_beside_a_block_make_few_of_them(tmp_path: Path) -> None:
    """16 prompts to 3 servers take 48 s, a block of four 12 s, a quarter of that 3 s."""
    for load_s, count in ((2.9, BLOCKS), (3.1, FEW_BLOCKS)):
        made = dealing(tmp_path, wall_ms=1000, load_s=load_s)
        assert len(made.blocks(PROMPTS, TWO)) == count
    turns = dealing(tmp_path, wall_ms=1000)
    turns.together = False
    assert len(turns.blocks(PROMPTS, TWO)) == FEW_BLOCKS


def test_a_few_prompts_make_fewer_blocks(tmp_path: Path) -> None:
    made = dealing(tmp_path, wall_ms=1000)
    assert [len(made.blocks(PROMPTS[:n], TWO)) for n in (1, 5, 6, 9, 12)] == [1, 1, 2, 3, 4]


def test_servers_that_take_turns_are_fewer(tmp_path: Path) -> None:
    made = dealing(tmp_path)
    assert made.seats == MOST_SEATS
    made.together = False
    assert made.seats == TURN_SEATS


def test_what_a_block_will_take_is_loads_and_requests(tmp_path: Path) -> None:
    known = dealing(tmp_path, wall_ms=1000, load_s=2.0)
    assert known.estimate(TWO, PROMPTS[:4]) == pytest.approx(3 * (2.0 + 4 * 1.0))
    assert dealing(tmp_path, load_s=2.0).estimate(TWO, PROMPTS) == 6.0, "nothing is known"
    one = Dealing(Fabrication(tmp_path), True, 600.0, {TWO[0].key: [request("p00", 500)]}, 0.0)
    assert one.estimate(TWO, PROMPTS[:4]) == pytest.approx(3 * 2.0), "as the others' are"


def test_once_it_ran_the_estimate_is_of_what_was_measured(tmp_path: Path) -> None:
    made = dealing(tmp_path, wall_ms=1e6)
    assert made.deal(TWO, PROMPTS[:4])
    spent = sum(r.wall_ms for c in TWO for r in made.runs[c.key]) / 1000 + 3 * made.load_s
    assert made.load_s == 0.5, "as the made-up server says"
    assert made.spent_s() == pytest.approx(spent)
    assert made.estimate(TWO, PROMPTS[:4]) == pytest.approx(spent)


def test_what_was_dealt_is_kept_by_candidate(tmp_path: Path) -> None:
    made = dealing(tmp_path)
    bare, small, large = TWO
    assert made.dealt(small.key) is None
    for block in (PROMPTS[:4], PROMPTS[4:8]):
        assert made.deal(TWO, block)
    assert made.deal([bare, small], PROMPTS[8:])
    found = made.dealt(large.key)
    assert [step.block for step in found.steps] == [0, 1]
    assert set(found.prompts) == {p.id for p in PROMPTS[:8]}
    assert [run.block for run in made.runs[bare.key]] == [*[0] * 4, *[1] * 4, *[2] * 8]
    assert [[run.id for run in o.runs] for o in found.outcomes(made.executor.outcomes.result)] == [
        [p.id for p in PROMPTS[:4]],
        [p.id for p in PROMPTS[4:8]],
    ]


def test_a_server_that_dies_takes_its_candidate_out_alone(tmp_path: Path) -> None:
    made = Dealing(Fabrication(tmp_path, World(dying=("small",))), True, 600.0, {})
    assert made.deal(TWO, PROMPTS[:4])
    assert made.failed == {TWO[1].key: "small n_max=4: it crashed"}
    assert made.dealt(TWO[1].key) is None
    assert set(made.runs) == {TWO[0].key, TWO[2].key}


def test_without_no_draft_the_block_is_nobodys(tmp_path: Path) -> None:
    made = Dealing(Fabrication(tmp_path, World(dying=("no draft",))), True, 600.0, {})
    assert not made.deal(TWO, PROMPTS[:4])
    assert set(made.failed) == {c.key for c in TWO}
    assert all(why.endswith("no draft: it crashed") for why in made.failed.values())
    assert made.spent_s() == 0.0


def test_stored_blocks_are_dealt_again_without_a_server(tmp_path: Path) -> None:
    first, after = dealing(tmp_path), dealing(tmp_path)
    assert first.deal(TWO, PROMPTS[:4])
    for block in (PROMPTS[:4], PROMPTS[4:8]):
        assert after.deal(TWO, block)
    assert isinstance(after.executor, Fabrication)
    assert [label.split(":")[0] for label in after.executor.asked] == ["deal block 2"]
    for key, runs in first.runs.items():
        assert after.runs[key][:4] == runs
    more = seated("small n_max=4", "large n_max=4", "small n_max=8")
    another = dealing(tmp_path)
    assert another.deal(more, PROMPTS[:4]), "one more candidate is another dealing"
    assert isinstance(another.executor, Fabrication)
    assert len(another.executor.asked) == 1


def test_a_reference_build_is_dealt_the_same_prompts_in_the_same_block(tmp_path: Path) -> None:
    other: Any = FakeEngine("reference")
    made = Dealing(Fabrication(tmp_path), True, 600.0, {}, load_s=2.0, reference={"bundled": other})
    assert made.estimate(TWO, PROMPTS[:4]) == 12.0, "two servers of each candidate"
    assert made.deal(TWO, PROMPTS[:4])
    (step,) = made.steps
    assert [server.engine.name for server in step.servers] == [*["bundled"] * 3, *["reference"] * 3]
    assert [server.name for server in step.servers[3:]] == [
        f"{c.name} on the reference build" for c in TWO
    ]
    for configuration in TWO:
        mine, theirs = made.runs[configuration.key], made.on_reference[configuration.key]
        assert [run.id for run in mine] == [run.id for run in theirs] == [p.id for p in PROMPTS[:4]]
        found = made.dealt(configuration.key)
        assert found.live.engine.name == "bundled"


def test_files_that_are_mapped_are_in_memory_once() -> None:
    several = seated("small n_max=2", "small n_max=4", "large n_max=4")
    needed = round(ALL_MODELS / 0.9)
    assert fit_together(several, needed + 1)
    assert not fit_together(several, needed - 1)
    assert fit_together(several, None), "nobody knows"


def placed(*, draft: bool, **changes: Any) -> list[Configuration]:
    """TWO with ``changes`` of the target's arguments of all servers, or of the drafts'."""
    found = []
    for one in TWO:
        args = replace(one.live.draft_args if draft else one.live.target_args, **changes)
        live = replace(one.live, draft_args=args) if draft else replace(one.live, target_args=args)
        found.append(replace(one, live=live))
    return found


@pytest.mark.parametrize("flag", ["--no-mmap", "-rtr", "--run-time-repack"])
def test_weights_that_every_server_has_for_itself_count_for_every_server(flag: str) -> None:
    own = placed(draft=False, extra=(flag,))
    needed = 3 * TARGET.size_bytes + sum(SIZES.values())
    assert fit_together(own, round(needed / 0.9) + 1)
    assert not fit_together(own, round(needed / 0.9) - 1)
    assert fit_together(TWO, round(needed / 0.9) - 1)


@pytest.mark.parametrize("draft", [False, True])
@pytest.mark.parametrize(
    "place", [{"n_gpu_layers": 99}, {"devices": ("CUDA0",)}, {"rpc": ("host:1",)}], ids=str
)
def test_on_devices_and_on_other_machines_they_take_turns(
    place: dict[str, Any], draft: bool
) -> None:
    assert not fit_together(placed(draft=draft, **place), None)


def test_a_baseline_with_arguments_of_its_own_takes_turns_with_drafts() -> None:
    own = layout(score(baseline={"args": {"threads": 7}}))
    assert own.baseline is not None
    assert not fit_together([own.baseline, *own.grid[:1]], None)
    assert fit_together([own.baseline], None)
