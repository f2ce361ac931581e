"""What a quantized tensor is called: all that decides its bytes, and nothing else."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cook.errors import InputError, PrerequisiteError
from cook.formats.gguf import TensorInfo
from cook.formats.imatrix_file import Imatrix, ImatrixEntry
from cook.formats.quant_types import TYPES, Flavour
from cook.graph.step import Source
from cook.steps.quantize import Importance, quantizer_of, seconds_a_weight, tensor_piece

Named = tuple[str, tuple[int, ...], str, str, str | None, str]
NAMED = st.tuples(
    st.sampled_from(["blk.0.ffn_up.weight", "blk.1.ffn_up.weight", "output.weight"]),
    st.sampled_from([(256, 8), (256, 4, 2), (512, 4)]),
    st.sampled_from(["q4_K", "q6_K", "iq1_kt"]),
    st.sampled_from(["sha256:aa", "sha256:bb"]),
    st.sampled_from([None, "11", "22"]),
    st.sampled_from(["quantizer", "another"]),
)


def key(named: Named, path: str = "/m.gguf", offset: int = 0) -> str:
    name, shape, type_name, digest, importance, quantizer = named
    source = Source(Path(path), digest, 1000)
    tensor = TensorInfo(name, shape, 1, offset)
    return tensor_piece(source, tensor, TYPES[type_name], importance, quantizer).key


@given(NAMED, NAMED)
def test_equal_where_all_that_decides_is_equal_and_only_there(one: Named, other: Named) -> None:
    assert (key(one) == key(other)) == (one == other)


@given(NAMED)
def test_places_are_not_in_the_key(named: Named) -> None:
    assert key(named) == key(named, "/elsewhere/model.gguf", 4096)


def importance(
    name: str, flavour: Flavour = Flavour.LLAMA_CPP, experts: int = 1, scale: float = 1.0
) -> Importance:
    """Of one tensor, 8 columns wide."""
    sums = np.full((experts, 8), 6.0 * scale, np.float32)
    entry = ImatrixEntry(sums, np.full(experts, 3 * scale, np.float32))
    return Importance(Imatrix({name: entry}, (), 1, 512, "gguf"), Path("i.gguf"), flavour)


UP = TensorInfo("ffn_up.weight", (8, 4), 1)
GATE = TensorInfo("ffn_gate.weight", (8, 4), 1)
EXPERTS = TensorInfo("ffn_up.weight", (8, 4, 3), 1)


def test_importance_is_the_mean_and_its_digest_that_of_the_mean() -> None:
    one, other = (importance(UP.name, scale=scale) for scale in (1.0, 2.0))
    assert one.of(UP).tolist() == [2.0] * 8
    assert one.digest(UP) == other.digest(UP)
    assert one.whole == other.whole
    assert importance(UP.name, experts=3).of(EXPERTS).shape == (24,), "each expert has its own"
    none = Importance.read(None, Flavour.LLAMA_CPP)
    assert (none.of(UP), none.digest(UP), none.whole) == (None, None, None)


def test_each_engine_looks_where_it_does() -> None:
    assert importance(UP.name).digest(GATE) is None
    borrowed = importance(UP.name, Flavour.IK_LLAMA_CPP)
    assert borrowed.digest(GATE) == borrowed.digest(UP) is not None


def test_an_imatrix_of_another_model_is_refused_but_for_the_embeddings() -> None:
    with pytest.raises(InputError, match="has 8 values, needs 24"):
        importance(UP.name).of(EXPERTS)
    embeddings = TensorInfo("token_embd.weight", (16, 4), 1)
    assert importance(embeddings.name).of(embeddings) is None


def quantizer(files: dict[str, str]) -> str:
    engine: Any = SimpleNamespace(name="e", facts=SimpleNamespace(files=files))
    return quantizer_of(engine)


def test_the_quantizer_is_the_library_that_quantizes() -> None:
    """No other library, and no tool, is in its identity."""
    assert quantizer({"libggml-base.so": "b", "libggml.so": "a", "llama-server": "c"}) == "b"
    assert quantizer({"libggml.so": "a", "libllama.so": "d"}) == "a"
    with pytest.raises(PrerequisiteError):
        quantizer({"llama-server": "c"})


def test_types_that_are_searched_for_take_long_to_quantize() -> None:
    assert seconds_a_weight("IQ1_S") > 10 * seconds_a_weight("Q4_K")
    assert seconds_a_weight("iq2_kt") > 10 * seconds_a_weight("q8_0")
