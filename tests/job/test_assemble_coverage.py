"""Coverage of the experts by layer, from a real imatrix file."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from cook.formats.gguf import read_gguf
from cook.formats.imatrix_file import Imatrix, ImatrixEntry, write_gguf
from cook.formats.quant_types import Flavour
from cook.graph.execute import Outcomes
from cook.job.assemble import MAX_SKIPPED, imatrix_coverage
from cook.paths import demo_dir
from cook.steps.imatrix import ImatrixOutcome, ImatrixStep

DRAFT = demo_dir() / "draft-f16.gguf"


def entry(counts: list[int], name: str | None = None) -> ImatrixEntry:
    """Counts by expert; as wide as the demo draft's tensor of that name."""
    width = 4 if name is None else read_gguf(DRAFT).tensor(name).shape[0]
    seen = np.array(counts, dtype=np.float32)
    return ImatrixEntry(np.ones((len(seen), width), dtype=np.float32) * (seen[:, None] > 0), seen)


def outcomes(path: Path, result: ImatrixOutcome | None) -> Outcomes:
    found: Any = SimpleNamespace(
        result=lambda step: result, artifact=lambda step: SimpleNamespace(file=lambda name: path)
    )
    return cast(Outcomes, found)


def step() -> ImatrixStep:
    found: Any = SimpleNamespace(
        file_name="imatrix.gguf",
        context=512,
        engine=SimpleNamespace(flavour=Flavour.LLAMA_CPP),
        model=SimpleNamespace(path=DRAFT),
    )
    return cast(ImatrixStep, found)


def outcome(skipped: tuple[str, ...] = ()) -> ImatrixOutcome:
    return ImatrixOutcome(
        chunks=7,
        perplexity=4.0,
        perplexity_error=0.1,
        entries=3,
        experts_total=8,
        experts_covered=7,
        skipped=skipped,
        seconds=1.0,
        peak_rss_bytes=1,
        command=(),
        warnings=(),
    )


def test_layers_add_up_their_experts_and_dense_entries_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "imatrix.gguf"
    up, down, dense = (
        "blk.1.ffn_up_exps.weight",
        "blk.1.ffn_down_exps.weight",
        "blk.0.attn_qkv.weight",
    )
    experts = read_gguf(DRAFT).tensor(up).shape[2]
    full = [1] * experts
    entries = {
        up: entry([0, *full[1:]], up),
        down: entry(full, down),
        dense: entry([9], dense),
    }
    write_gguf(Imatrix(entries, ("text",), 7, 512, "gguf"), path)
    found = imatrix_coverage(step(), outcomes(path, outcome()))
    assert [(x.layer, x.experts, x.covered) for x in found.layers] == [
        (1, 2 * experts, 2 * experts - 1)
    ]
    assert found.fraction == 7 / 8


def test_a_long_list_of_names_is_cut_but_counted(tmp_path: Path) -> None:
    path = tmp_path / "imatrix.gguf"
    write_gguf(Imatrix({"a.weight": entry([1])}, ("text",), 7, 512, "gguf"), path)
    names = tuple(f"blk.{i}.x.weight" for i in range(100))
    found = imatrix_coverage(step(), outcomes(path, outcome(names)))
    assert (len(found.skipped), found.skipped_count) == (MAX_SKIPPED, 100)


def test_none_where_no_matrix_was_made(tmp_path: Path) -> None:
    assert imatrix_coverage(None, outcomes(tmp_path, outcome())) is None
    assert imatrix_coverage(step(), outcomes(tmp_path, None)) is None
