"""What a token reads, by group: of the field's own quants, and of models of every shape."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from cook.formats.gguf import GgufFile, read_gguf
from cook.formats.gguf_writer import encode, tensor_of, write_gguf_file
from cook.formats.quant_types import IK_LLAMA_CPP
from cook.recipe.active import ActiveBytes, TokenReads, active_bytes
from cook.recipe.groups import Group
from cook.recipe.load import load_recipe
from cook.recipe.rules import ModelTensors, tensor_sizes
from tests.giant import LISTS, write_giant

FLASH = LISTS / "ling-flash-2.0.tensors.tsv"
RECIPE = Path(__file__).parents[2] / "recipes" / "ling-flash-iq1kt.yaml"
FACTS = {"block_count": 32, "expert_count": 256, "expert_used_count": 8}


@pytest.fixture(scope="module")
def quants(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ActiveBytes]:
    file = read_gguf(write_giant(tmp_path_factory.mktemp("flash"), FLASH, FACTS))
    reads, model = TokenReads(file), ModelTensors(file.tensors, file.architecture)
    found = {}
    for quant in load_recipe(RECIPE).quants:
        sizes = tensor_sizes(file.tensors, model.resolve(quant, IK_LLAMA_CPP))
        found[quant.name] = reads.of({n: s for n, s in sizes.items() if s is not None})
    return found


def test_what_the_field_counted_of_iq1_kt(quants: dict[str, ActiveBytes]) -> None:
    """Attention 39 %, experts 27 %, output 21 %, shared experts 10 %: without the router, which
    stays f32 and is another 4.8 % of what is read."""
    active = quants["IQ1_KT"]
    without = active.read_bytes * (1 - active.share(Group.ROUTER))
    read = {g.group: g.read_bytes / without for g in active.groups}
    assert read[Group.ATTENTION] == pytest.approx(0.392, abs=0.001)
    assert read[Group.ROUTED_EXPERTS] == pytest.approx(0.270, abs=0.001)
    assert read[Group.OUTPUT] == pytest.approx(0.209, abs=0.001)
    assert read[Group.SHARED_EXPERTS] == pytest.approx(0.101, abs=0.001)
    assert active.share(Group.ROUTER) == pytest.approx(0.048, abs=0.001)
    assert active.read_bytes == pytest.approx(2.500 * 2**30, rel=1e-3)
    assert sum(active.share(g) for g in Group) == pytest.approx(1)


def test_a_little_more_size_is_a_quarter_more_to_read(quants: dict[str, ActiveBytes]) -> None:
    """The PUFFED quant is 4 % larger, and a token of it reads 24 % more."""
    plain, puffed = quants["IQ1_KT"], quants["IQ1_KT-PUFFED"]
    assert puffed.size_bytes / plain.size_bytes == pytest.approx(1.039, abs=0.001)
    assert puffed.read_bytes / plain.read_bytes == pytest.approx(1.238, abs=0.001)


def model(tmp_path: Path, names: Mapping[str, tuple[int, ...]], **facts: int) -> GgufFile:
    path = tmp_path / "m.gguf"
    metadata = {"general.architecture": encode("llama")}
    metadata |= {f"llama.{key}": encode(value) for key, value in facts.items()}
    tensors = []
    for name, shape in names.items():
        count = 4
        for n in shape:
            count *= n
        tensors.append(tensor_of(name, shape, 0, bytes(count)))
    write_gguf_file(path, metadata, tensors)
    return read_gguf(path)


def read_of(file: GgufFile) -> dict[str, int]:
    active = active_bytes(file)
    return {g.group.value: g.read_bytes for g in active.groups}


def test_one_row_of_the_embeddings_and_all_of_the_output(tmp_path: Path) -> None:
    both = {"token_embd.weight": (8, 100), "output.weight": (8, 100), "output_norm.weight": (8,)}
    assert read_of(model(tmp_path, both)) == {"embeddings": 32, "output": 3200, "other": 32}


def test_embeddings_that_are_the_output_are_read_whole(tmp_path: Path) -> None:
    assert read_of(model(tmp_path, {"token_embd.weight": (8, 100)})) == {"output": 3200}


def test_layers_that_predict_ahead_are_not_read(tmp_path: Path) -> None:
    names = {"blk.0.attn_q.weight": (8, 8), "blk.1.attn_q.weight": (8, 8), "output.weight": (8, 8)}
    file = model(tmp_path, names, block_count=2, nextn_predict_layers=1)
    assert read_of(file) == {"attention": 256, "output": 256, "mtp": 0}


def test_experts_that_a_token_uses(tmp_path: Path) -> None:
    names = {"blk.0.ffn_up_exps.weight": (8, 8, 16), "blk.0.ffn_up_shexp.weight": (8, 8)}
    file = model(tmp_path, names, expert_count=16, expert_used_count=2)
    assert read_of(file) == {"shared_experts": 256, "routed_experts": 512}


def test_what_no_header_tells_is_not_guessed(tmp_path: Path) -> None:
    names = {"blk.0.ffn_up_exps.weight": (8, 8, 16)}
    assert active_bytes(model(tmp_path, names, expert_count=16)) is None
