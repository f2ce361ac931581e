"""Documents with a ``schema_version``: written whole, and read back without trust."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from cook.errors import InputError
from cook.files import atomic_write
from cook.formats import strict_json

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T = TypeVar("T")

MAX_BYTES = 256 << 20


def write_versioned(document: dict[str, Any], path: Path) -> None:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False)
    with atomic_write(path) as file:
        file.write(text.encode())


_ADAPTERS: dict[type, TypeAdapter[Any]] = {}


def adapter_of(kind: type[T]) -> TypeAdapter[T]:
    """Made once a type: it takes longer than to read a document."""
    from pydantic import TypeAdapter

    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]


def json_values(document: object) -> dict[str, Any]:
    """``document``, a dataclass, as JSON values."""
    values: dict[str, Any] = adapter_of(type(document)).dump_python(document, mode="json")
    return values


def read_versioned(path: Path, kind: type[T], version: int, what: str, hint: str) -> T:
    """The ``kind`` in ``path``; InputError says what keeps it from being a ``what``, with ``hint``
    where the file can be read."""
    from pydantic import ValidationError

    try:
        if path.stat().st_size > MAX_BYTES:
            raise InputError(f"{path}: larger than {MAX_BYTES >> 20} MiB, not a cook {what}")
        text = path.read_text(encoding="utf-8")
        document = strict_json.loads(text)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    except ValueError as error:
        raise InputError(f"{path}: not JSON: {error}", hint=hint) from None
    found = document.get("schema_version") if isinstance(document, dict) else None
    if found != version:
        message = f"{path}: {what} schema version {found!r}, this cook reads {version}"
        raise InputError(message, hint=hint)
    try:
        # Strictly: a text such as "nan" is no number.
        return adapter_of(kind).validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise InputError(f"{path}: {where}: {first['msg']}", hint=hint) from None
    except InputError as error:  # settings that none can be
        raise InputError(f"{path}: {error.message}", hint=hint) from None
