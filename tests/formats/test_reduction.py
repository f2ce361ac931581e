"""A reduced model is what llama-quantize makes of the same, and shares blocks where files can."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from cook.demo.unpack import SHIPPED
from cook.engines.process.supervisor import ask
from cook.errors import InputError
from cook.files import SHARED_BLOCK, shares_blocks
from cook.formats.gguf import GgufFile, MetadataArray, ValueType, read_gguf
from cook.formats.gguf_writer import (
    SplitLimit,
    copy_of,
    encode,
    tensor_of,
    write_gguf_file,
    write_split,
)
from cook.formats.quant_types import Flavour
from cook.formats.reduction import Reduction, kept_tensors, reduced, reductions
from cook.paths import demo_dir

F32 = 0
LAYERS = 5


def model(path: Path, **more: Any) -> Path:
    """Five layers of one tensor each, the first without experts; the last predicts ahead."""
    metadata = {
        "general.architecture": encode("few"),
        "general.file_type": encode(7),
        "few.block_count": encode(LAYERS),
        "few.leading_dense_block_count": encode(2),
        "few.expert_used_count": encode(4),
        "few.nextn_predict_layers": encode(1),
        "few.attention.head_count_kv": encode([1, 2, 3, 4, 5], ValueType.UINT32),
        "few.rope.dimension_sections": encode([9, 9, 9, 9, 9], ValueType.INT32),
        "tokenizer.ggml.scores": encode([0.0] * LAYERS),
        **more,
    }
    data = [bytes([n]) * 4 * 64 * (n + 1) for n in range(LAYERS)]
    tensors = [tensor_of("token_embd.weight", (64,), F32, bytes(256))]
    tensors += [
        tensor_of(f"blk.{n}.ffn_up.weight", (64, n + 1), F32, each) for n, each in enumerate(data)
    ]
    write_gguf_file(path, metadata, tensors)
    return path


def write(file: GgufFile, reduction: Reduction, path: Path) -> GgufFile:
    write_gguf_file(path, *reduced(file, reduction), alignment=file.alignment)
    return read_gguf(path)


def test_every_combination_is_one_candidate() -> None:
    found = [r.named("A") for r in reductions((8, 4), ((), (3, 7)))]
    assert found[:2] == ["A experts=8", "A experts=8 prune_layers=3,7"]
    assert found[2:] == ["A experts=4", "A experts=4 prune_layers=3,7"]
    assert reductions((), ()) == (Reduction(),)
    assert Reduction().named("A") == "A"


def test_layers_that_stay_are_renumbered_with_all_that_is_said_of_them(tmp_path: Path) -> None:
    file = read_gguf(model(tmp_path / "whole.gguf"))
    made = write(file, Reduction(2, (1, 2)), tmp_path / "less.gguf")
    stay = dict(zip((0, 3, 4), range(3), strict=True))
    names = {f"blk.{old}.ffn_up.weight": f"blk.{new}.ffn_up.weight" for old, new in stay.items()}
    names = {"token_embd.weight": "token_embd.weight", **names}
    assert kept_tensors(file, Reduction(None, (1, 2))) == names
    assert [t.name for t in made.tensors] == [*names.values()]
    for old, new in names.items():
        assert made.read_tensor_bytes(new) == file.read_tensor_bytes(old)
    stated = {k: v for k, v in made.metadata.items() if not k.startswith("cook.")}
    lists = {k: v.values() for k, v in stated.items() if isinstance(v, MetadataArray)}
    assert lists == {
        "few.attention.head_count_kv": (1, 4, 5),
        "few.rope.dimension_sections": (9,) * LAYERS,
        "tokenizer.ggml.scores": (0.0,) * LAYERS,
    }
    assert [(k, v) for k, v in stated.items() if k not in lists] == [
        ("general.architecture", "few"),
        ("few.nextn_predict_layers", 1),
        ("general.file_type", 7),
        ("few.expert_used_count", 2),
        ("few.leading_dense_block_count", 1),
        ("few.block_count", 3),
    ]


def test_a_number_keeps_its_kind(tmp_path: Path) -> None:
    """ik reads a key as one kind of number and no other."""
    used = encode(4, ValueType.UINT16)
    file = read_gguf(model(tmp_path / "whole.gguf", **{"few.expert_used_count": used}))
    made = write(file, Reduction(3), tmp_path / "less.gguf")
    assert made.raw_value("few.expert_used_count") == encode(3, ValueType.UINT16)


@pytest.mark.parametrize(
    ("reduction", "message"),
    [
        (Reduction(5), "uses 4 experts, so it cannot use 5"),
        (Reduction(0), "cannot use 0"),
        (Reduction(None, (4,)), "layers 0 to 3, and no layer 4 to leave out; the last 1 only"),
        (Reduction(None, (0, 1, 2, 3)), "would be left without a layer"),
    ],
)
def test_what_a_model_does_not_have(tmp_path: Path, reduction: Reduction, message: str) -> None:
    with pytest.raises(InputError, match=message):
        reduced(read_gguf(model(tmp_path / "whole.gguf")), reduction)


@pytest.mark.parametrize(
    ("used", "message"),
    [(encode([4] * LAYERS, ValueType.UINT32), "stated by layer"), (encode(0), "no mixture of")],
)
def test_experts_of_a_model_that_says_otherwise(tmp_path: Path, used: bytes, message: str) -> None:
    file = read_gguf(model(tmp_path / "whole.gguf", **{"few.expert_used_count": used}))
    with pytest.raises(InputError, match=message):
        Reduction(2).applied_to(file)


def test_the_models_own_number_changes_nothing(tmp_path: Path) -> None:
    file = read_gguf(model(tmp_path / "whole.gguf"))
    assert Reduction(4).applied_to(file) is None
    assert Reduction(4, (1,)).applied_to(file) == Reduction(None, (1,))


def test_a_split_model_becomes_one_file(tmp_path: Path) -> None:
    whole = read_gguf(model(tmp_path / "whole.gguf"))
    tensors, limit = [copy_of(whole, t.name) for t in whole.tensors], SplitLimit(None, 3)
    first, _ = write_split(
        tmp_path / "s.gguf", whole.raw_metadata(), tensors, limit, Flavour.LLAMA_CPP
    )
    made = write(read_gguf(first), Reduction(2), tmp_path / "less.gguf")
    assert not [key for key in made.metadata if key.startswith("split.")]
    for tensor in whole.tensors:
        assert made.read_tensor_bytes(tensor.name) == whole.read_tensor_bytes(tensor.name)


@pytest.mark.parametrize("reduction", [Reduction(2), Reduction(None, (1, 3)), Reduction(1, (2,))])
def test_most_data_lies_in_its_blocks_as_before(tmp_path: Path, reduction: Reduction) -> None:
    """Else no file system could share it: by whole layers of whole blocks, all of it does."""
    path = tmp_path / "whole.gguf"
    metadata = read_gguf(model(path)).raw_metadata()
    block = bytes(range(256)) * (SHARED_BLOCK // 256)
    tensors = [
        tensor_of(f"blk.{n}.ffn_up.weight", (1024, n + 1), F32, block * (n + 1))
        for n in range(LAYERS)
    ]
    write_gguf_file(path, metadata, tensors)
    file = read_gguf(path)
    made = write(file, reduction, tmp_path / "less.gguf")
    for old, new in kept_tensors(file, reduction).items():
        assert made.place(new).offset % SHARED_BLOCK == file.place(old).offset % SHARED_BLOCK
        assert made.read_tensor_bytes(new) == file.read_tensor_bytes(old)


@pytest.mark.skipif(
    "COOK_TEST_REFLINKS" not in os.environ,
    reason="SKIPPED LOUDLY: COOK_TEST_REFLINKS names no directory on XFS or btrfs",
)
def test_a_file_system_that_shares_blocks_does() -> None:
    """COOK_TEST_REFLINKS: an empty directory on XFS or btrfs."""
    folder = Path(os.environ["COOK_TEST_REFLINKS"])
    assert shares_blocks(folder)
    path = folder / "whole.gguf"
    data = os.urandom(16 << 20)
    tensors = [tensor_of(f"blk.{n}.ffn_up.weight", (1 << 22,), F32, data) for n in range(LAYERS)]
    write_gguf_file(path, read_gguf(model(path)).raw_metadata(), tensors)
    for reduction in (Reduction(2), Reduction(3, (0, 2))):
        os.sync()
        before = os.statvfs(folder).f_bfree
        less = folder / "less.gguf"
        write(read_gguf(path), reduction, less)
        os.sync()
        now = os.statvfs(folder)
        assert (before - now.f_bfree) * now.f_frsize <= 1 << 20
        less.unlink()
    path.unlink()


def by_tool(engine: Any, source: Path, reduction: Reduction, folder: Path) -> GgufFile:
    output = folder / "theirs.gguf"
    flags = reduction.flags(read_gguf(source).architecture)
    argv = (str(engine.tool("quantize")), *flags, str(source), str(output), "COPY", "1")
    result = ask(*argv, env=engine.environment())
    assert result.returncode == 0, result.stderr_tail
    return read_gguf(output)


def loads(engine: Any, file: GgufFile) -> bool:
    """Whether the engine reads a text with it."""
    text = demo_dir() / "data" / "evaluation.txt"
    argv = ("-m", str(file.path), "-f", str(text), "-c", "128", "--chunks", "1", "-t", "1")
    tool = str(engine.tool("perplexity"))
    return ask(tool, *argv, env=engine.environment()).returncode == 0


def require_same_tensors(mine: GgufFile, theirs: GgufFile) -> None:
    assert {t.name for t in mine.tensors} == {t.name for t in theirs.tensors}
    for tensor in theirs.tensors:
        found = mine.tensor(tensor.name)
        assert (found.shape, found.type_id) == (tensor.shape, tensor.type_id)
        assert mine.read_tensor_bytes(tensor.name) == theirs.read_tensor_bytes(tensor.name)


@pytest.fixture(scope="module")
def demo_target(tmp_path_factory: pytest.TempPathFactory, bundled: Any) -> Path:
    """The demo's target as llama-quantize writes it: its tensors by layer and name."""
    folder = tmp_path_factory.mktemp("target")
    return by_tool(bundled, demo_dir() / SHIPPED, Reduction(), folder).path


