"""What a token reads, by group: of the field's own quants, and of models of every shape."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from cook.formats.gguf import read_gguf
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
    shares = {"attention": 0.392, "routed_experts": 0.270, "output": 0.209, "shared_experts": 0.101}
    assert {g: read[Group(g)] for g in shares} == pytest.approx(shares, abs=0.001)
    assert active.share(Group.ROUTER) == pytest.approx(0.048, abs=0.001)
    assert active.read_bytes == pytest.approx(2.500 * 2**30, rel=1e-3)
    assert sum(active.share(g) for g in Group) == pytest.approx(1)


def test_a_little_more_size_is_a_quarter_more_to_read(quants: dict[str, ActiveBytes]) -> None:
    """The PUFFED quant is 4 % larger, and a token of it reads 24 % more."""
    plain, puffed = quants["IQ1_KT"], quants["IQ1_KT-PUFFED"]
    assert puffed.size_bytes / plain.size_bytes == pytest.approx(1.039, abs=0.001)
    assert puffed.read_bytes / plain.read_bytes == pytest.approx(1.238, abs=0.001)


def read_of(tmp_path: Path, *shape: int, names: str, **facts: int) -> dict[str, int] | None:
    """Group -> bytes that a token reads, of a model of f32 tensors of one shape."""
    metadata = {"general.architecture": encode("llama")}
    metadata |= {f"llama.{key}": encode(value) for key, value in facts.items()}
    data = bytes(4 * math.prod(shape))
    tensors = [tensor_of(f"{name}.weight", shape, 0, data) for name in names.split()]
    write_gguf_file(tmp_path / "m.gguf", metadata, tensors)
    active = active_bytes(read_gguf(tmp_path / "m.gguf"))
    return {g.group.value: g.read_bytes for g in active.groups} if active else None


def test_what_a_token_reads(tmp_path: Path) -> None:
    """One row of the embeddings and all of the output, which are read whole where they are it;
    no layer that predicts ahead."""
    found = read_of(tmp_path, 8, 100, names="token_embd output output_norm")
    assert found == {"embeddings": 32, "output": 3200, "other": 3200}
    assert read_of(tmp_path, 8, 100, names="token_embd") == {"output": 3200}
    layers = {"block_count": 2, "nextn_predict_layers": 1}
    found = read_of(tmp_path, 8, 8, names="blk.0.attn_q blk.1.attn_q output", **layers)
    assert found == {"attention": 256, "output": 256, "mtp": 0}


def test_experts_that_a_token_uses(tmp_path: Path) -> None:
    names = "blk.0.ffn_up_exps blk.0.ffn_up_shexp"
    found = read_of(tmp_path, 8, 8, 16, names=names, expert_count=16, expert_used_count=2)
    assert found == {"shared_experts": 4096, "routed_experts": 512}
    assert read_of(tmp_path, 8, 8, 16, names=names, expert_count=16) is None, "not guessed"
