"""The figures of one answer: the ``timings`` of its JSON, checked against each other."""

from __future__ import annotations

from typing import Any

from cook.formats.server_log_events import MAX_NAME, Answer, Event, Refused, Where, file_name

MAX_COUNT = 1 << 40


def answer_of(document: dict[str, Any], timings: dict[str, Any], where: Where) -> Event | None:
    """The answer in ``document``; None for a chunk whose totals are yet to come."""
    if document.get("stop") is False:  # a chunk of /completion: the last one has the totals
        return None
    n, ms = _count(timings.get("predicted_n")), _time(timings.get("predicted_ms"))
    told = _time(timings.get("predicted_per_second"))
    if n is None or ms is None:
        return Refused("its timings have no predicted_n and predicted_ms")
    if told is not None and not agrees(n, ms, told, first_is_free=True, digits=1e-3):
        return Refused(f"{n} tokens in {ms:g} ms are not {told:g} t/s")
    drafted = _count(timings.get("draft_n"))
    accepted = _count(timings.get("draft_n_accepted"))
    if drafted is None or accepted is None:
        drafted = accepted = None
    elif accepted > drafted:
        return Refused(f"{accepted} tokens accepted of {drafted} drafted")
    name, model = document.get("id"), document.get("model")
    return Answer(
        where=where,
        id=name[:MAX_NAME] if isinstance(name, str) else None,
        model=file_name(model) if isinstance(model, str) and model else None,
        prompt_n=_count(timings.get("prompt_n")),
        prompt_ms=_time(timings.get("prompt_ms")),
        predicted_n=n,
        predicted_ms=ms,
        told=told,
        drafted=drafted,
        accepted=accepted,
        by_depth=_by_depth(timings.get("draft_by_depth")),
    )


def _by_depth(value: Any) -> tuple[tuple[int, int, int], ...]:
    rows: list[tuple[int, int, int]] = []
    for row in value[:1024] if isinstance(value, list) else ():
        if not isinstance(row, dict):
            return ()
        depth, drafted = _count(row.get("depth")), _count(row.get("draft_n"))
        accepted = _count(row.get("draft_n_accepted"))
        if depth is None or drafted is None or accepted is None or accepted > drafted:
            return ()
        rows.append((depth, drafted, accepted))
    return tuple(rows)


def agrees(n: int, ms: float, rate: float, *, first_is_free: bool, digits: float) -> bool:
    """Whether ``rate`` is ``n`` tokens over ``ms``, rounded to ``digits``.

    Mainline leaves the first token out of the rate, ik and older builds do not.
    """
    if ms <= 0:
        return True
    slack = digits + rate * (digits / ms + 1e-6)
    counted = (n, n - 1) if first_is_free else (n,)
    return any(abs(1000 * tokens / ms - rate) <= slack for tokens in counted)


def _count(value: Any) -> int | None:
    good = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MAX_COUNT
    return value if good else None


def _time(value: Any) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    good = 0 <= value < 1e15  # false for NaN as well
    return float(value) if good else None
