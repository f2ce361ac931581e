"""Tensors quantized by the worker: what it refuses, and what it reports of a disk that fails.

That its bytes are those of llama-quantize is in tests/steps/test_quantize.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cook.engines.process.supervisor import Supervisor
from cook.engines.worker.messages import RowsOfTensor
from cook.engines.worker.worker import Worker
from cook.errors import StepError
from cook.files import FileRange
from cook.formats.quant_types import by_name

pytestmark = pytest.mark.engine

COLUMNS, ROWS, MATRICES = 256, 40, 3


@pytest.fixture(scope="module")
def worker(bundled: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    with Worker.open(bundled, Supervisor(tmp_path_factory.mktemp("logs"))) as opened:
        yield opened


@pytest.fixture
def rows(tmp_path: Path) -> RowsOfTensor:
    """Three matrices of 40 rows, 96 bytes into a file."""
    values = np.random.default_rng(1).standard_normal(COLUMNS * ROWS * MATRICES)
    data = values.astype(np.float32).tobytes()
    path = tmp_path / "values"
    path.write_bytes(bytes(96) + data)
    place = FileRange(path, 96, len(data))
    shape = (COLUMNS, ROWS, MATRICES)
    return RowsOfTensor(place, by_name("f32"), by_name("q8_0"), shape, None)


def quantize(worker: Worker, rows: RowsOfTensor, to: Path, **more: Any) -> bytes:
    worker.quantize(rows, to, **{"threads": 2, "memory_bytes": 1 << 30, **more})
    return to.read_bytes()


def test_it_reports_how_far_it_is_and_how_it_is_divided_does_not_matter(
    worker: Worker, rows: RowsOfTensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = quantize(worker, rows, tmp_path / "whole")
    assert len(whole) == by_name("q8_0").tensor_bytes(rows.shape)
    monkeypatch.setattr("cook.engines.worker.worker._AT_ONCE", 7 * COLUMNS)
    done: list[int] = []
    assert quantize(worker, rows, tmp_path / "some", memory_bytes=1, advance=done.append) == whole
    assert len(done) == -(-ROWS * MATRICES // 7)
    assert 0.99 * rows.source.size_bytes < sum(done) <= rows.source.size_bytes


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shape": (COLUMNS + 16, ROWS, MATRICES)}, "do not divide into blocks"),
        ({"type": by_name("iq1_kt")}, "no type 158"),
        ({"type": by_name("iq2_xs")}, "needs an importance matrix"),
        ({"importance": np.ones(7, np.float32)}, "7 values of importance for 256 x 3"),
        ({"source": FileRange(Path("/nowhere"), 0, 1)}, "No such file"),
        # Of a process's memory nothing can be read where nothing is mapped: the disk's own error.
        ({"source": FileRange(Path("/proc/self/mem"), 4096, 1)}, "byte .*Input/output error"),
    ],
)
def test_what_it_refuses_leaves_it_working(
    worker: Worker, rows: RowsOfTensor, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(StepError, match=message):
        quantize(worker, replace(rows, **change), tmp_path / "refused")
    assert quantize(worker, rows, tmp_path / "made")


def test_what_a_file_does(worker: Worker, rows: RowsOfTensor, tmp_path: Path) -> None:
    """A disk that is full, values that are no numbers, and a source that ends early."""
    with pytest.raises(StepError, match="No space left on device") as caught:
        quantize(worker, rows, Path("/dev/full"))
    assert "free disk space" in str(caught.value.hint)
    path, to = rows.source.path, tmp_path / "refused"
    data = bytearray(path.read_bytes())
    path.write_bytes(data[:-1])
    with pytest.raises(StepError, match=r"cannot be read at byte \d+: it ends there"):
        quantize(worker, rows, to)
    at = 96 + 4 * COLUMNS * (ROWS + 1)
    data[at : at + 4] = b"\x00\x00\xc0\x7f"
    path.write_bytes(data)
    with pytest.raises(StepError, match="not numbers in rows 40 to 79"):
        quantize(worker, rows, to)
