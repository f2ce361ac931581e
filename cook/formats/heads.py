"""Draft heads, recognized by a file's header: they draft from their target's hidden states.

A head is a part of its target's file (multi-token-prediction or NextN layers), or a file of its
own that names the target's layers. Kinds and keys: llama.cpp's src/models (0c1e570) and
`common_speculative_types_from_gguf` of common/speculative.cpp.

And what else a file named as a model may be, by its header, not by its name: a part of one (a
vocabulary), or what is added to one (a LoRA adapter, a control vector, a projector). What is no
GGUF at all: :mod:`cook.formats.gguf`.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import StrEnum

from cook.errors import InputError
from cook.formats.gguf import GgufFile, MetadataArray, TensorInfo
from cook.formats.quant_types import Flavour

_NEXTN = re.compile(r"blk\.(\d{1,6})\.nextn\.eh_proj\.weight")
_BLOCK = re.compile(r"blk\.(\d{1,6})\.")
_NO_GRAPH: dict[str, Collection[str]] = {
    Flavour.LLAMA_CPP: ("bailingmoe2", "dots3note", "exaone-moe", "glm5-next"),
    Flavour.IK_LLAMA_CPP: ("bailingmoe2", "bailingmoe3"),
}
"""Architectures whose files carry heads that no graph of the engine runs."""
_COMPANIONS = ("deepseek4", "step35")
"""Architectures of which ik_llama.cpp takes a head from a file of its own
(`llama_model_mtp_package`, src/llama-model.cpp)."""


IMATRIX_TYPE = "imatrix"
"""``general.type`` of an importance matrix in GGUF."""
SPLICED = "cook.head"
"""Key of a target's file with another head than its own: which."""


class HeadKind(StrEnum):
    """How a head drafts."""

    MTP = "mtp"
    EAGLE3 = "eagle3"
    DFLASH = "dflash"
    DSPARK = "dspark"
    ASSISTANT = "assistant"


_WORDS = {
    HeadKind.MTP: "a multi-token-prediction head",
    HeadKind.EAGLE3: "an EAGLE-3 head",
    HeadKind.DFLASH: "a DFlash head",
    HeadKind.DSPARK: "a DSpark head",
    HeadKind.ASSISTANT: "a Gemma 4 assistant",
}


@dataclass(frozen=True)
class Head:
    """The head in a file. ``alone``: the file has no trunk, and is no model. ``blocks``: of which
    tensors it is made; empty where they are all tensors of the file."""

    kind: HeadKind
    alone: bool
    blocks: frozenset[int] = frozenset()

    @property
    def what(self) -> str:
        """It in words."""
        if not self.alone or self.kind is not HeadKind.MTP:
            return _WORDS[self.kind]
        held = ", ".join(map(str, sorted(self.blocks)))
        return f"{_WORDS[self.kind]} alone: block {held}, without those before"

    def tensors_of(self, file: GgufFile) -> list[TensorInfo]:
        """Those of ``file`` that are it."""
        return [t for t in file.tensors if self.alone or _block(t.name) in self.blocks]

    def needs(self, name: str) -> bool:
        """Whether a file of it alone holds the tensor ``name``: its own, and those outside of
        blocks (embeddings, output), as ``convert_hf_to_gguf.py --mtp`` writes them."""
        block = _block(name)
        return self.alone or block is None or block in self.blocks


def _block(name: str) -> int | None:
    return int(m[1]) if (m := _BLOCK.match(name)) else None


def head_of(file: GgufFile) -> Head | None:
    """The head that a file is, or holds next to its model; None for a model without one."""
    names = [tensor.name for tensor in file.tensors]
    return head_in(names, file.metadata.get("general.architecture"))


def head_in(names: Collection[str], architecture: object = None) -> Head | None:
    """The head among tensors of these names; None without one."""
    if architecture == "eagle3":
        return Head(HeadKind.EAGLE3, alone=True)
    if architecture == "dflash":
        marked = "markov_w1.weight" in names
        return Head(HeadKind.DSPARK if marked else HeadKind.DFLASH, alone=True)
    if architecture == "gemma4-assistant":
        return Head(HeadKind.ASSISTANT, alone=True)
    blocks = frozenset(int(m[1]) for name in names if (m := _NEXTN.fullmatch(name)))
    if not blocks:
        return None
    return Head(HeadKind.MTP, not any(name.startswith("blk.0.") for name in names), blocks)


def head_is_absent(file: GgufFile) -> int | None:
    """How many head layers the header counts where the file has none of their tensors."""
    count = _number(file, "nextn_predict_layers")
    return count if count and not any(".nextn." in t.name for t in file.tensors) else None


