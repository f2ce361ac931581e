"""Try again, a bounded number of times, longer apart each time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from cook.hub.client import failed, transient, wait_asked_s

T = TypeVar("T")


@dataclass(frozen=True)
class Retry:
    """``attempts`` in all; waits of ``first_s``, doubled up to ``longest_s``.

    A wait that the Hub asks for counts up to ``longest_asked_s``. The client has a few quick
    retries of its own inside each attempt. ``sleep`` is settable for tests.
    """

    attempts: int = 24
    first_s: float = 1.0
    longest_s: float = 60.0
    longest_asked_s: float = 300.0
    sleep: Callable[[float], None] = lambda seconds: time.sleep(seconds)

    def wait(self, tried: int, error: BaseException) -> None:
        """Wait after attempt ``tried`` (from 1) failed with ``error``."""
        asked = wait_asked_s(error)
        own = min(self.first_s * 2 ** (tried - 1), self.longest_s)
        self.sleep(max(own, min(asked, self.longest_asked_s)) if asked is not None else own)

    def run(
        self,
        what: str,
        action: Callable[[], T],
        *,
        again: Callable[[BaseException], bool] = transient,
        gained: Callable[[], bool] = lambda: False,
    ) -> T:
        """``action()``, tried while ``again(error)``; ``what`` names it in the error.

        An attempt that ``gained`` ground (bytes of a file) starts the count anew: a long
        transfer may meet many faults, as long as it goes forward.
        """
        tried = 0
        while True:
            tried += 1
            try:
                return action()
            except Exception as error:
                if gained():
                    tried = 1
                if tried >= self.attempts or not again(error):
                    raise failed(what, error) from None
                self.wait(tried, error)


PATIENT = Retry()
"""For transfers: about eighteen minutes without any gain, as a night's download needs."""

BRIEF = Retry(attempts=4)
"""For questions: seven seconds, then the Hub counts as out of reach."""
