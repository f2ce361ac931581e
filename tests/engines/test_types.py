"""Every type that an engine makes: our size, id and name are those of what it wrote."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cook.engines import tool_runs
from cook.engines.base import QuantizeJob, TypeRule
from cook.engines.process.supervisor import Supervisor
from cook.formats.gguf import read_gguf
from cook.formats.imatrix_file import Imatrix, ImatrixEntry, write_dat, write_gguf
from cook.formats.quant_types import TYPES, by_name
from cook.inspection import ModelReport, inspect

Make = Callable[..., Any]
PER_LAYER = 7
"""Matrices of one layer of the tiny model; each gets a type of its own."""


def test_every_type(engine: Any, make_tiny_model: Make, tmp_path: Path) -> None:
    """A matrix of each, all in one run."""
    names = sorted(t for t in engine.facts.types if by_name(t).quantizable)
    # Rows of 256 or 512, and as many of them: every block and every interleaving divides.
    source = make_tiny_model(tmp_path / "tiny.gguf", layers=-(-len(names) // PER_LAYER))
    tensors = read_gguf(source).tensors
    matrices = [t.name for t in tensors if t.name.startswith("blk.") and "norm" not in t.name]
    type_of = dict(zip(matrices, names, strict=False))
    assert len(type_of) == len(names)
    flat = {
        t.name: ImatrixEntry(np.ones((1, t.shape[0]), np.float32), np.ones(1, np.float32))
        for t in tensors
        if len(t.shape) > 1
    }
    imatrix, output = tmp_path / "imatrix", tmp_path / "all.gguf"
    write = write_gguf if engine.flavour == "llama.cpp" else write_dat
    write(Imatrix(flat, ("flat",), 1, 1, "gguf"), imatrix)
    rules = tuple(TypeRule(f"^{m.replace('.', '[.]')}$", t) for m, t in type_of.items())
    job = QuantizeJob(source, output, "Q8_0", rules, imatrix, 1, type_of)
    tool_runs.quantize(engine, job, Supervisor(tmp_path / "logs"))
    file = read_gguf(output)
    report = inspect(output)
    assert isinstance(report, ModelReport)
    shown = {share.name: share for share in report.by_type}
    ends = [*sorted(t.offset for t in file.tensors), file.file_bytes - file.data_offsets[0]]
    for tensor in file.tensors:
        if (name := type_of.get(tensor.name)) is None:
            continue
        known = by_name(name)
        assert engine.facts.types[name] == tensor.type_id == known.id, name
        # The engine aligns every tensor to 32 bytes: what it took is ours and less than 32 more.
        size = known.tensor_bytes(tensor.shape)
        room = next(end for end in ends if end > tensor.offset) - tensor.offset
        assert 0 <= room - size < file.alignment, (name, size, room)
        assert tensor.size_bytes == size, name
        bits = 8 * (size - known.row_meta_bytes * tensor.shape[1]) / tensor.elements
        assert bits == pytest.approx(known.bpw), name
        # The engines call the type with id 41 differently; in a file it is one type.
        assert by_name(tensor.type_name).id == known.id, name
        assert shown[tensor.type_name].size_bytes is not None, name
    made = {t.name for t in TYPES.values() if engine.flavour in t.engines and t.quantizable}
    assert made == set(names)
