"""The grammar of a line, piece by piece; whole logs are read in test_requests.py."""

from __future__ import annotations

import pytest

from cook.engines.server_api import DepthCount
from cook.logs.lines import Answer, Refused, Where, agrees, answer_of, file_name

TIMINGS = {"predicted_n": 5, "predicted_ms": 40.0, "predicted_per_second": 100.0}


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/models/Ling-1T-00001-of-00005.gguf", "Ling-1T"),
        ("C:\\models\\Ling.gguf", "Ling"),
        ("Li\x1bng.gguf", "Ling"),
    ],
)
def test_a_model_is_called_after_its_file(path: str, name: str) -> None:
    assert file_name(path) == name


def test_a_rate_agrees_with_its_tokens_and_time() -> None:
    assert agrees(5, 40.0, 100.0, first_is_free=True, digits=1e-3), "mainline: 4 tokens in 40 ms"
    assert agrees(5, 40.0, 125.0, first_is_free=True, digits=1e-3), "ik: 5 tokens in 40 ms"
    assert not agrees(5, 40.0, 125.0 + 1, first_is_free=True, digits=1e-3)
    assert not agrees(5, 40.0, 100.0, first_is_free=False, digits=1e-3), "a prompt's first counts"


def test_an_answer_is_read_or_refused_whole() -> None:
    depths = [{"depth": 1, "draft_n": 3, "draft_n_accepted": 2}]
    found = answer_of({}, {**TIMINGS, "draft_by_depth": depths}, Where())
    assert isinstance(found, Answer)
    assert found.by_depth == (DepthCount(1, 3, 2),)
    assert isinstance(answer_of({}, {**TIMINGS, "predicted_per_second": 9.0}, Where()), Refused)
    for wrong in ({"draft_n": 1, "draft_n_accepted": 2}, {"predicted_n": True}):
        assert isinstance(answer_of({}, {**TIMINGS, **wrong}, Where()), Refused)
    assert answer_of({"stop": False}, TIMINGS, Where()) is None
