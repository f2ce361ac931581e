"""What may be made of a model's output head, and what a file with another one is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cook.errors import InputError
from cook.formats.gguf import GgufFile, TensorInfo, read_gguf
from cook.formats.output_tensor import (
    has_output_type,
    output_tensor,
    require_output_type,
    with_output_type,
)
from cook.formats.quant_types import Flavour, by_name
from cook.paths import demo_dir
from cook.recipe.active import active_bytes
from cook.recipe.groups import Group

MAINLINE, IK = Flavour.LLAMA_CPP, Flavour.IK_LLAMA_CPP


@pytest.fixture
def draft() -> GgufFile:
    return read_gguf(demo_dir() / "draft-f16.gguf")


def tied(file: GgufFile) -> GgufFile:
    return replace(file, tensors=tuple(t for t in file.tensors if t.name != "output.weight"))


def typed(file: GgufFile, type_name: str, columns: int = 256, rows: int = 2048) -> GgufFile:
    head = TensorInfo("output.weight", (columns, rows), by_name(type_name).id)
    return replace(file, tensors=(head,))


def test_a_head_in_another_type_is_the_last_tensor(draft: GgufFile) -> None:
    made = with_output_type(draft, "q6_K")
    assert made.tensors[-1] == TensorInfo("output.weight", (256, 2048), by_name("q6_K").id)
    assert {t.name for t in made.tensors} == {t.name for t in draft.tensors}
    assert has_output_type(made, "q6_K")
    assert has_output_type(draft, "f16")
    saved = 256 * 2048 * (16 - by_name("q6_K").bpw) / 8
    assert (draft.tensor_bytes or 0) - (made.tensor_bytes or 0) == saved


def test_tied_embeddings_stay_and_are_then_read_by_rows(draft: GgufFile) -> None:
    file = tied(draft)
    assert output_tensor(file).name == "token_embd.weight"
    assert not has_output_type(file, "f16"), "it has none of its own"
    before, after = active_bytes(file), active_bytes(with_output_type(file, "q4_K"))
    assert after.read_bytes < before.read_bytes
    assert after.size_bytes > before.size_bytes
    assert Group.EMBEDDINGS in {g.group for g in after.groups}


@pytest.mark.parametrize("flavour", [MAINLINE, IK])
def test_what_is_precise_may_be_any_type_without_importance(
    draft: GgufFile, flavour: Flavour
) -> None:
    for source in ("f32", "f16", "bf16", "q8_0"):
        for wanted in ("q8_0", "q6_K", "q4_0", "iq4_nl", "q2_K", "bf16"):
            require_output_type(typed(draft, source), wanted, flavour)
    require_output_type(typed(draft, "q4_K"), "q4_K", flavour)  # it is so already
    require_output_type(tied(draft), "q6_K", flavour)


@pytest.mark.parametrize(
    ("file_type", "columns", "rows", "wanted", "flavour", "told"),
    [
        ("q6_K", 256, 2048, "q4_K", MAINLINE, "output.weight is q6_K: as q4_K it would have"),
        ("f16", 256, 2048, "iq2_xs", MAINLINE, "iq2_xs needs importance data"),
        ("f16", 192, 2048, "q6_K", MAINLINE, "192 x 2048 cannot be q6_K, which has blocks of 256"),
        ("f16", 256, 2046, "q4_k_r4", IK, "cannot be q4_k_r4, which has blocks of 256, 4 rows"),
    ],
)
def test_what_a_head_cannot_be_is_told(
    draft: GgufFile,
    file_type: str,
    columns: int,
    rows: int,
    wanted: str,
    flavour: Flavour,
    told: str,
) -> None:
    with pytest.raises(InputError) as failure:
        require_output_type(typed(draft, file_type, columns, rows), wanted, flavour)
    assert told in failure.value.message
    assert failure.value.hint


def test_a_file_without_a_head_is_no_model(draft: GgufFile, tmp_path: Path) -> None:
    file = replace(draft, path=tmp_path / "norms.gguf", tensors=draft.tensors[:0])
    with pytest.raises(InputError, match=r"norms\.gguf: has no tensor .token_embd\.weight"):
        require_output_type(file, "q8_0", MAINLINE)