def head_alone(file: GgufFile) -> GgufFile:
    """``file`` as if it held its head alone, with the same metadata: a head is read so by
    llama.cpp. InputError where it holds none."""
    if (head := head_of(file)) is None:
        raise InputError(f"{file.path}: holds no head: {why_no_head(file)}")
    return replace(file, tensors=tuple(t for t in file.tensors if head.needs(t.name)))


_GIVES_ON = re.compile(r"\.(attn_output|ffn_down)(_exps|_shexp)?\.(weight|bias)$")


def gives_on(file: GgufFile) -> frozenset[str]:
    """Tensors of the MTP head in ``file`` through which its block adds to what goes past it: with
    zeros there the block does nothing."""
    head = head_of(file)
    found = head.tensors_of(file) if head is not None and head.kind is HeadKind.MTP else []
    return frozenset(tensor.name for tensor in found if _GIVES_ON.search(tensor.name))


def why_no_head(file: GgufFile) -> str:
    """Why ``file`` holds no head, in words."""
    if counted := head_is_absent(file):
        return f"its header counts {counted} layers of one, and it has no tensor of them"
    return "it has no block with `nextn` tensors"


def misfit(
    own: GgufFile, target: GgufFile, flavour: str, *, inside: bool | None = None
) -> str | None:
    """Why the head in ``own`` cannot draft for ``target`` on ``flavour``, as far as headers tell;
    None where it can. ``inside`` of the target's own file, in the place of the head there; None:
    where ``own`` is the target."""
    head = head_of(own)
    if inside is None:
        inside = own.path == target.path
    if head is None:
        return why_no_head(own)
    ours, theirs = _text(own), _text(target)
    if flavour == Flavour.IK_LLAMA_CPP and head.kind is HeadKind.EAGLE3:
        return "ik_llama.cpp has no EAGLE-3"
    if head.kind is HeadKind.MTP:
        if ours in _NO_GRAPH[flavour]:
            return f"{flavour} has no graph for the heads of {ours}, and leaves them unused"
        if ours != theirs:
            return f"it is of {ours}, and the target of {theirs}"
        if not inside and not head.alone:
            return "it is in a whole model, which would be loaded a second time"
        if not inside and only_inside(own, flavour):
            return f"ik_llama.cpp takes a head of {ours} only from inside of the target's own file"
        if inside and _block_tensors(own) != _block_tensors(target):
            return (
                f"{flavour} takes it only in the place of the target's own head, and that "
                f"{'has other tensors' if head_of(target) is not None else 'is not there'}"
            )
    wanted = _number(own, _WIDTHS[head.kind])
    has = _number(target, "embedding_length")
    if wanted is not None and has is not None and wanted != has:
        return f"it takes hidden states of {wanted} numbers, and the target's have {has}"
    layers, blocks = own.metadata.get(f"{ours}.target_layers"), _number(target, "block_count")
    ids = layers.values() if isinstance(layers, MetadataArray) else ()
    if blocks and (beyond := [i for i in ids if isinstance(i, int) and i > blocks]):
        return f"it reads layer {beyond[0]} of the target, which has {blocks}"
    return None


def only_inside(file: GgufFile, flavour: str) -> bool:
    """Whether ``flavour`` runs the head in ``file`` from nowhere else than inside of its target."""
    return flavour == Flavour.IK_LLAMA_CPP and _text(file) not in _COMPANIONS


def _block_tensors(file: GgufFile) -> set[tuple[str, tuple[int, ...]]]:
    """Names and shapes in the blocks of the head that ``file`` is or holds."""
    blocks = head.blocks if (head := head_of(file)) is not None else ()
    return {(t.name, t.shape) for t in file.tensors if _block(t.name) in blocks}


_WIDTHS = {
    HeadKind.MTP: "embedding_length",
    HeadKind.EAGLE3: "target_hidden_size",
    HeadKind.DFLASH: "target_hidden_size",
    HeadKind.DSPARK: "target_hidden_size",
    HeadKind.ASSISTANT: "embedding_length_out",
}
"""The key with the width of the hidden states that a head takes."""


def _text(file: GgufFile) -> str:
    value = file.metadata.get("general.architecture")
    return value if isinstance(value, str) else "an unnamed architecture"


def _number(file: GgufFile, key: str) -> int | None:
    value = file.metadata.get(f"{_text(file)}.{key}")
    return value if isinstance(value, int) else None


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
    kind, architecture = map(file.metadata.get, ("general.type", "general.architecture"))
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
