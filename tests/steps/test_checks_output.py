"""What replies with a draft say of its output: near ties, and what no rounding explains."""

from __future__ import annotations

from cook.record.record import CompareOutcome, ControlOutcome, Difference
from cook.steps.checks import output_check


def test_output_check_classes_each_difference() -> None:
    outcome = CompareOutcome(
        5,
        2,
        (
            Difference("a", 3, 12, 1, 2, 0.01, None, True),
            Difference("b", 9, 12, 1, 2, 2.5, None, False),
            Difference("c", 0, 12, 1, None, None, None),
        ),
    )
    check = output_check(outcome)
    assert (check.near_ties, check.material, check.unknown) == (1, 1, 1)
    assert check.largest_gap == 2.5
    assert check.first_positions == (3, 9, 0)
    assert (check.without_draft, check.without_draft_tried) == (1, 2)
    assert not check.gap_is_measured


def test_a_control_run_draws_the_line_of_near_ties() -> None:
    outcome = CompareOutcome(1, 0, (Difference("a", 3, 12, 1, 2, 0.05, None),))
    control = ControlOutcome(5, 300, 1, 0.001, 0.02, 0.3, 0.01)
    check = output_check(outcome, control)
    assert check.near_tie_gap == 0.04
    assert (check.near_ties, check.material) == (0, 1)
    assert check.control.flips == 1
