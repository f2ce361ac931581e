"""The real client, made quiet, and its failures as ours.

The client's warnings print whole URLs, and the URLs that the Hub signs for a transfer are
credentials of their own: so its log is silent, and a message of ours holds no URL and no token.
What may succeed another time is tried again, a bounded number of times, longer apart each time.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from cook.engines.process.outcome import clean
from cook.errors import CookError, InputError, PrerequisiteError, StepError

if TYPE_CHECKING:
    from huggingface_hub import HfApi

T = TypeVar("T")


TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses that the same request may not meet again."""

_URL = re.compile(r"https?://\S+")
_TOKEN = re.compile(r"\b(?:hf|api_org)_[A-Za-z0-9]{8,}\b")
_LONGEST = 300
_CHECK = "check the name and the revision; for a gated or private one run `hf auth login`"


def api() -> HfApi:
    """The client, on the endpoint of ``HF_ENDPOINT``, made quiet."""
    from huggingface_hub import HfApi, constants
    from huggingface_hub.utils.logging import set_verbosity
    from huggingface_hub.utils.tqdm import disable_progress_bars

    constants.HF_HUB_DISABLE_TELEMETRY = True
    set_verbosity(logging.CRITICAL)
    for below in ("httpx2", "httpcore2"):  # they print every request, address and all
        logging.getLogger(below).setLevel(logging.WARNING)
    disable_progress_bars()
    return HfApi(endpoint=constants.ENDPOINT, library_name="cook")


def offline() -> bool:
    """Whether ``HF_HUB_OFFLINE`` forbids every request."""
    from huggingface_hub import constants

    return bool(constants.is_offline_mode())


def _with_causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def status_of(error: BaseException) -> int | None:
    """The HTTP status that ``error`` or one of its causes reports."""
    from huggingface_hub.errors import HfHubHTTPError

    answers = (e.response for e in _with_causes(error) if isinstance(e, HfHubHTTPError))
    return next((answer.status_code for answer in answers), None)


def unreachable(error: BaseException) -> bool:
    """Whether ``error`` is about the connection, not about what the Hub answered."""
    import httpx2
    from huggingface_hub.errors import HfHubHTTPError

    return any(
        isinstance(e, httpx2.TransportError) and not isinstance(e, HfHubHTTPError)
        for e in _with_causes(error)
    )


def transient(error: BaseException) -> bool:
    """Whether another try may succeed where ``error`` came up.

    A body cut short is an OSError without a number in the client; an error page where JSON was
    due is a JSONDecodeError.
    """
    if isinstance(error, CookError):
        return False
    if unreachable(error) or isinstance(error, json.JSONDecodeError):
        return True
    status = status_of(error)
    if status is not None:
        return status in TRANSIENT
    if isinstance(error, (ConnectionError, TimeoutError)):
        return True
    if type(error) is RuntimeError:  # how the Xet client reports a transfer that failed
        return error.__cause__ is None
    return type(error) is OSError and error.errno is None


def reason(error: BaseException) -> str:
    """Why something is tried again, in a few words."""
    status = status_of(error)
    if status is not None:
        return f"the Hub answered {status}"
    if unreachable(error):
        return f"the connection failed ({type(error).__name__})"
    return scrubbed(str(error)) if type(error) is OSError else type(error).__name__


def hub_error(what: str, error: BaseException) -> CookError:
    """The error to raise for ``error``, met while ``what`` was wanted."""
    from huggingface_hub.errors import (
        GatedRepoError,
        OfflineModeIsEnabled,
        RemoteEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    if isinstance(error, CookError):
        return error
    if isinstance(error, OfflineModeIsEnabled):
        return PrerequisiteError(
            f"{what}: not on this disk, and HF_HUB_OFFLINE forbids fetching it",
            hint="unset HF_HUB_OFFLINE, or fetch it before",
        )
    if isinstance(error, GatedRepoError):
        return PrerequisiteError(
            f"{what}: the repository is gated and this account has no access",
            hint="accept its terms on its page, then run `hf auth login`",
        )
    if isinstance(error, RepositoryNotFoundError):
        return InputError(f"{what}: no such repository, or a private one", hint=_CHECK)
    if isinstance(error, RevisionNotFoundError):
        return InputError(f"{what}: the repository has no such revision", hint=_CHECK)
    if isinstance(error, RemoteEntryNotFoundError):
        return InputError(f"{what}: the repository has no such file", hint=_CHECK)
    return _refused(what, error)


def _refused(what: str, error: BaseException) -> CookError:
    status = status_of(error)
    if status == 401:
        return PrerequisiteError(
            f"{what}: the Hub did not accept the login", hint="run `hf auth login`"
        )
    if status == 403:
        return PrerequisiteError(
            f"{what}: this login may not do that{_said(error)}",
            hint="use a token with the right to write there: `hf auth login`",
        )
    if status is not None:
        again = "; what arrived is kept, the same command goes on" if status in TRANSIENT else ""
        return StepError(f"{what}: the Hub answered {status}{_said(error)}{again}")
    if unreachable(error):
        return PrerequisiteError(
            f"{what}: the Hub cannot be reached ({type(error).__name__})",
            hint="connect and run the same command again: what arrived is kept; or put the file "
            "on this disk and name its path in the recipe",
        )
    if isinstance(error, OSError) and error.errno is not None:
        where = f" ({error.filename})" if error.filename else ""
        return StepError(
            f"{what}: {error.strerror}{where}", hint="HF_HOME puts the cache on another disk"
        )
    return StepError(f"{what}: the Hub's answer is unusable ({type(error).__name__})")


def _said(error: BaseException) -> str:
    """What the server said, on one line, without URLs and tokens."""
    texts = (getattr(e, "server_message", None) for e in _with_causes(error))
    text = next(filter(None, texts), None)
    return f": {scrubbed(str(text))}" if text else ""


def scrubbed(text: str) -> str:
    """``text`` on one line, cut, without URLs and without anything like a token."""
    from huggingface_hub import get_token

    token = get_token()
    if token:
        text = text.replace(token, "<token>")
    text = _TOKEN.sub("<token>", _URL.sub("<url>", clean(text)))
    return " ".join(text.split())[:_LONGEST]


@dataclass(frozen=True)
class Retry:
    """``attempts`` in all; waits of ``first_s``, doubled up to ``longest_s``.

    A wait that the Hub asks for counts up to ``longest_asked_s``. The client has a few quick
    retries of its own inside each attempt. ``notice`` gets a line for every wait.
    """

    attempts: int = 24
    first_s: float = 1.0
    longest_s: float = 60.0
    longest_asked_s: float = 300.0
    notice: Callable[[str], None] = lambda text: None

    def wait(self, what: str, tried: int, error: BaseException) -> None:
        """Wait after attempt ``tried`` (from 1) failed with ``error``."""
        answer = getattr(error, "response", None)
        asked = answer.headers.get("retry-after", "") if answer is not None else ""
        asked_s = min(float(asked) if asked.isdigit() else 0.0, self.longest_asked_s)
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

        An attempt that ``gained`` ground (bytes of a file) counts as the first again: a long
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
                    raise hub_error(what, error) from None
                self.wait(what, tried, error)


PATIENT = Retry()
"""For transfers: about eighteen minutes without any gain, as a night's download needs."""

FIRST = Retry(attempts=8)
"""For the first word of a command that writes: two minutes."""

BRIEF = Retry(attempts=4)
"""For questions: seven seconds, then the Hub counts as out of reach."""
