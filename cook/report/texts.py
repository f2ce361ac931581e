"""How reports write names and figures: names are data and may hold anything, figures have one form
each, and what was not measured is nothing."""

from __future__ import annotations

from collections.abc import Iterable
from math import floor, log10

from cook.output import printable
from cook.record.record import Figures, Quality
from cook.units import number


def plain(text: str) -> str:
    """``text`` with what acts instead of being seen as escapes; line ends and tabs stay."""
    return printable(text, kept="\n\t")


def clipped(text: str, most: int) -> str:
    """:func:`plain` text of at most ``most`` characters; an ellipsis stands for the rest."""
    clean = plain(text[: most + 1])
    return clean if len(clean) <= most else clean[: most - 1] + "…"


def named(names: Iterable[str], most: int = 4, longest: int = 60) -> str:
    """``A, B and 3 more``."""
    every = list(names)
    head = ", ".join(clipped(name, longest) for name in every[:most])
    return head if len(every) <= most else f"{head} and {len(every) - most} more"


def with_error(value: float | None, error: float | None, digits: int = 4) -> str | None:
    """``3.1416 ± 0.0012``; the value alone where its error is not known."""
    if value is None or error is None:
        return number(value, f".{digits}f")
    return f"{value:.{digits}f} ± {error:.{digits}f}"


def perplexity(quality: Quality | None) -> str | None:
    """With its standard error."""
    return with_error(quality.perplexity, quality.perplexity_error) if quality else None


def divergence(quality: Quality | None, digits: int = 4) -> str | None:
    """Mean KLD in nats with its standard error."""
    return with_error(quality.mean_kld, quality.mean_kld_error, digits) if quality else None


def tokens_per_s(value: float | None) -> str | None:
    """At least two decimals and four digits: quotients of such figures agree to two decimals."""
    if value is None:
        return None
    return f"{value:.{2 if value >= 10 or value <= 0 else 3 - floor(log10(value))}f}"


def binary_unit(largest_bytes: int) -> tuple[int, str]:
    """(bytes, name) of the unit that a column or an axis up to ``largest_bytes`` has."""
    return (1 << 30, "GiB") if largest_bytes >= 1 << 29 else (1 << 20, "MiB")


def counts(figures: Figures | None) -> str | None:
    """``accepted/drafted``; None where nothing was drafted."""
    if figures is None or figures.acceptance_rate is None:
        return None
    return f"{figures.accepted}/{figures.drafted}"
