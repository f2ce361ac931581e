"""Signals that end cook: tidily at once, and never lost.

A handler's exception is raised wherever Python happens to be. In a callback of C code or a
destructor Python drops it; in the midst of tidying up it would leave half of that undone. So that
a signal came is remembered as well, and tidying up is done before it is raised.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sys import UnraisableHookArgs


class _State:
    came = False
    """Whether a signal asked cook to end."""
    held = 0
    """Blocks of :func:`signals_deferred` that are open."""


@contextmanager
def end_on_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end cook as Ctrl-C does, with children stopped; the second one kills."""
    hook_before = sys.unraisablehook

    def dropped(what: UnraisableHookArgs) -> None:
        if not isinstance(what.exc_value, KeyboardInterrupt):
            hook_before(what)

    handlers = {}
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        # nohup and some supervisors have the signal ignored on purpose: leave it so.
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
            handlers[number] = signal.signal(number, _end)
    sys.unraisablehook = dropped
    try:
        yield
    finally:
        sys.unraisablehook = hook_before
        for number, handler in handlers.items():
            signal.signal(number, handler or signal.SIG_DFL)
        _State.came = False


def require_going_on() -> None:
    """KeyboardInterrupt where a signal asked cook to end and Python has dropped that."""
    if _State.came:
        raise KeyboardInterrupt


@contextmanager
def signals_deferred() -> Iterator[None]:
    """A block that a signal does not break off: it is raised at the end.

    Only the main thread is ever broken off.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = _State.came
    _State.held += 1
    try:
        yield
    finally:
        _State.held -= 1
    if _State.came and not before and not _State.held:
        raise KeyboardInterrupt


def _end(number: int, frame: FrameType | None) -> None:
    if number != signal.SIGINT:
        signal.signal(number, signal.SIG_DFL)
    _State.came = True
    if not _State.held:
        raise KeyboardInterrupt
