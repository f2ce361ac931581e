"""What a cycle of a mix costs, by a law of decode times."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cook.formats.gguf import read_gguf
from cook.formats.quant_types import LLAMA_CPP
from cook.paths import demo_dir
from cook.recipe.active import TokenReads
from cook.record.search_record import DecodeLaw
from cook.search.evaluate import Replies
from cook.search.pace import (
    JUDGING,
    TIMED,
    CycleTimes,
    TimedDrafts,
    fastest_length,
    mixes_to_time,
    read_bytes,
)
from cook.search.space import Space

FILE = read_gguf(demo_dir() / "draft-f16.gguf")
SPACE = Space.of(FILE, LLAMA_CPP, ("q2_K", "q4_K", "q8_0"), imatrix=False)
READS = TokenReads(FILE)
SLOPES = {"q2_K": 3e-10, "q4_K": 2e-10, "q8_0": 1e-10, "q8_0 routed": 2e-10}
LAW = DecodeLaw(1e-4, SLOPES, 1e-10, 5, 2, 0.01, 0.02)


def pace(relative: float = 1.8) -> CycleTimes:
    return CycleTimes(SPACE, READS, LAW, {4: 1.8e-3}, {4: relative}, 4)


def test_a_cycle_is_the_drafts_decodes_and_one_verification() -> None:
    read = read_bytes(SPACE, READS, SPACE.tensor_types(SPACE.largest))
    assert set(read) == {"q8_0", "q8_0 routed"}
    decode_s = 1e-4 + read["q8_0"] * 1e-10 + read["q8_0 routed"] * 2e-10
    assert pace().decode_s(SPACE.tensor_types(SPACE.largest)) == pytest.approx(decode_s)
    spans_s = decode_s - 1e-4
    assert pace(0).cycle_s(spans_s) == pytest.approx(1.8e-3 + 4 * decode_s)
    assert pace().cycle_s(spans_s) == pytest.approx(1.8e-3 + (4 + 1.8) * decode_s)


def test_a_token_reads_the_experts_that_it_uses_and_one_row_of_the_embeddings() -> None:
    types = SPACE.tensor_types(SPACE.largest)
    read = read_bytes(SPACE, READS, types)
    routed = [t for t in SPACE.ties if t.group == "routed_experts"]
    whole = sum(t.bytes_in("q8_0") for t in routed)
    used, count = (
        FILE.integer(f"{FILE.architecture}.expert_{key}") or 0 for key in ("used_count", "count")
    )
    assert read["q8_0 routed"] == pytest.approx(whole * used / count, rel=1e-3)
    embeddings = read_bytes(SPACE, READS, {"token_embd.weight": "q8_0"})
    assert embeddings["q8_0"] == 272, "256 weights"


def test_the_seconds_of_spans_add_up_to_a_mix() -> None:
    one = pace()
    for mix in (SPACE.largest, tuple(types[0] for types in SPACE.types)):
        spans = SPACE.spans()
        seconds = sum(one.span_s(span, mix[span.ties[0]]) for span in spans)
        assert seconds + LAW.fixed_s == pytest.approx(one.decode_s(SPACE.tensor_types(mix)))


def test_the_fastest_length_depends_on_what_is_accepted() -> None:
    one = CycleTimes(SPACE, READS, LAW, {2: 1.4e-3, 4: 1.8e-3}, {2: 0.0, 4: 0.0}, 2)

    def accepting(rate: float) -> Replies:
        tokens = np.array([1000.0])
        return Replies(("p",), ("c",), tokens, tokens, rate * tokens, tokens, tokens)

    assert fastest_length(one, accepting(0.79), 4) == 4
    assert fastest_length(one, accepting(0.3), 4) == 2


def test_the_timed_mixes_show_every_type_in_every_group() -> None:
    mixes = mixes_to_time(SPACE)
    fitted = mixes[:-JUDGING]
    assert len(mixes) <= TIMED + 2 + JUDGING
    assert SPACE.largest in fitted
    spans = SPACE.spans()
    for span in spans:
        assert {mix[span.ties[0]] for mix in fitted} == set(span.types)
    together = [(a, b) for a in spans for b in spans if a is not b and len(a.types) == 3]
    for one, other in together:
        pairs = {(mix[one.ties[0]], mix[other.ties[0]]) for mix in fitted}
        assert len(pairs) > 2, "no two groups go together"


def test_a_cycle_is_timed_as_the_engine_makes_it() -> None:
    single = np.array([[1.0, 1.1], [2.0, 2.2]])
    batch = np.array([[[1.0, 3.0], [1.1, 3.3]], [[2.0, 5.0], [2.2, 5.5]]])
    drafts = TimedDrafts((1, 5), single, batch, np.array([10.0, 20.0]), mirrors=True)
    np.testing.assert_allclose(drafts.cycles(4), [[27.0, 27.7], [33.0, 34.3]])
    plain = replace(drafts, mirrors=False)
    np.testing.assert_allclose(plain.cycles(4), [[24.0, 24.4], [28.0, 28.8]])
