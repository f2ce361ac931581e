"""Files that are named as models and are none, by header and by first bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cook.cli.main import main
from cook.errors import InputError
from cook.formats.file_kind import no_model
from cook.formats.gguf import read_gguf
from cook.formats.gguf_writer import encode, encode_header, tensor_of
from cook.formats.heads import head_is_absent
from cook.paths import demo_dir
from cook.recipe.check import check_recipe
from cook.recipe.load import load_recipe

TARGET = demo_dir() / "target-q8_0.gguf"


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


KINDS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
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


@pytest.mark.parametrize("what", KINDS)
def test_a_header_says_what_the_file_is(tmp_path: Path, what: str, capsys: Any) -> None:
    metadata, names = KINDS[what]
    path = write(tmp_path / "draft.gguf", metadata, *names)
    found = no_model(read_gguf(path))
    assert found.what == what
    (problem,) = check_recipe(load_recipe(recipe(tmp_path, TARGET))).problems
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
    assert no_model(read_gguf(TARGET)) is None
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
        ["score", "--target", str(TARGET), "draft.gguf"],
        ["trace", "--target", "draft.gguf", "-o", "t.trace"],
    ],
)
def test_every_command_says_so_before_the_target_runs(
    tmp_path: Path, monkeypatch: Any, capsys: Any, command: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COOK_HOME", str(tmp_path / "home"))
    what = "a multi-token-prediction head alone: block 46, without those before"
    metadata, names = KINDS[what]
    write(tmp_path / "draft.gguf", metadata, *names)
    recipe(tmp_path, TARGET)
    assert main(command) == 2
    tracing = command[0] == "trace"
    printed = capsys.readouterr().err
    assert (f"this is {what}, no mod" if tracing else f"{what} of draft.gguf cannot dra") in printed
    if command[0] == "score":  # without a recipe the file is the place
        assert f"error: {tmp_path / 'draft.gguf'}: " in printed
        assert "score.yaml" not in printed
    assert not (tmp_path / "home" / "logs").exists()
