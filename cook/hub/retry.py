"""Try again, a bounded number of times, longer apart each time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from cook.hub.client import failed, reason, transient, wait_asked_s

T = TypeVar("T")


@dataclass(frozen=True)
class Retry:
    """``attempts`` in all; waits of ``first_s``, doubled up to ``longest_s``.

    A wait that the Hub asks for counts up to ``longest_asked_s``. The client has a few quick
    retries of its own inside each attempt. ``notice`` is told of every wait.
    """

    attempts: int = 24
    first_s: float = 1.0
    longest_s: float = 60.0
    longest_asked_s: float = 300.0
    notice: Callable[[str], None] = lambda text: None

    def wait(self, what: str, tried: int, error: BaseException) -> None:
        """Wait after attempt ``tried`` (from 1) failed with ``error``."""
        asked_s = min(wait_asked_s(error) or 0.0, self.longest_asked_s)
        wait_s = max(min(self.first_s * 2 ** (tried - 1), self.longest_s), asked_s)
        self.notice(f"{what}: {reason(error)}; again in {wait_s:.0f} s")
        time.sleep(wait_s)

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
                self.wait(what, tried, error)


PATIENT = Retry()
"""For transfers: about eighteen minutes without any gain, as a night's download needs."""

FIRST = Retry(attempts=8)
"""For the first word of a command that writes: two minutes."""

BRIEF = Retry(attempts=4)
"""For questions: seven seconds, then the Hub counts as out of reach."""
