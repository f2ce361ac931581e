"""A signal ends cook once, wherever it strikes, and never half of a tidying up."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator

import pytest

from cook.signals import end_on_signals, require_going_on, signals_deferred


@pytest.fixture(autouse=True)
def listened(hangups: None) -> Iterator[None]:
    def state() -> list[object]:
        names = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        return [sys.unraisablehook, *map(signal.getsignal, names)]

    before = state()
    with end_on_signals():
        yield
    require_going_on()
    assert state() == before


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_interrupts(name: str) -> None:
    require_going_on()
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), getattr(signal, name))
    with pytest.raises(KeyboardInterrupt):
        require_going_on()


class Dropping:
    """Python drops what is raised while it is destroyed."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGHUP)


def test_what_python_drops_is_remembered(capfd: pytest.CaptureFixture[str]) -> None:
    """A build went on to its end, and said "Exception ignored"."""
    one = Dropping()
    del one
    assert capfd.readouterr().err == ""
    with pytest.raises(KeyboardInterrupt):
        require_going_on()


class Faulty:
    def __del__(self) -> None:
        raise ZeroDivisionError("shown")


def test_other_dropped_exceptions_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", shown.append)
    with end_on_signals():
        one = Faulty()
        del one
    assert len(shown) == 1


def test_tidying_up_is_not_broken_off() -> None:
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012
        with signals_deferred():
            with signals_deferred():
                os.kill(os.getpid(), signal.SIGINT)
                done.append("inner")
            done.append("outer")
        done.append("gone on")
    assert done == ["inner", "outer"]


def test_after_an_interrupt_tidying_up_goes_on() -> None:
    done = []
    try:
        os.kill(os.getpid(), signal.SIGINT)
    except KeyboardInterrupt:
        with signals_deferred():
            done.append("tidied")
    assert done == ["tidied"]
