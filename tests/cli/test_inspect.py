"""``cook inspect`` on real files, whole and broken."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cook.formats.imatrix_file import Imatrix, ImatrixEntry, write_gguf
from cook.formats.sampling import Sampling
from cook.formats.trace_file import TraceWriter
from cook.paths import demo_dir
from tests.traces import even_reply, server_header

ROOT = Path(__file__).resolve().parents[2]
LING = ROOT / "tests" / "data" / "ling-flash-2.0.tensors.tsv"


def test_a_tensor_list(cook: Any, check_snapshot: Any) -> None:
    check_snapshot(cook("inspect", str(LING)), "inspect-tensor-list")
    check_snapshot(cook("inspect", str(LING), "--quiet"), "inspect-quiet")


def test_a_model(cook: Any) -> None:
    done = cook("inspect", str(demo_dir() / "draft-f16.gguf"), "--json")
    assert done.status == 0
    report = json.loads(done.stdout)
    assert report["architecture"] == "bailingmoe2"
    assert report["total"]["size_bytes"] == sum(g["size_bytes"] for g in report["by_group"])
    assert report["total"]["tensors"] == sum(t["tensors"] for t in report["by_type"])
    assert {g["name"] for g in report["by_group"]} >= {"attention", "routed_experts", "router"}
    f16 = next(t for t in report["by_type"] if t["name"] == "f16")
    assert f16["bpw"] == 16


def test_an_imatrix_with_gaps(cook: Any, check_snapshot: Any) -> None:
    counts = np.full(8, 4, np.float32)
    counts[3] = 0
    sums = np.ones((8, 32), np.float32) * counts[:, None]
    entries = {
        "blk.0.attn_q.weight": ImatrixEntry(sums[:1], counts[:1]),
        "blk.1.ffn_up_exps.weight": ImatrixEntry(sums, counts),
    }
    imatrix = Imatrix(entries, ("calibration.txt",), 10, 512, "gguf")
    write_gguf(imatrix, cook.directory / "imatrix.gguf")
    check_snapshot(cook("inspect", "imatrix.gguf"), "inspect-imatrix")


def test_base_logits(cook: Any, check_snapshot: Any) -> None:
    file = cook.directory / "base.kld"
    file.write_bytes(b"_logits_" + struct.pack("<3i", 512, 2048, 3) + bytes(100))
    check_snapshot(cook("inspect", "base.kld"), "inspect-base")


@pytest.mark.parametrize("name", ["absent", "truncated"])
def test_what_cannot_be_read(cook: Any, check_snapshot: Any, name: str) -> None:
    cut = b"GGUF\x03\x00\x00\x00" + struct.pack("<QQ", 1, 1) + b"\x05"
    (cook.directory / "truncated.gguf").write_bytes(cut)
    check_snapshot(cook("inspect", f"{name}.gguf"), f"inspect-{name}")


def test_a_trace(cook: Any, check_snapshot: Any) -> None:
    header = server_header(
        target_name="Ling-1T.gguf",
        target_sha256="sha256:" + "a" * 64,
        tokenizer_sha256="b" * 64,
        template_sha256="c" * 64,
        flavour="ik_llama.cpp",
        engine_build="3826 (8337e4cd)",
        engine_digest="e" * 64,
        device="gpu",
        cache_type_k="q8_0",
        cache_type_v="f16",
        top=2,
        sampler=Sampling(temperature=0.7, top_k=40, top_p=0.95, min_p=0.05, seed=3).applied(),
        source="worker",
    )
    with TraceWriter(cook.directory / "t.trace", header) as writer:
        writer.append(even_reply("a", [True, True, True], "code", beyond=1))
        writer.append(even_reply("b", [True, False, True], "prose", beyond=1))
    check_snapshot(cook("inspect", "t.trace"), "inspect-trace")
    report = json.loads(cook("inspect", "t.trace", "--json").stdout)
    assert (report["tokens"], report["beyond"], report["holes"]) == (4, 2, 1)
    assert report["header"]["sampler"]["seed"] == 3
