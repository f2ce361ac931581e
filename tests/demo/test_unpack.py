"""The demo's target unpacked: its own weights and its head as shipped, layers in front that add
nothing, the same text on both engines, which both draft with the head; made once, found by every
reader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader
from gguf.quants import dequantize

from cook.demo.unpack import LAYERS_IN_FRONT, SHIPPED, SHIPPED_HEAD, UNPACKED, unpacked_target
from cook.engines.base import DraftSettings, ModelArgs, ServerJob
from cook.engines.process.supervisor import Supervisor
from cook.engines.server import Server
from cook.formats.gguf import read_gguf
from cook.formats.heads import Head, HeadKind, head_of
from cook.job.locate import locate
from cook.paths import demo_dir
from cook.prompts.prompt_set import load_prompts

SOURCE, HEAD = demo_dir() / SHIPPED, demo_dir() / SHIPPED_HEAD
PROJECTIONS = ("q", "k", "v")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COOK_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def renamed(name: str) -> str:
    layer, dot, rest = name.removeprefix("blk.").partition(".")
    if layer == name.partition(".")[0]:
        return name
    rest = rest.replace("ffn_norm", "post_attention_norm")
    return f"blk.{int(layer) + LAYERS_IN_FRONT}{dot}{rest}"


def parts(name: str) -> list[str]:
    """The names under which the bytes of a shipped tensor stand, in their order."""
    new = renamed(name)
    return [new.replace("qkv", p) for p in PROJECTIONS] if "attn_qkv" in new else [new]


def in_front(name: str, layer: int) -> str:
    """The name in ``layer`` in front of a tensor of the model's own first layer."""
    return name.replace(f"blk.{LAYERS_IN_FRONT}.", f"blk.{layer}.")


def test_every_byte_of_its_own_weights_is_the_shipped_one() -> None:
    ours = read_gguf(unpacked_target())
    for shipped in map(read_gguf, (SOURCE, HEAD)):
        for tensor in shipped.tensors:
            found = [ours.tensor(name) for name in parts(tensor.name)]
            assert {t.type_name for t in found} == {tensor.type_name}
            assert sum(t.elements for t in found) == tensor.elements
            data = b"".join(ours.read_tensor_bytes(t.name) for t in found)
            assert data == shipped.read_tensor_bytes(tensor.name), tensor.name


def test_the_shipped_head_is_the_last_block() -> None:
    ours = read_gguf(unpacked_target())
    last = (ours.number("block_count") or 0) - 1
    assert head_of(ours) == Head(HeadKind.MTP, alone=False, blocks=frozenset({last}))
    assert ours.number("nextn_predict_layers") == 1
    assert ours.metadata["general.name"] == "cook-demo-target"


def test_the_layers_in_front_read_weights_and_add_nothing() -> None:
    ours = {t.name: t for t in GGUFReader(unpacked_target()).tensors}
    shipped = {t.name: t for t in GGUFReader(SOURCE).tensors}
    first = {name: t for name, t in shipped.items() if name.startswith("blk.0.")}
    for layer in range(LAYERS_IN_FRONT):
        for name, tensor in first.items():
            names = [in_front(new, layer) for new in parts(name)]
            assert {ours[new].tensor_type.name for new in names} == {"F32"}
            found = np.concatenate([ours[new].data for new in names])
            nothing = ".attn_output." in name or ".ffn_down." in name
            wanted = dequantize(tensor.data, tensor.tensor_type)
            np.testing.assert_array_equal(found, np.zeros_like(wanted) if nothing else wanted)


def test_biases_are_zero_and_nothing_else_is_new() -> None:
    ours, shipped, head = map(read_gguf, (unpacked_target(), SOURCE, HEAD))
    own = {new for file in (shipped, head) for t in file.tensors for new in parts(t.name)}
    front = [new for new in own if new.startswith(f"blk.{LAYERS_IN_FRONT}.")]
    added = {in_front(new, layer) for layer in range(LAYERS_IN_FRONT) for new in front}
    rest = {t.name for t in ours.tensors} - own - added
    layers = ours.number("block_count") or 0
    assert rest == {
        f"blk.{layer}.attn_{letter}.bias" for layer in range(layers) for letter in PROJECTIONS
    }
    assert not any(any(ours.read_tensor_bytes(name)) for name in rest)
    assert layers == (shipped.number("block_count") or 0) + LAYERS_IN_FRONT + 1


def test_it_is_written_once_and_found_even_for_a_plan(home: Path) -> None:
    found = locate(demo_dir() / UNPACKED, plan_only=True)
    assert not found.source.provisional
    first, before = found.path, found.path.stat()
    assert unpacked_target() == first
    assert (first.stat().st_mtime_ns, first.stat().st_ino) == (before.st_mtime_ns, before.st_ino)
    assert [p.name for p in home.rglob("*.gguf")] == [UNPACKED]
    assert read_gguf(first).metadata["general.file_type"] == 0


def test_the_text_is_the_same(engine: Any, tmp_path: Path) -> None:
    assert replies(engine, unpacked_target(), tmp_path) == replies(engine, SOURCE, tmp_path)


def test_both_engines_draft_with_the_head(engine: Any, tmp_path: Path) -> None:
    prompts = {p.category: p.text for p in load_prompts("demo").prompts}
    one, settings, model = ModelArgs(threads=1), DraftSettings(2), unpacked_target()
    job = ServerJob(model, one, 2048, model, one, settings, head=HeadKind.MTP)
    with Server(engine, job, Supervisor(tmp_path / "logs")) as server:
        answers = [server.complete(prompt, 48) for prompt in list(prompts.values())[:4]]
    drafted = sum(answer.draft_n or 0 for answer in answers)
    assert drafted > 50
    assert sum(answer.draft_n_accepted or 0 for answer in answers) > 0.4 * drafted


def replies(engine: Any, model: Path, folder: Path) -> list[object]:
    """What a server of ``model`` writes for a prompt of each category, greedily: token by token
    where the engine reports them."""
    prompts = {p.category: p.text for p in load_prompts("demo").prompts}
    job = ServerJob(model, ModelArgs(threads=1), 2048)
    with Server(engine, job, Supervisor(folder / "logs")) as server:
        answers = [server.complete(prompt, 96) for prompt in prompts.values()]
    return [(answer.text, answer.tokens, answer.predicted_n) for answer in answers]
