"""The base of every recipe model, and the field types that several of them share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    PlainSerializer,
    PlainValidator,
    StringConstraints,
    ValidationInfo,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError

from cook.recipe.sources import HubRef, Source, parse_source

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,63}$"


class Spec(BaseModel):
    """A part of a recipe: frozen, and strict about keys and types."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        arbitrary_types_allowed=True,
        hide_input_in_errors=True,
    )


def fault(message: str, *, hint: str | None = None, offset: int = 0) -> PydanticCustomError:
    """A validation error in our own words; ``offset`` is the place inside the scalar."""
    return PydanticCustomError("cook", "{text}", {"text": message, "hint": hint, "offset": offset})


def one_or_many(value: object) -> object:
    """A lone value where a list is wanted is a list of one."""
    return tuple(value) if isinstance(value, (list, tuple)) else (value,)


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
    Source,
    PlainValidator(_source),
    PlainSerializer(str, return_type=str),
    WithJsonSchema({"type": "string", "minLength": 1, "maxLength": 4096}),
]
"""A path (relative to the recipe), ``demo://file``, or ``hf://org/name[@revision][/path]``."""

Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
"""A name that is also safe as a file name."""

Line = Annotated[str, StringConstraints(min_length=1, max_length=4096, pattern=r"^[^\x00-\x1f]+$")]
"""Text on one line, at most 4096 characters."""


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
