"""What a file named as a model is, by header and by first bytes: what head it is or holds and which
target that drafts for, or something that is no model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cook.cli.main import main
from cook.demo.unpack import SHIPPED_HEAD
from cook.errors import InputError
from cook.formats.gguf import read_gguf
from cook.formats.gguf_writer import encode, encode_header, tensor_of, write_copy
from cook.formats.heads import (
    Head,
    HeadKind,
    gives_on,
    head_alone,
    head_is_absent,
    head_of,
    misfit,
    no_model,
)
from cook.paths import demo_dir
from cook.recipe.check import check_recipe
from cook.recipe.load import load_recipe

DEMO = demo_dir() / "target-q8_0.gguf"


def write(path: Path, metadata: dict[str, Any], *names: str) -> Path:
    """A GGUF of four-element tensors."""
    tensors = [tensor_of(name, (4,), 0, bytes(16)) for name in names]
    header = encode_header({k: encode(v) for k, v in metadata.items()}, tensors)
    path.write_bytes(header + b"".join(bytes(32) for _ in names))
    return path


def recipe(folder: Path, target: Path) -> Path:
    """A recipe of one draft, ``draft.gguf``, for ``target``."""
    path = folder / "r.yaml"
    path.write_text(
        "version: 1\nname: r\ndrafts: [{name: d, source: draft.gguf}]\n"
        f"score: {{context: 4096, target: {{source: '{target}'}}}}\n"
    )
    return path


def arch(name: str, **more: Any) -> dict[str, Any]:
    return {"general.architecture": name, **{f"{name}.{k}": v for k, v in more.items()}}


NO_MODELS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    # llama.cpp issue 8974: a LoRA in GGUF given with -m.
    "a LoRA adapter": (
        {**arch("llama"), "general.type": "adapter", "adapter.type": "lora"},
        ("blk.0.attn_q.weight.lora_a", "blk.0.attn_q.weight.lora_b"),
    ),
    "a control vector": (arch("controlvector"), ("direction.1",)),
    # llama.cpp issue 13790: mmproj-*.gguf loaded as the model.
    "a multimodal projector": (
        {**arch("clip"), "general.type": "mmproj"},
        ("v.blk.0.ln1.weight", "mm.0.weight"),
    ),
    # llama.cpp issue 6944: models/ggml-vocab-*.gguf.
    "a vocabulary without weights": ({**arch("llama"), "tokenizer.ggml.tokens": ["a", "b"]}, ()),
    "an importance matrix": ({"general.type": "imatrix"}, ("blk.0.ffn_down.weight.in_sum2",)),
    "an EAGLE-3 head": (arch("eagle3", target_hidden_size=9), ("blk.0.attn_q.weight",)),
    "a DFlash head": (arch("dflash", target_hidden_size=9), ("blk.0.attn_q.weight",)),
    "a multi-token-prediction head alone: block 46, without those before": (
        arch("glm4moe", block_count=47, nextn_predict_layers=1),
        ("token_embd.weight", "blk.46.nextn.eh_proj.weight", "blk.46.attn_q.weight"),
    ),
}


@pytest.mark.parametrize("what", NO_MODELS)
def test_a_header_says_what_the_file_is(tmp_path: Path, what: str, capsys: Any) -> None:
    metadata, names = NO_MODELS[what]
    path = write(tmp_path / "draft.gguf", metadata, *names)
    found = no_model(read_gguf(path))
    assert found.what == what
    (problem,) = check_recipe(load_recipe(recipe(tmp_path, DEMO))).problems
    assert (problem.severity, problem.line) == ("error", 3)
    if "head" in what:  # which is a draft, of another target
        assert problem.message.startswith(f"{what} of draft.gguf cannot draft for target-q8_0.gguf")
        *_, problem = check_recipe(load_recipe(recipe(tmp_path, path))).problems
    assert problem.message == f"this is {what}, no model"
    assert problem.hint == found.mend
    if what != "an importance matrix":  # which is shown as what it is
        assert main(["inspect", str(path)]) == 0
        assert what in capsys.readouterr().out


def test_models_are_models(tmp_path: Path) -> None:
    assert no_model(read_gguf(DEMO)) is None
    whole = ("blk.0.attn_q.weight", "blk.1.nextn.eh_proj.weight")
    counted = arch("glm4moe", block_count=2, nextn_predict_layers=1)
    with_head = read_gguf(write(tmp_path / "whole.gguf", counted, *whole))
    assert (no_model(with_head), head_is_absent(with_head)) == (None, None)
    trunk = read_gguf(write(tmp_path / "trunk.gguf", counted, whole[0]))
    assert (no_model(trunk), head_is_absent(trunk)) == (None, 1)


FOREIGN = {
    "a Git LFS pointer, not the file it stands for": b"version https://git-lfs.github.com/spec/v1\n",
    "a web page": b"\n<!DOCTYPE html><html>",
    "a server's error answer": b'{"error":"Invalid username or password."}',
    "safetensors": b"\x40\0\0\0\0\0\0\0" + b'{"__metadata__":{}}',
    "an archive": b"PK\x03\x04....",
}


@pytest.mark.parametrize("what", FOREIGN)
def test_what_was_downloaded_in_its_place(tmp_path: Path, what: str) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(FOREIGN[what])
    with pytest.raises(InputError) as caught:
        read_gguf(path)
    assert caught.value.message == f"{path}: this is {what}"
    assert caught.value.hint


@pytest.mark.engine
@pytest.mark.parametrize(
    "command",
    [
        ["plan", "r.yaml"],
        ["score", "--target", str(DEMO), "draft.gguf"],
        ["trace", "--target", "draft.gguf", "-o", "t.trace"],
    ],
)
def test_every_command_says_so_before_the_target_runs(
    tmp_path: Path, monkeypatch: Any, capsys: Any, command: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COOK_HOME", str(tmp_path / "home"))
    what = "a multi-token-prediction head alone: block 46, without those before"
    metadata, names = NO_MODELS[what]
    write(tmp_path / "draft.gguf", metadata, *names)
    recipe(tmp_path, DEMO)
    assert main(command) == 2
    tracing = command[0] == "trace"
    printed = capsys.readouterr().err
    assert (f"this is {what}, no mod" if tracing else f"{what} of draft.gguf cannot dra") in printed
    if command[0] == "score":  # without a recipe the file is the place
        assert f"error: {tmp_path / 'draft.gguf'}: " in printed
        assert "score.yaml" not in printed
    assert not (tmp_path / "home" / "logs").exists()


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


def test_a_copy_of_a_head_whose_block_does_nothing(tmp_path: Path) -> None:
    own = read_gguf(demo_dir() / SHIPPED_HEAD)
    zeros = gives_on(own)
    assert {name.split(".", 2)[2] for name in zeros} == {
        "attn_output.weight",
        *(f"ffn_down_{which}.weight" for which in ("exps", "shexp")),
    }
    copy = read_gguf(write_copy(own, tmp_path / "idle.gguf", zeros))
    for tensor in own.tensors:
        held = copy.read_tensor_bytes(tensor.name)
        asked = own.read_tensor_bytes(tensor.name)
        assert held == (bytes(len(asked)) if tensor.name in zeros else asked)
    eagle = write(tmp_path / "eagle.gguf", of("eagle3"), "blk.0.attn_output.weight")
    assert gives_on(read_gguf(eagle)) == frozenset(), "another kind of head"
