"""What a file named as a model really is, by its header, not by its name.

A GGUF holds a model, or a part of one (a head alone, a vocabulary), or what is added to one (a LoRA
adapter, a control vector, a projector). What is no GGUF at all: :mod:`cook.formats.gguf`.
"""

from __future__ import annotations

from dataclasses import dataclass

from cook.errors import InputError
from cook.formats.gguf import GgufFile
from cook.formats.heads import head_of

IMATRIX_TYPE = "imatrix"
"""``general.type`` of an importance matrix in GGUF."""


@dataclass(frozen=True)
class NoModel:
    """``what`` a file is in place of a model (``a LoRA adapter``), and the ``mend``."""

    what: str
    mend: str


def require_model(file: GgufFile) -> None:
    """InputError where this GGUF is no model of its own, with what it is and how it is used."""
    if (found := no_model(file)) is not None:
        raise InputError(f"{file.path}: this is {found.what}, no model", hint=found.mend)


def no_model(file: GgufFile) -> NoModel | None:
    """What this GGUF is if no engine can run it as a model of its own; None for a model.

    As the engines and their converters write them: ``general.type`` and ``adapter.type``
    (gguf-py/gguf/constants.py), and the architectures of llama.cpp's src/llama-arch.cpp.
    """
    kind, architecture = _string(file, "general.type"), _string(file, "general.architecture")
    if kind == IMATRIX_TYPE:
        return NoModel("an importance matrix", "name it under `imatrix: {file: ...}`")
    if architecture == "controlvector":
        return NoModel(
            "a control vector", "name a model, and give the vector to its server in `args.extra`"
        )
    if kind == "adapter" or any(t.name.endswith(".lora_a") for t in file.tensors):
        return NoModel(
            "a LoRA adapter",
            "merge it into its model first: llama-export-lora -m MODEL --lora FILE",
        )
    if kind == "mmproj" or architecture == "clip":
        return NoModel("a multimodal projector", "name the language model that it belongs to")
    if not file.tensors:
        return NoModel("a vocabulary without weights", "name the model's own file")
    if (head := head_of(file)) is not None and head.alone:
        return NoModel(
            head.what, "it drafts next to its own target: cook score --target TARGET.gguf HEAD.gguf"
        )
    return None


def _string(file: GgufFile, key: str) -> str | None:
    value = file.metadata.get(key)
    return value if isinstance(value, str) else None
