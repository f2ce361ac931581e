"""The formats that quants are read from and written as."""

from __future__ import annotations

from enum import StrEnum


class Format(StrEnum):
    """``--custom-q`` of ik_llama.cpp, ``--tensor-type-file`` of llama.cpp, ``.recipe``, bash."""

    SCRIPT = "script"
    CUSTOM_Q = "custom-q"
    RECIPE = "recipe"
    TENSOR_TYPE_FILE = "tensor-type-file"


PLACEHOLDER = "MODEL-BF16.gguf"
"""What a model that is not named is called."""
