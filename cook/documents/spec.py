"""The base of everything that a user writes down: frozen, strict, its faults in our own words."""

from __future__ import annotations

from typing import Annotated

from pydantic import (
    BaseModel,
    ConfigDict,
    StringConstraints,
)
from pydantic_core import PydanticCustomError

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


Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
"""A name that is also safe as a file name."""


TextLine = Annotated[
    str, StringConstraints(min_length=1, max_length=4096, pattern=r"^[^\x00-\x1f]+$")
]
"""Text on one line, at most 4096 characters."""
