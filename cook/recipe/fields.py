"""The base of every recipe model, and the field types that several of them share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    PlainSerializer,
    PlainValidator,
    StringConstraints,
    ValidationInfo,
    WithJsonSchema,
)

from cook.documents.spec import fault
from cook.recipe.sources import HubRef, SourceRef, parse_source


def _source(value: object, info: ValidationInfo) -> object:
    if isinstance(value, (Path, HubRef)):
        return value
    if not isinstance(value, str):
        raise fault("must be a path or an hf:// reference", hint="quote it")
    base = info.context.get("base") if isinstance(info.context, dict) else None
    try:
        return parse_source(value, base or Path())
    except ValueError as error:
        raise fault(str(error)) from None


SourceField = Annotated[
    SourceRef,
    PlainValidator(_source),
    PlainSerializer(str, return_type=str),
    WithJsonSchema({"type": "string", "minLength": 1, "maxLength": 4096}),
]
"""A path (relative to the recipe), ``demo://file``, or ``hf://org/name[@revision][/path]``."""


def _checked(check: Callable[[str], str]) -> Any:
    def validate(value: str) -> str:
        from cook.errors import InputError

        try:
            return check(value)
        except InputError as error:
            raise fault(error.message, hint=error.hint) from None

    return AfterValidator(validate)


def tensor_type(name: str) -> str:
    """The exact spelling of a tensor type; InputError with a suggestion when there is none."""
    from cook.formats.quant_types import by_name

    return by_name(name).name


def base_type(name: str) -> str:
    """The exact spelling of a base type of ``llama-quantize``; InputError with a suggestion."""
    from cook.errors import InputError
    from cook.formats.quant_types import ftype_by_name

    if name.upper() == "COPY":
        raise InputError("COPY makes no quant", hint="list the file under `drafts:` instead")
    return ftype_by_name(name).name


_TYPE = StringConstraints(min_length=1, max_length=32)
TensorType = Annotated[str, _TYPE, _checked(tensor_type)]
"""A tensor type by its engine's name, in any case: ``q4_K``, ``iq1_kt``, ``f16`` ..."""
BaseType = Annotated[str, _TYPE, _checked(base_type)]
"""A base type of ``llama-quantize``, in any case: ``Q4_K_M``, ``IQ1_KT`` ..."""