@pytest.mark.engine
@pytest.mark.parametrize(
    "reduction", [Reduction(4), Reduction(None, (1, 4)), Reduction(3, (2, 3))], ids=str
)
def test_it_is_the_file_of_the_tool(
    bundled: Any, demo_target: Path, tmp_path: Path, reduction: Reduction
) -> None:
    """Byte for byte, but for what cook says of itself."""
    mine = write(read_gguf(demo_target), reduction, tmp_path / "mine.gguf")
    theirs = by_tool(bundled, demo_target, reduction, tmp_path)
    require_same_tensors(mine, theirs)
    assert mine.tensors == theirs.tensors
    kept = [key for key in mine.metadata if not key.startswith("cook.")]
    assert kept == list(theirs.metadata)
    assert [mine.raw_value(k) for k in kept] == [theirs.raw_value(k) for k in kept]


@pytest.mark.engine
def test_without_its_dense_layer_a_model_loads_only_as_cook_writes_it(
    bundled: Any, demo_target: Path, tmp_path: Path
) -> None:
    reduction = Reduction(None, (0,))
    mine = write(read_gguf(demo_target), reduction, tmp_path / "mine.gguf")
    theirs = by_tool(bundled, demo_target, reduction, tmp_path)
    require_same_tensors(mine, theirs)
    assert [loads(bundled, mine), loads(bundled, theirs)] == [True, False]


@pytest.mark.ik
def test_experts_are_those_of_the_tool_of_ik(ik_engine: Any, tmp_path: Path) -> None:
    """The tensors alone: the number that ik's tool writes is of a kind that ik does not read."""
    source = demo_dir() / "draft-f16.gguf"
    mine = write(read_gguf(source), Reduction(1), tmp_path / "mine.gguf")
    theirs = by_tool(ik_engine, source, Reduction(1), tmp_path)
    require_same_tensors(mine, theirs)
    key = f"{mine.architecture}.expert_used_count"
    assert mine.metadata[key] == theirs.metadata[key] == 1
    assert theirs.raw_value(key) == encode(1, ValueType.INT32)
    assert [loads(ik_engine, mine), loads(ik_engine, theirs)] == [True, False]
