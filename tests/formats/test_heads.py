"""What head a file is or holds, and which target it drafts for, by headers alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cook.errors import InputError
from cook.formats.gguf import read_gguf
from cook.formats.heads import Head, HeadKind, head_alone, head_of, misfit
from tests.formats.test_file_kind import arch, write

TRUNK = ("token_embd.weight", "blk.0.attn_q.weight", "blk.1.attn_q.weight")
NEXTN = ("blk.2.attn_q.weight", "blk.2.nextn.eh_proj.weight")
GLM: dict[str, Any] = {"block_count": 3, "embedding_length": 64, "nextn_predict_layers": 1}
ALONE = Head(HeadKind.MTP, True, frozenset({2}))
INSIDE = Head(HeadKind.MTP, False, frozenset({2}))
KINDS: dict[str, tuple[dict[str, Any], tuple[str, ...], Head | None]] = {
    "whole": (arch("glm4moe", **GLM), (*TRUNK, *NEXTN), INSIDE),
    # convert_hf_to_gguf.py --mtp
    "alone": (arch("glm4moe", **GLM), ("token_embd.weight", *NEXTN), ALONE),
    "two layers": (
        arch("step35", **{**GLM, "block_count": 4, "nextn_predict_layers": 2}),
        (*NEXTN, "blk.3.nextn.eh_proj.weight"),
        Head(HeadKind.MTP, True, frozenset({2, 3})),
    ),
    # convert_hf_to_gguf.py --no-mtp, and one whose header still counts the head
    "no head": (arch("qwen35", block_count=2), TRUNK, None),
    "a trunk": (arch("glm4moe", **GLM), TRUNK, None),
    "eagle3": (arch("eagle3"), ("blk.0.attn_q.weight",), Head(HeadKind.EAGLE3, True)),
    "dflash": (arch("dflash"), ("blk.0.attn_q.weight",), Head(HeadKind.DFLASH, True)),
    "dspark": (arch("dflash"), ("markov_w1.weight",), Head(HeadKind.DSPARK, True)),
    "assistant": (arch("gemma4-assistant"), TRUNK, Head(HeadKind.ASSISTANT, True)),
    # A projection that is not a head's, in a model that has none.
    "a name alike": (arch("glm4moe"), (*TRUNK, "blk.1.nextn.eh_proj.bias"), None),
}


@pytest.mark.parametrize("name", KINDS)
def test_a_header_says_which_head(tmp_path: Path, name: str) -> None:
    metadata, names, head = KINDS[name]
    # The file's name says nothing.
    file = read_gguf(write(tmp_path / "mtp-eagle3.gguf", metadata, *names))
    assert head_of(file) == head
    if head is not None:
        held = [tensor.name for tensor in head.tensors_of(file)]
        assert held == list(NEXTN if head == INSIDE else names)


def test_a_file_of_the_head_alone(tmp_path: Path) -> None:
    """What `convert_hf_to_gguf.py --mtp` keeps: embeddings, output, and the head's block."""
    top = ("token_embd.weight", "output_norm.weight", "output.weight")
    metadata, _, _ = KINDS["whole"]
    file = read_gguf(write(tmp_path / "m.gguf", metadata, *top, "blk.0.attn_q.weight", *NEXTN))
    found = head_alone(file)
    assert [tensor.name for tensor in found.tensors] == [*top, *NEXTN]
    assert found.metadata == file.metadata
    assert head_of(found) == ALONE
    assert head_alone(found).tensors == found.tensors
    assert misfit(file, file, "ik_llama.cpp") is None
    assert "only from inside" in (misfit(found, file, "ik_llama.cpp", inside=False) or "")
    metadata, names, _ = KINDS["a trunk"]
    with pytest.raises(InputError, match="holds no head: its header counts 1 layers of one"):
        head_alone(read_gguf(write(tmp_path / "t.gguf", metadata, *names)))


def of(architecture: str, **more: Any) -> dict[str, Any]:
    return arch(architecture, **{**GLM, **more})


TARGET = of("glm4moe")
LLAMA = arch("llama", block_count=32, embedding_length=64)
STEP, QWEN, WHOLE = of("step35"), of("qwen35"), (*TRUNK, *NEXTN)
INSIDE_ONLY = "only from inside of the target"
EAGLE, OWN = arch("eagle3", target_hidden_size=64), ("blk.0.attn_q.weight",)
MISFITS: list[tuple[dict[str, Any], tuple[str, ...], dict[str, Any], str | None, str | None]] = [
    # head, its tensors, target, why not on mainline, why not on ik ("" the same)
    (TARGET, NEXTN, TARGET, None, INSIDE_ONLY),
    (STEP, NEXTN, STEP, None, None),
    (QWEN, NEXTN, TARGET, "it is of qwen35, and the target of glm4moe", ""),
    (of("step35", embedding_length=32), NEXTN, STEP, "of 32 numbers, and the target's have 64", ""),
    (of("bailingmoe2"), NEXTN, of("bailingmoe2"), "has no graph", ""),
    (of("exaone-moe"), NEXTN, of("exaone-moe"), "has no graph", INSIDE_ONLY),
    (TARGET, WHOLE, TARGET, "it is in a whole model", ""),
    (EAGLE, OWN, LLAMA, None, "has no EAGLE-3"),
    (
        {**EAGLE, "eagle3.target_layers": [1, 16, 33]},
        OWN,
        LLAMA,
        "reads layer 33 of the target, which has 32",
        "has no EAGLE-3",
    ),
    (arch("dflash", target_layers=[1, 16, 32]), OWN, LLAMA, None, None),
    (
        arch("gemma4-assistant", embedding_length_out=128),
        OWN,
        arch("gemma4", embedding_length=64),
        "hidden states of 128 numbers",
        "",
    ),
]


@pytest.mark.parametrize("case", range(len(MISFITS)))
def test_a_head_and_its_target(tmp_path: Path, case: int) -> None:
    head, names, target, mainline, ik = MISFITS[case]
    own = read_gguf(write(tmp_path / "h.gguf", head, *names))
    other = read_gguf(write(tmp_path / "t.gguf", target, *TRUNK))
    for flavour, reason in (
        ("llama.cpp", mainline),
        ("ik_llama.cpp", mainline if ik == "" else ik),
    ):
        found = misfit(own, other, flavour)
        assert (found is None) == (reason is None), found
        assert (reason or "") in (found or "")


@pytest.mark.parametrize("flavour", ["llama.cpp", "ik_llama.cpp"])
def test_the_head_inside_of_the_target(tmp_path: Path, flavour: str) -> None:
    whole = read_gguf(write(tmp_path / "whole.gguf", TARGET, *TRUNK, *NEXTN))
    assert misfit(whole, whole, flavour) is None
    trunk = read_gguf(write(tmp_path / "trunk.gguf", TARGET, *TRUNK))
    assert misfit(trunk, trunk, flavour) == (
        "its header counts 1 layers of one, and it has no tensor of them"
    )
    plain = read_gguf(write(tmp_path / "plain.gguf", LLAMA, *TRUNK))
    assert misfit(plain, plain, flavour) == "it has no block with `nextn` tensors"
    unused = read_gguf(write(tmp_path / "ling.gguf", of("bailingmoe2"), *TRUNK, *NEXTN))
    assert "leaves them unused" in (misfit(unused, unused, flavour) or "")
