"""What a search found out, in its record's words."""

from __future__ import annotations

import pytest

from cook.record.search_record import ReplayedMix
from cook.scoring.fits import WholeMix
from cook.search.evaluate import Ledger
from cook.search.findings import acceptance_law, described
from cook.search.sensitivity import Sensitivity
from tests.search.spaces import PROMPTS, Law, space


def test_a_mix_is_described_by_span_and_where_one_is_divided_by_tensor() -> None:
    model = space()
    sensitivity = Sensitivity.of(model, Ledger(Law(model, [1.0] * len(model.ties)), PROMPTS))
    attention, experts, *_ = sensitivity.spans
    mix = model.changed(model.largest, experts, "q2_K")
    mix = model.changed(mix, model.split(attention)[0], "q4_K")
    assert described(sensitivity, mix) == {
        "blk.0.attn_qkv.weight": "q4_K",
        "blk.1.attn_qkv.weight": "q4_K",
        "routed_experts": "q2_K",
    }
    assert described(sensitivity, model.largest) == {}


def whole(kld: float) -> WholeMix:
    accepted = round(700 - 500 * kld)
    return WholeMix(kld, ReplayedMix(10, 2000, accepted, 1000 - accepted, 1000, kld))


def test_one_whole_mix_in_three_judges_the_law_and_a_few_make_none() -> None:
    reference = whole(0.0).replayed
    law, warnings = acceptance_law(reference, [whole(0.02 * n) for n in range(1, 7)], 8)
    assert (law.fitted, law.held_out, warnings) == (4, 2, ())
    assert law.error == pytest.approx(0, abs=0.05)
    law, warnings = acceptance_law(reference, [whole(0.02), whole(0.04)], 8)
    assert law is None
    assert "say too little" in warnings[0]
