"""Other sampling chains: bounds from what is stored, against whole distributions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cook.formats.arrays import Floats, Ids
from cook.formats.sampling import Sampling
from cook.scoring.sampled import chain_distribution

SLACK = 1e-9


def whole(sampling: Sampling, p: Floats) -> Floats:
    """One distribution through the chain, token by token."""
    order = np.argsort(-p, kind="stable")
    if not sampling.temperature:
        return np.asarray(np.eye(len(p))[order[0]])
    kept = order[: sampling.top_k or len(p)]
    share = p[kept] / p[kept].sum()
    count = int(np.searchsorted(np.cumsum(share), (sampling.top_p or 1.0) - 1e-12)) + 1
    kept = kept[: max(count, 1)] if (sampling.top_p or 1.0) < 1.0 else kept
    kept = kept[p[kept] >= (sampling.min_p or 0.0) * p[kept[0]] * (1 - 1e-12)]
    found = np.zeros(len(p))
    found[kept] = p[kept] ** (1 / sampling.temperature)
    return np.asarray(found / found.sum())


def stored(p: Floats, count: int) -> tuple[Ids, Floats]:
    order = np.argsort(-p, kind="stable")[:count]
    return order.astype(np.int32)[None], np.log(p[order])[None]


@st.composite
def distributions(draw: st.DrawFn) -> Floats:
    weights = draw(st.lists(st.floats(1e-4, 1.0), min_size=6, max_size=24, unique=True))
    p = np.array(weights) ** draw(st.floats(0.5, 4.0))
    return np.asarray(p / p.sum())


@st.composite
def chains(draw: st.DrawFn) -> Sampling:
    return Sampling(
        temperature=draw(st.sampled_from([0.0, 0.3, 0.7, 1.0, 1.6])),
        top_k=draw(st.sampled_from([0, 1, 3, 5])),
        top_p=draw(st.sampled_from([0.37, 0.81, 1.0])),
        min_p=draw(st.sampled_from([0.0, 0.07])),
        repeat_penalty=1.0,
    )


@settings(deadline=None)
@given(p=distributions(), sampling=chains(), count=st.integers(5, 24))
def test_what_is_stored_bounds_the_whole(p: Floats, sampling: Sampling, count: int) -> None:
    """``count`` of the tokens are stored; with all of them both ends are the truth."""
    count = min(count, len(p))
    truth = whole(sampling, p)
    found = chain_distribution(sampling, *stored(p, count), len(p))
    for token in range(len(p)):
        chances = found.of(np.array([token], np.int32))
        assert chances.low[0] - SLACK <= truth[token] <= chances.high[0] + SLACK
        if count == len(p):
            assert chances.high[0] == pytest.approx(chances.low[0])


@settings(deadline=None)
@given(data=st.data(), sampling=chains(), count=st.integers(5, 20))
def test_the_overlap_is_between_its_ends(
    data: st.DataObject, sampling: Sampling, count: int
) -> None:
    p = data.draw(distributions())
    q = np.array(data.draw(st.permutations(list(p)))) * 0.5 + p * 0.5
    uncut = Sampling(sampling.temperature, top_k=0, top_p=1.0, min_p=0.0, repeat_penalty=1.0)
    truth = np.minimum(whole(sampling, p), whole(uncut, q)).sum()
    count = min(count, len(p))
    target = chain_distribution(sampling, *stored(p, count), len(p))
    found = target.overlap(chain_distribution(uncut, *stored(q, count), len(p)))
    assert found.low[0] - SLACK <= truth <= found.high[0] + SLACK
    if count == len(p):
        assert found.high[0] == pytest.approx(found.low[0], abs=1e-6)


def test_the_servers_own_chain_needs_no_bound() -> None:
    """Its top_k of 40 is within what a trace keeps."""
    p = np.linspace(1.0, 2.0, 200)[::-1] / np.linspace(1.0, 2.0, 200).sum()
    found = chain_distribution(Sampling(0.8).applied(), *stored(p, 64), len(p))
    assert np.array_equal(found.low, found.high)
    assert (found.rest[0], found.other[0]) == (0.0, 0.0)
