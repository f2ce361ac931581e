"""A ``llama-server`` that somebody else runs, at a given address.

What it states is checked before use; answers are bounded in size and as a whole in time. The key
comes from the environment or a file and goes to this address only (redirects are not followed).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cook.closing import Closing
from cook.engines.server_api import Completion, ServerClient, error_text, parse_completion
from cook.errors import InputError, StepError

KEY_VARIABLE = "COOK_API_KEY"
READ_TIMEOUT_S = 3600.0
"""A target of a trillion weights may take minutes for one reply, and answers in one piece."""
GET_TIMEOUT_S = 30.0
MAX_ANSWER_BYTES = 256 << 20
"""Of a completion, whose probabilities may be many."""
MAX_FACT_BYTES = 16 << 20
"""Of every other answer: small numbers and texts, which JSON swells by a hundred in memory."""
MAX_KEY_BYTES = 16 << 10


def is_url(target: str) -> bool:
    """Whether a target is an address rather than a file."""
    return target.startswith(("http://", "https://"))


def checked_url(url: str) -> str:
    """``url`` without a trailing slash; InputError for one that is no plain http(s) address."""
    wrong = InputError(f"{url!r} is no address", hint="such as http://127.0.0.1:8080")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise wrong from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise wrong
    if parts.username or parts.password or parts.query or parts.fragment:
        raise InputError(
            f"{parts.scheme}://{parts.hostname}: an address with a user, key or query is refused",
            hint=f"give the key in ${KEY_VARIABLE} or --api-key-file",
        )
    return url.rstrip("/")


def is_loopback(url: str) -> bool:
    """Whether ``url`` stays on this machine: by its host, for ``http://127.0.0.1.example`` lies."""
    from ipaddress import ip_address

    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def read_key(path: Path | None) -> str | None:
    """The key in ``path``, else in ``$COOK_API_KEY``, else None; InputError for a bad one."""
    if path is None:
        key = os.environ.get(KEY_VARIABLE, "").strip()
        if not key:
            return None
        where = f"${KEY_VARIABLE}"
    else:
        where = str(path)
        try:
            with path.open("rb") as file:
                key = file.read(MAX_KEY_BYTES + 1).decode("utf-8", "replace").strip()
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    sound = key.isascii() and key.isprintable() and " " not in key
    if not key or len(key) > MAX_KEY_BYTES or not sound:
        raise InputError(f"{where}: holds no key", hint="one line with the key and nothing else")
    return key


class Remote(ServerClient, Closing):
    """A server at ``url``; StepError when it cannot be reached or refuses. A context manager.

    ``model``: which of its models is asked, where it is a router of several. ``read_timeout_s``:
    the most that an answer may take in all: connecting, waiting for it, and reading it.
    """

    def __init__(
        self,
        url: str,
        key: str | None = None,
        *,
        model: str | None = None,
        read_timeout_s: float = READ_TIMEOUT_S,
    ) -> None:
        import asyncio

        import httpx

        self.url, self.model, self._limit_s = checked_url(url), model, read_timeout_s
        super().__init__(self.url, model)
        self._loop = asyncio.Runner()
        self._http = httpx.AsyncClient(
            base_url=self.url,
            headers={
                # Answers are read as they come: what is packed all the same is no JSON.
                "Accept-Encoding": "identity",
                **({"Authorization": f"Bearer {key}"} if key else {}),
            },
            # A redirect or a proxy would take the key elsewhere.
            follow_redirects=False,
            trust_env=False,
            timeout=httpx.Timeout(None, connect=10.0),
        )

    def close(self) -> None:
        if not self._http.is_closed:
            self._loop.run(self._http.aclose())
            self._loop.close()

    def get(self, path: str) -> Any:
        """The JSON at ``path``; None where the server has no such thing (404, 501, no JSON)."""
        status, answer = self._get(path)
        if status in (401, 403):
            raise StepError(
                f"{self.url} refuses the key (status {status})",
                hint=f"give it in ${KEY_VARIABLE} or --api-key-file FILE",
            )
        if status == 503:
            raise StepError(f"{self.url} is not ready (status 503)", hint="is it still loading?")
        if status == 500 and self.model is not None:
            raise StepError(f"{self.url}: {error_text(answer, b'no reason given')}")
        return answer if status == 200 else None

    def complete(self, payload: Mapping[str, object]) -> Completion:
        """POST /completion, parsed."""
        return self._post("/completion", payload, parse_completion)

    def _answer(
        self, method: str, path: str, payload: Mapping[str, object] | None = None
    ) -> tuple[int, bytes]:
        import httpx

        # A router loads the model first.
        quick = method == "GET" and self.model is None
        limit_s = min(GET_TIMEOUT_S, self._limit_s) if quick else self._limit_s
        most = MAX_ANSWER_BYTES if path == "/completion" else MAX_FACT_BYTES
        try:
            return self._loop.run(self._exchange(method, path, payload, limit_s, most))
        except (httpx.TransportError, TimeoutError) as error:
            late = f"the answer took more than {limit_s:g} s"
            why = late if isinstance(error, TimeoutError) else str(error)[:200] or "no answer"
            raise StepError(
                f"{self.url}: {type(error).__name__}: {why}",
                hint="is the server running? the same command again asks only what is missing",
            ) from None

    async def _exchange(
        self,
        method: str,
        path: str,
        payload: Mapping[str, object] | None,
        limit_s: float,
        most: int,
    ) -> tuple[int, bytes]:
        """Status and body, which may drip as slowly as it likes: the limit is for all of it."""
        import asyncio

        body = bytearray()
        async with (
            asyncio.timeout(limit_s),
            self._http.stream(method, path, json=payload) as response,
        ):
            async for chunk in response.aiter_raw():
                body += chunk
                if len(body) > most:
                    raise StepError(f"{self.url} answered {path} with more than {most >> 20} MiB")
        return response.status_code, bytes(body)
