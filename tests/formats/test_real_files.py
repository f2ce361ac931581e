"""Files that the real tools write, of every type they can make; and ours, which they read."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cook.formats.gguf import GgufFile, read_gguf
from cook.formats.gguf_writer import copy_of, write_gguf_file
from cook.formats.imatrix_file import Imatrix, ImatrixEntry, write_dat, write_gguf
from cook.formats.quant_types import IK_LLAMA_CPP, LLAMA_CPP, TYPES, by_id, stored_type
from cook.paths import demo_dir

DRAFT = demo_dir() / "draft-f16.gguf"


@pytest.fixture
def draft() -> GgufFile:
    if not DRAFT.exists():
        pytest.skip(f"{DRAFT} has not been made yet")
    return read_gguf(DRAFT)


def run(tool: Path, folder: Path, *arguments: str | Path) -> str:
    done = subprocess.run(
        [tool, *arguments],
        cwd=folder,
        env={"HOME": str(folder), "GGML_NO_BACKTRACE": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "quantize time" in done.stdout
    return done.stdout


def matrices(gguf: GgufFile) -> list[str]:
    """Tensors that both engines quantize, of rows that divide into blocks of 256."""
    return [
        t.name
        for t in gguf.tensors
        if t.name.startswith("blk.")
        and t.name.endswith(".weight")
        and len(t.shape) > 1
        and t.shape[0] % 256 == 0
        and "ffn_gate_inp" not in t.name
    ]


def importance(gguf: GgufFile) -> Imatrix:
    entries = {}
    for name in matrices(gguf):
        shape = gguf.tensor(name).shape
        counts = np.full(shape[2] if len(shape) > 2 else 1, 600, np.float32)
        sums = np.ones((len(counts), shape[0]), np.float32) * counts[:, None]
        entries[name] = ImatrixEntry(sums, counts)
    return Imatrix(entries, ("corpus.txt",), 3, 512, "gguf")


def batches(gguf: GgufFile, flavour: str) -> Iterator[dict[str, str]]:
    """Every quantizable type of an engine given to some tensor."""
    names = iter([t.name for t in TYPES.values() if flavour in t.engines and t.quantizable])
    tensors = [name for name in matrices(gguf) if "_exps" not in name]
    while chosen := dict(zip(tensors, islice(names, len(tensors)), strict=False)):
        yield chosen


def check_layout(path: Path, draft: GgufFile, wanted: dict[str, str], flavour: str) -> None:
    gguf = read_gguf(path)
    for name, type_name in wanted.items():
        tensor = gguf.tensor(name)
        found = by_id(tensor.type_id, flavour)
        assert found is not None
        assert found.name == stored_type(name, draft.tensor(name).shape, type_name, flavour)
    order = sorted(gguf.tensors, key=lambda t: t.offset)
    for one, following in pairwise(order):
        assert one.size_bytes is not None
        assert following.offset == one.offset + one.size_bytes + -one.size_bytes % 32, one
    assert order[-1].size_bytes is not None
    end = gguf.data_offset + order[-1].offset + order[-1].size_bytes
    assert gguf.file_bytes == end + -end % 32


def test_the_demo_draft_rewritten_is_byte_identical(draft: GgufFile, tmp_path: Path) -> None:
    copy = tmp_path / "copy.gguf"
    metadata = {key: draft.raw_value(key) for key in draft.metadata}
    write_gguf_file(copy, metadata, [copy_of(draft, t.name) for t in draft.tensors])
    assert copy.read_bytes() == DRAFT.read_bytes()


@pytest.mark.soak
@pytest.mark.engine
def test_every_type_of_the_bundled_engine(draft: GgufFile, bundled: Any, tmp_path: Path) -> None:
    tool = bundled.tool("quantize")
    write_gguf(importance(draft), tmp_path / "im.gguf")
    for wanted in batches(draft, LLAMA_CPP):
        rules = [f"--tensor-type=^{name}$={t}" for name, t in wanted.items()]
        flags = [part for rule in rules for part in rule.split("=", 1)]
        output = tmp_path / "out.gguf"
        said = run(tool, tmp_path, *flags, "--imatrix", "im.gguf", DRAFT, output, "Q8_0", "1")
        assert f"loaded {len(matrices(draft))} importance matrix entries" in said
        check_layout(output, draft, wanted, LLAMA_CPP)


@pytest.mark.soak
@pytest.mark.ik
def test_every_type_of_an_ik_build(draft: GgufFile, ik_engine: Any, tmp_path: Path) -> None:
    tool = ik_engine.tool("quantize")
    write_dat(importance(draft), tmp_path / "im.dat")
    for wanted in batches(draft, IK_LLAMA_CPP):
        rules = ",".join(f"^{name}$={t}" for name, t in wanted.items())
        output = tmp_path / "out.gguf"
        flags = ("--custom-q", rules, "--imatrix", "im.dat")
        said = run(tool, tmp_path, *flags, DRAFT, output, "Q8_0", "1")
        assert f"loaded {len(matrices(draft))} importance matrix entries" in said
        check_layout(output, draft, wanted, IK_LLAMA_CPP)
