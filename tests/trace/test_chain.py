"""The sampling chain: the probability under it, worked out from the stored candidates."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cook.engines.base import Engine
from cook.engines.process.supervisor import Supervisor
from cook.engines.worker.messages import ModelLoad
from cook.engines.worker.worker import Worker
from cook.formats.sampling import Sampling
from cook.trace.chain import Draws, chain_logp

IDS = np.array([[5, 6, 7, -1]], np.int32)
LOGP = np.log(np.array([[0.5, 0.3, 0.1, 1e-9]])).astype(np.float32)


def sampler(**chain: Any) -> Sampling:
    """``chain``, and nothing else of it at work."""
    return replace(Sampling(1.0, 0, 1.0, 0.0, 1.0), **chain)


def one(token: int, **chain: float) -> float:
    raw, tokens = np.array([-9.0], np.float32), np.array([token], np.int32)
    return float(np.exp(chain_logp(sampler(**chain), tokens, raw, IDS, LOGP)[0]))


def test_each_part_of_the_chain() -> None:
    assert one(6) == pytest.approx(0.3 / 0.9)
    assert one(6, temperature=0.5) == pytest.approx(0.09 / (0.25 + 0.09 + 0.01))
    assert one(6, top_k=2) == pytest.approx(0.3 / 0.8)
    assert one(6, top_p=0.8) == pytest.approx(0.3 / 0.8)
    assert one(6, min_p=0.5) == pytest.approx(0.3 / 0.8)
    # what the chain cut off, and a hole: the raw one
    assert one(7, top_k=2) == pytest.approx(np.exp(-9.0))
    assert one(99) == pytest.approx(np.exp(-9.0))


def test_greedy_is_certain() -> None:
    greedy = Sampling(seed=3).applied()
    assert chain_logp(greedy, IDS[0, :1], LOGP[0, :1], IDS, LOGP).tolist() == [0.0]


def draws(*shares: float, **chain: float) -> Draws:
    """Of tokens 0, 1, ... with these raw probabilities, in falling order."""
    logp = np.log(np.array(shares)).astype(np.float32)
    return Draws.of(sampler(**chain), np.arange(len(shares), dtype=np.int32), logp)


def test_ranges_of_draws_are_the_chain_s_probabilities() -> None:
    found = draws(0.5, 0.25, 0.125, 0.125, top_k=3)
    borders = (0.0, 4 / 7, 6 / 7, 1.0)
    assert list(found.ranges) == [0, 1, 2]
    assert [*found.ranges.values()] == [pytest.approx(pair) for pair in pairwise(borders)]


def test_a_gap_is_what_one_draw_needs() -> None:
    found = draws(0.9, 0.05, 0.03, 0.02)
    # A border: next to nothing, though the logits are 2.9 apart.
    assert found.gap(0, 1) == pytest.approx(0.0, abs=1e-3)
    # Token 1 lies between: its logit and that of 2 are ln(5/3) apart, and then they change places.
    assert found.gap(0, 2) == pytest.approx(np.log(5 / 3), abs=0.02)
    assert found.gap(0, 2) < found.gap(0, 3)  # type: ignore[operator]
    # Cut away by min_p: 0.02 has to come up to 0.03.
    cut = draws(0.9, 0.05, 0.03, 0.02, min_p=0.03)
    assert cut.gap(2, 3) == pytest.approx(np.log(3 / 2), abs=0.02)
    # What is unknown has no gap, and one that was not reported is below all that were.
    assert found.gap(7, 0) is None
    assert found.gap(0, 7) is None
    assert draws(0.9, 0.06, 0.04, top_k=2).gap_at_least() == pytest.approx(np.log(3 / 2), abs=1e-3)


@pytest.mark.parametrize("chain", [{}, {"top_p": 0.95, "min_p": 0.05}], ids=["top-k", "default"])
def test_numeric_flips_of_sampled_tokens_are_near_ties(chain: dict[str, float]) -> None:
    """Every logit a hundredth off: one draw may give another token, whose logit is far away."""
    rng = np.random.default_rng(4)
    whole = sampler(temperature=0.8, top_k=40, **chain)
    ids = np.arange(64, dtype=np.int32)
    flips, wide, wide_by_logits = 0, 0, 0
    for _ in range(12_000):
        exact = np.sort(rng.normal(0.0, rng.uniform(1.0, 3.0), 64))[::-1]
        rounded = exact + rng.uniform(-0.01, 0.01, 64)
        order = np.argsort(-rounded)
        here = Draws.of(whole, ids, exact.astype(np.float32))
        there = Draws.of(whole, ids[order], rounded[order].astype(np.float32))
        draw = rng.random()
        ours, theirs = (
            next(token for token, (low, high) in d.ranges.items() if low <= draw < high)
            for d in (here, there)
        )
        if ours == theirs:
            continue
        flips += 1
        gap = here.gap(ours, theirs)
        assert gap is not None
        wide += gap > 0.021
        wide_by_logits += abs(exact[ours] - exact[theirs]) > 0.021
        assert here.may_become(ours, there, theirs)
    assert flips > 200
    assert wide_by_logits > 0.15 * flips  # what they were called
    assert wide <= 0.02 * flips  # what a nucleus cut off elsewhere leaves


def test_another_token_at_random_is_no_near_tie() -> None:
    """Else nothing would ever be found: a draft that changed what is drawn."""
    rng = np.random.default_rng(5)
    ids = np.arange(64, dtype=np.int32)
    near = total = 0
    for _ in range(400):
        exact = np.sort(rng.normal(0.0, 2.0, 64))[::-1].astype(np.float32)
        found = Draws.of(Sampling(0.8, 40, 0.95, 0.05, 1.0), ids, exact)
        if len(found.ranges) < 4:
            continue
        ours, theirs = rng.choice(list(found.ranges), 2, replace=False)
        gap = found.gap(int(ours), int(theirs))
        assert gap is not None
        total += 1
        near += gap <= 0.15
    assert total > 200
    assert near < 0.5 * total


@pytest.mark.engine
def test_equal_to_what_the_worker_drew_with(
    bundled: Engine, tiny_model: Path, tmp_path: Path
) -> None:
    drawn = Sampling(0.8, seed=5).applied()
    with Worker.open(bundled, Supervisor(tmp_path / "logs")) as worker:
        worker.load(ModelLoad(tiny_model, context=256))
        said = worker.generate((1, 40, 41), n_predict=48, chain=drawn, top=64)
    assert said.top_ids is not None
    assert said.top_logits is not None
    logp = said.top_logits - said.logsumexp[:, None]
    found = chain_logp(drawn, said.tokens, said.logp, said.top_ids, logp)
    assert np.abs(found - said.chain_logp).max() < 1e-3
