"""Ties, spans and mixes of a real header."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest

from cook.errors import InputError
from cook.formats.gguf import read_gguf
from cook.formats.quant_types import IK_LLAMA_CPP, LLAMA_CPP
from cook.paths import demo_dir
from cook.search.space import LADDERS, Space

FILE = read_gguf(demo_dir() / "draft-f16.gguf")


def demo(**changes: object) -> Space:
    asked: dict[str, Any] = {"types": LADDERS[LLAMA_CPP], "imatrix": True, **changes}
    return Space.of(FILE, LLAMA_CPP, **asked)


def test_every_quantizable_tensor_is_in_one_tie_and_fused_ones_share_theirs() -> None:
    space = demo()
    names = [t.name for tie in space.ties for t in tie.tensors]
    assert len(names) == len(set(names))
    assert "output_norm.weight" not in names
    assert "blk.1.ffn_gate_inp.weight" not in names
    fused = [tie for tie in space.ties if len(tie.tensors) > 1]
    assert {t.name for t in fused[0].tensors} == {"blk.0.ffn_gate.weight", "blk.0.ffn_up.weight"}
    assert [tie.role for tie in fused] == ["ffn_up_gate", "ffn_up_gate_exps", "ffn_up_gate_shexp"]


def test_each_tie_takes_what_the_engine_writes_well_in_it() -> None:
    """Embeddings and output take no type that needs importance data, nor does any without it."""
    space = demo()
    for tie, types in zip(space.ties, space.types, strict=True):
        assert ("iq2_xxs" in types) == (tie.group not in ("embeddings", "output"))
    assert all("iq2_xxs" not in types for types in demo(imatrix=False).types)
    ik = Space.of(FILE, IK_LLAMA_CPP, LADDERS[IK_LLAMA_CPP], imatrix=True)
    assert {"iq1_kt", "iq6_k"} <= {t for types in ik.types for t in types}
    with pytest.raises(InputError, match="takes none of the types iq2_xxs"):
        demo(types=("iq2_xxs",))


def test_spans_split_by_what_tensors_do_and_then_by_layers() -> None:
    space = demo()
    spans = {span.name: span for span in space.spans()}
    assert list(spans) == [
        *("embeddings", "attention", "dense_ffn", "routed_experts", "shared_experts", "output")
    ]
    parts = space.split(spans["attention"])
    assert [p.name for p in parts] == ["attn_qkv", "attn_output"]
    assert [p.name for p in space.split(parts[0])] == ["attn_qkv 0", "attn_qkv 1"]
    assert space.split(spans["output"]) == (spans["output"],)
    every = sorted(place for span in spans.values() for place in span.ties)
    assert every == list(range(len(space.ties)))


def test_a_mix_and_its_tensors_types_are_one() -> None:
    space = demo()
    mix = space.changed(space.largest, space.spans()[1], "q5_K")
    types = space.tensor_types(mix)
    assert space.mix_of(types) == mix
    assert space.mix_of({**types, "blk.0.ffn_up.weight": "q6_K"}) is None, "its gate is q8_0"
    assert space.mix_of({**types, "output.weight": "tq1_0"}) is None


def test_bytes_are_at_least_those_of_the_file() -> None:
    space = demo(types=("q8_0",))
    fixed = sum(t.size_bytes or 0 for t in FILE.tensors if t.type_name == "f32")
    chosen = sum(tie.bytes_in("q8_0") for tie in space.ties)
    assert 0 <= space.bytes_of(space.largest) - fixed - chosen < 32 * len(FILE.tensors)


def test_the_least_of_spans_has_one_type_each() -> None:
    """Of a span only what all its ties take: `down` alone takes a smaller type here."""
    whole = demo(types=("q8_0", "q2_K"))
    down = [i for i, tie in enumerate(whole.ties) if tie.role == "ffn_down"]
    types = tuple(("q2_K", "q8_0") if i in down else ("q8_0",) for i in range(len(whole.ties)))
    space = replace(whole, types=types)
    spans = space.spans()
    assert space.least_bytes(spans) == space.bytes_of(space.largest)
    parts = [part for span in spans for part in space.split(span)]
    assert space.least_bytes(parts) == space.bytes_of(space.smallest)


def test_types_of_equal_size_have_one_order() -> None:
    orders = {demo(types=t).types for t in permutations(("iq4_nl", "q4_0", "q4_K", "q8_0"))}
    assert len(orders) == 1


def test_a_role_in_two_groups_is_named_with_its_group() -> None:
    space = demo()
    (tie,) = (t for t in space.ties if t.role == "attn_output" and t.layer == 0)
    twice = replace(space, ties=(*space.ties, replace(tie, group="mtp")))
    twice = replace(twice, types=(*space.types, space.types[space.ties.index(tie)]))
    spans = {span.name: span for span in twice.spans()}
    assert [p.name for p in twice.split(spans["attention"])] == [
        "attn_qkv",
        "attention attn_output",
    ]


def test_a_floor_holds_for_small_groups_alone() -> None:
    space = demo(floor="q6_K")
    whole = sum(tie.elements for tie in space.ties)
    for tie, types in zip(space.ties, space.types, strict=True):
        share = sum(t.elements for t in space.ties if t.group == tie.group) / whole
        assert (types[0] == "q6_K") == (share <= 0.01)
