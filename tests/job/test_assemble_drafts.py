"""Types by layer and group, from the header of a real file."""

from __future__ import annotations

from pathlib import Path

from cook.formats.gguf import read_gguf
from cook.job.assemble import type_map
from cook.paths import demo_dir
from cook.record.record import TypeSpan

DRAFT = demo_dir() / "draft-f16.gguf"


def test_spans_account_for_every_matrix_once() -> None:
    matrices = [
        t for t in read_gguf(DRAFT).tensors if len(t.shape) > 1 and t.name.endswith(".weight")
    ]
    spans = type_map(DRAFT)
    assert sum(s.layers * s.elements for s in spans) == sum(t.elements for t in matrices)
    assert sum(s.layers * (s.size_bytes or 0) for s in spans) == sum(
        t.size_bytes or 0 for t in matrices
    )
    assert sum(s.layers * sum(s.types.values()) for s in spans) == len(matrices)


def test_layers_that_are_alike_become_one_span() -> None:
    experts = [s for s in type_map(DRAFT) if s.group == "routed_experts"]
    layers = {t.name.split(".")[1] for t in read_gguf(DRAFT).tensors if "ffn_up_exps" in t.name}
    assert len(experts) == 1
    assert experts[0].layers == len(layers)
    assert experts[0].types == {"f16": 3}
    assert experts[0].bpw == 16


def test_tensors_of_no_layer_have_none() -> None:
    spans = {s.group: s for s in type_map(DRAFT)}
    assert spans["embeddings"].first_layer is None
    assert spans["embeddings"].layers == 1


def test_no_file_and_no_model_are_empty(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"nothing")
    assert type_map(None) == ()
    assert type_map(tmp_path / "x.gguf") == ()
    assert type_map(tmp_path / "absent.gguf") == ()


def test_bits_of_an_unknown_type_are_unknown() -> None:
    assert TypeSpan("other", 0, 0, {"type 999": 1}, 256, None).bpw is None
