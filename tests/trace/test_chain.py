"""The sampling chain: the probability under it, worked out from the stored candidates."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pydantic import TypeAdapter

from cook.engines.base import Engine
from cook.engines.process.supervisor import Supervisor
from cook.engines.worker.messages import ModelLoad
from cook.engines.worker.worker import Worker
from cook.formats.sampling import Sampling
from cook.trace.chain import chain_logp

IDS = np.array([[5, 6, 7, -1]], np.int32)
LOGP = np.log(np.array([[0.5, 0.3, 0.1, 1e-9]])).astype(np.float32)


def one(token: int, **chain: float) -> float:
    off = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "repeat_penalty": 1.0}
    sampler = TypeAdapter(Sampling).validate_python({"temperature": 1.0, **off, **chain})
    raw = np.array([-9.0], np.float32)
    return float(np.exp(chain_logp(sampler, np.array([token], np.int32), raw, IDS, LOGP)[0]))


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


@pytest.mark.engine
def test_equal_to_what_the_worker_drew_with(
    bundled: Engine, tiny_model: Path, tmp_path: Path
) -> None:
    sampler = Sampling(0.8, seed=5).applied()
    with Worker.open(bundled, Supervisor(tmp_path / "logs")) as worker:
        worker.load(ModelLoad(tiny_model, context=256))
        said = worker.generate((1, 40, 41), n_predict=48, chain=sampler, top=64)
    assert said.top_ids is not None
    assert said.top_logits is not None
    logp = said.top_logits - said.logsumexp[:, None]
    found = chain_logp(sampler, said.tokens, said.logp, said.top_ids, logp)
    assert np.abs(found - said.chain_logp).max() < 1e-3
