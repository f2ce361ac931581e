"""The sampling chain: what it comes to, and what each receiver is sent."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pydantic import TypeAdapter, ValidationError

from cook.errors import InternalError, PrerequisiteError
from cook.formats.sampling import Sampling


def test_greedy_is_the_likeliest_token_whatever_else_is_asked() -> None:
    greedy = Sampling(top_k=40, top_p=0.9, repeat_penalty=1.1, seed=3)
    assert greedy.asked() == {"temperature": 0.0, "seed": 3, "top_k": 1}
    applied = greedy.applied("server")
    assert applied == Sampling(0.0, 1, 1.0, 0.0, 1.1, seed=3, draws="server")
    assert replace(applied, repeat_penalty=1.0).worker_fields() == {}
    assert str(greedy) == "greedy"


def test_applied_is_what_a_server_does_unless_told_otherwise() -> None:
    asked = Sampling(0.7, top_p=0.9, seed=2)
    assert asked.asked() == {"temperature": 0.7, "seed": 2, "top_p": 0.9}
    assert not asked.is_whole
    whole = asked.applied()
    assert whole == Sampling(0.7, 40, 0.9, 0.05, 1.0, seed=2)
    assert whole.is_whole
    assert not replace(whole, top_k=None).is_whole
    assert whole.applied() == whole
    assert str(whole) == "temperature 0.7, top_k 40, top_p 0.9, min_p 0.05, seed 2"
    fields = {"temperature": 0.7, "top_k": 40, "top_p": 0.9, "min_p": 0.05, "seed": 2}
    assert whole.worker_fields() == fields
    request = whole.whole_request()
    assert fields.items() <= request.items()
    assert (request["repeat_penalty"], request["dry_multiplier"]) == (1.0, 0.0)


def test_what_cannot_be_asked_for() -> None:
    with pytest.raises(PrerequisiteError, match="repeat penalty"):
        Sampling(0.7, repeat_penalty=1.1).applied().worker_fields()
    with pytest.raises(InternalError, match="not known"):
        Sampling(0.7).whole_request()


@pytest.mark.parametrize("bad", [{"temperature": -1}, {"top_p": 0}, {"min_p": 2}, {"heat": 1}])
def test_a_file_with_another_chain_is_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(Sampling).validate_python(bad)


def test_in_a_trace_it_is_written_as_ever() -> None:
    said = TypeAdapter(Sampling).dump_json(Sampling(0.7, min_p=0.1).applied("server"))
    assert said == (
        b'{"temperature":0.7,"top_k":40,"top_p":0.95,"min_p":0.1,"repeat_penalty":1.0,'
        b'"seed":1,"draws":"server"}'
    )
