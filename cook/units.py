"""How amounts read: sizes in binary units, as llama.cpp's users know them."""

from __future__ import annotations

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def size(size_bytes: int | None) -> str | None:
    """``"23.61 GiB"``; None stays None, for a table to show as missing."""
    if size_bytes is None:
        return None
    amount = float(size_bytes)
    for unit in _UNITS:
        if abs(amount) < 1024 or unit == _UNITS[-1]:
            return f"{size_bytes} B" if unit == "B" else f"{amount:.2f} {unit}"
        amount /= 1024
    raise AssertionError("unreachable")


def short_size(size_bytes: int | None) -> str | None:
    """A size as a person writes it: ``"4 MiB"``, ``"23.6 GiB"``; None stays None."""
    exact = size(size_bytes)
    if exact is None or exact.endswith(" B"):
        return exact
    amount, unit = exact.split(" ")
    return f"{float(amount):.1f}".removesuffix(".0") + f" {unit}"


def count(number: int | None) -> str | None:
    """A large count for people: ``"27.9 M"``; None stays None."""
    if number is None:
        return None
    for limit, unit in ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "k")):
        if number >= limit:
            return f"{number / limit:.1f} {unit}"
    return str(number)


def number(value: float | None, form: str = ".2f") -> str | None:
    """``value`` written as ``form`` says; None stays None."""
    return None if value is None else format(value, form)


def plural(number: int, noun: str, nouns: str | None = None) -> str:
    """``"1 fault"``, ``"2 faults"``; ``nouns`` where more than an s makes it several."""
    return f"{number} {noun if number == 1 else nouns or f'{noun}s'}"


def duration(seconds: float | None) -> str | None:
    """``1 h 02 min``, ``3 min 20 s``, ``4.1 s``; None stays None."""
    if seconds is None:
        return None
    if seconds >= 3600:
        return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60):02} min"
    if seconds >= 60:
        return f"{int(seconds // 60)} min {int(seconds % 60):02} s"
    return f"{seconds:.1f} s"
