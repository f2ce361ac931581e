"""Recipes from and as what the field's tools read and write."""

from __future__ import annotations

from enum import StrEnum


class Format(StrEnum):
    """``--custom-q`` of ik_llama.cpp, ``--tensor-type-file`` of llama.cpp, ``.recipe``, bash."""

    SCRIPT = "script"
    CUSTOM_Q = "custom-q"
    RECIPE = "recipe"
    TENSOR_TYPE_FILE = "tensor-type-file"
