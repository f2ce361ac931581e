"""What cook writes it reads back the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cook.formats.gguf import TensorInfo, read_gguf
from cook.formats.gguf_writer import copy_of, encode, tensor_of, write_gguf_file
from cook.formats.imatrix_file import (
    Imatrix,
    ImatrixEntry,
    read_imatrix,
    with_experts,
    write_dat,
    write_gguf,
)
from cook.paths import demo_dir

NAMES = st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=12)
SCALARS = st.one_of(
    st.booleans(),
    st.integers(0, 2**32 - 1),
    st.floats(width=32, allow_nan=False),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
)


@settings(max_examples=40, deadline=None, database=None)
@given(
    st.dictionaries(NAMES, SCALARS, max_size=6),
    st.dictionaries(NAMES, st.binary(max_size=70), max_size=6),
)
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory,
    metadata: dict[str, bool | int | float | str],
    tensors: dict[str, bytes],
) -> None:
    path = tmp_path_factory.getbasetemp() / "round.gguf"
    new = [tensor_of(n, (len(data),), 24, data) for n, data in tensors.items()]
    write_gguf_file(path, {k: encode(v) for k, v in metadata.items()}, new)
    gguf = read_gguf(path)
    assert dict(gguf.metadata) == metadata
    assert {t.name: gguf.read_tensor_bytes(t.name) for t in gguf.tensors} == tensors


@settings(max_examples=40, deadline=None, database=None)
@given(st.lists(st.sampled_from([0, 1, 2, 512, 513, 9000]), min_size=1, max_size=9), st.data())
def test_imatrix_round_trips(
    tmp_path_factory: pytest.TempPathFactory, counts: list[int], data: st.DataObject
) -> None:
    path = tmp_path_factory.getbasetemp() / "round.imatrix"
    values = st.floats(0, 1e6, width=32)
    drawn = data.draw(st.lists(values, min_size=3 * len(counts), max_size=3 * len(counts)))
    seen = np.array(counts, np.float32)
    sums = np.where(seen[:, None] > 0, np.array(drawn, np.float32).reshape(-1, 3), 0)
    entry = ImatrixEntry(sums.astype(np.float32), seen)
    imatrix = Imatrix({"x": entry}, (), 1, 512, "gguf")
    write_gguf(imatrix, path)
    np.testing.assert_array_equal(read_imatrix(path).entries["x"].sums, entry.sums)
    if not seen.any():
        return
    write_dat(imatrix, path)
    first = path.read_bytes()
    write_dat(read_imatrix(path), path)
    assert path.read_bytes() == first
    shape = (3, 8) if len(counts) == 1 else (3, 8, len(counts))
    split = with_experts(read_imatrix(path), [TensorInfo("x", shape, 1)]).entries["x"]
    np.testing.assert_allclose(split.mean(), entry.mean(), rtol=1e-6, atol=1e-30)


def test_the_demo_draft_rewritten_is_byte_identical(tmp_path: Path) -> None:
    path, copy = demo_dir() / "draft-f16.gguf", tmp_path / "copy.gguf"
    draft = read_gguf(path)
    write_gguf_file(copy, draft.raw_metadata(), [copy_of(draft, t.name) for t in draft.tensors])
    assert copy.read_bytes() == path.read_bytes()
