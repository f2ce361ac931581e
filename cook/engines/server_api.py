"""A typed client of ``llama-server``, cook's own or another's: what it answers is checked before
anyone uses it.

Both flavours' wire formats are in docs/internals/engines.md#answers. An answer that is no JSON, or
not of the expected form, is a StepError naming the field. Of a server that somebody else runs
(:class:`Remote`), answers are also bounded in size and as a whole in time; its key comes from the
environment or a file and goes to its address only (redirects are not followed).
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar
from urllib.parse import urlencode, urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cook.closing import Closing
from cook.engines.speculation import speculators_of
from cook.errors import InputError, StepError
from cook.formats import strict_json

_STOPS = ("eos", "word", "limit")
_EVENT = b"data: "
StreamPart = tuple[float, bytes]
"""When a part of a streamed answer came, by :func:`time.monotonic`, and its JSON."""
Stop = tuple[float, float]
"""From when to when a server was stopped, by the same clock."""
S = TypeVar("S")
T = TypeVar("T")
Count = Annotated[int, Field(ge=0, lt=1 << 48)]
Milliseconds = Annotated[float, Field(ge=0, le=1e15)]


class _Answer(BaseModel):
    """Fields of a server's answer; others are let be, and no number is made of a text."""

    model_config = ConfigDict(strict=True, frozen=True)


class TopToken(_Answer):
    """One candidate at one position."""

    id: Count
    logprob: Annotated[float, Field(le=1e-6)]


class TokenProbability(TopToken):
    """The emitted token with its log-probability, and the likeliest ones, best first."""

    top_logprobs: list[TopToken]


class _Depth(_Answer):
    depth: Count
    draft_n: Count
    draft_n_accepted: Count


class _Timings(_Answer):
    prompt_n: Count
    prompt_ms: Milliseconds
    predicted_n: Count
    predicted_ms: Milliseconds
    draft_n: Count | None = None
    draft_n_accepted: Count | None = None
    draft_by_depth: list[_Depth] | None = None


class _Written(_Answer):
    """A /completion; ik says why it stopped by ``stopped_*``, and has no ``tokens``."""

    content: str
    timings: _Timings
    tokens: list[Count] | None = None
    stop_type: str | None = None
    stopped_eos: bool = False
    stopped_word: bool = False
    stopped_limit: bool = False
    generation_settings: dict[str, Any] | None = None
    completion_probabilities: list[dict[str, Any]] | None = None


class _Tokens(_Answer):
    tokens: list[Count]


class _Content(_Answer):
    content: str


class _Part(_Content):
    """Of a streamed /completion."""

    tokens: list[Count] = []
    stop: bool = False


class _Prompt(_Answer):
    prompt: str


@dataclass(frozen=True)
class DepthCount:
    """Tokens ``drafted`` at ``depth`` (1 is the first of a draft), ``accepted`` of these.

    ik reports it per request.
    """

    depth: int
    drafted: int
    accepted: int


@dataclass(frozen=True)
class Completion:
    """One answer. Times in milliseconds as the server measured them.

    ``tokens`` is None where the engine does not return ids (ik). ik under drafting leaves the
    tokens of the last draft out of ``text`` when ``n_predict`` falls into it, though it counts
    them: a text that is a beginning of the other is no difference there. ``prompt_n`` counts the
    prompt tokens that were evaluated (none are taken from a cache). ``draft_n`` and
    ``draft_n_accepted`` are None when nothing was drafted: the engines then leave them out.
    ``stop`` is why it ended: ``eos``, ``limit``, ``word`` or ``none``. ``probabilities`` are
    mainline's; ik's have no ids. ``speculators`` are the kinds of speculation that the server has,
    where it reports them (mainline). ``heard_s``: when its parts came, where it was streamed.
    """

    text: str
    tokens: tuple[int, ...] | None
    prompt_n: int
    prompt_ms: float
    predicted_n: int
    predicted_ms: float
    draft_n: int | None
    draft_n_accepted: int | None
    stop: str
    probabilities: tuple[TokenProbability, ...] = ()
    by_depth: tuple[DepthCount, ...] = ()
    speculators: tuple[str, ...] = ()
    heard_s: tuple[float, ...] = ()

    @property
    def late_reading_ms(self) -> float | None:
        """Of ``predicted_ms``, what came before the first drafted tokens, less one cycle as long as
        the mean of the others: the draft's reading of the prompt where it reads at its first draft
        (ik). None where the answer was not streamed, or does not show it."""
        if self.draft_n_accepted is None:
            return None
        # Parts are timed by our clock; the server's began ``predicted_ms`` before the end, and with
        # the first token, which nothing was drafted for.
        others = self.predicted_n - 2 - self.draft_n_accepted  # by token identity, less the first
        for at_s in self.heard_s[:-1]:
            rest_ms = (self.heard_s[-1] - at_s) * 1000
            first_ms, cycle_ms = self.predicted_ms - rest_ms, rest_ms / max(others, 1)
            if others > 0 and rest_ms > 0 and first_ms > cycle_ms / 2:
                return max(0.0, first_ms - cycle_ms)
        return None

    def without(self, stops: Sequence[Stop], answered_s: float) -> Completion:
        """The same, which came at ``answered_s``, as if its server had not been stopped: its own
        clock goes on meanwhile, and ends as the answer comes."""
        if not stops:
            return self
        writing_s = answered_s - self.predicted_ms / 1000
        reading_s = writing_s - self.prompt_ms / 1000
        return replace(
            self,
            prompt_ms=ran_ms(reading_s, writing_s, stops),
            predicted_ms=ran_ms(writing_s, answered_s, stops),
            heard_s=tuple(answered_s - ran_ms(s, answered_s, stops) / 1000 for s in self.heard_s),
        )

    @property
    def decode_tokens_per_s(self) -> float | None:
        """Tokens after the first / decode time; the engines' own rates count differently."""
        if self.predicted_n < 2 or self.predicted_ms <= 0:
            return None
        return (self.predicted_n - 1) * 1000.0 / self.predicted_ms


def ran_ms(start_s: float, end_s: float, stops: Sequence[Stop]) -> float:
    """For how long a server ran between two times."""
    stopped = (max(0.0, min(end, end_s) - max(start, start_s)) for start, end in stops)
    return 1000 * (end_s - start_s - sum(stopped))


class ServerClient(ABC):
    """What any llama-server is asked, cook's own or another's; messages call it ``name``.

    ``model``: which one is asked of a router, by its name or alias.
    """

    def __init__(self, name: str, model: str | None = None) -> None:
        self._name = name
        self._model = {"model": model} if model is not None else {}

    @abstractmethod
    def _answer(
        self, method: str, path: str, payload: Mapping[str, object] | None = None
    ) -> tuple[int, bytes]:
        """Status and body of what is answered; StepError where nothing is."""

    def tokenize(self, text: str, *, add_special: bool = False) -> tuple[int, ...]:
        """Token ids of ``text``; special tokens in it are parsed as such."""
        payload = {"content": text, "add_special": add_special, "parse_special": True}
        return tuple(self._post("/tokenize", payload, _Tokens.model_validate).tokens)

    def detokenize(self, tokens: Sequence[int]) -> str:
        """Text of ``tokens``."""
        payload = {"tokens": list(tokens)}
        return self._post("/detokenize", payload, _Content.model_validate).content

    def apply_template(self, messages: Sequence[Mapping[str, str]]) -> str:
        """``messages``, each its role and content, rendered by the model's own chat template."""
        payload = {"messages": list(messages)}
        return self._post("/apply-template", payload, _Prompt.model_validate).prompt

    def _get(self, path: str) -> tuple[int, Any]:
        """``(status, JSON)`` of a GET; the JSON is None when the body is none."""
        query = f"?{urlencode(self._model)}" if self._model else ""
        status, body = self._answer("GET", path + query)
        return status, parse_json(body)

    def _post(self, path: str, payload: Mapping[str, object], parse: Callable[[Any], T]) -> T:
        """What ``parse`` makes of the JSON that is answered with status 200; it may raise
        ValueError."""
        status, body = self._answer("POST", path, {**payload, **self._model})
        self.require_ok(path, status, body)
        return self.parsed(path, parse, parse_json(body))

    def require_ok(self, path: str, status: int, body: bytes) -> None:
        """StepError with what was answered, unless that has status 200."""
        if status != 200:
            text = error_text(parse_json(body), body)
            raise StepError(f"{self._name} answered {path} with status {status}: {text}")

    def parsed(self, path: str, parse: Callable[[S], T], answer: S) -> T:
        """What ``parse`` makes of an answer; StepError saying what is wrong with it."""
        try:
            return parse(answer)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            why = f"{where}: {first['msg']}" if where else "it is no JSON object"
        except ValueError as error:
            why = str(error)
        raise StepError(f"{self._name} answered {path} with something unusable: {why}")


def parse_completion(answer: object) -> Completion:
    """A /completion answer of either flavour; ValueError naming the field that is wrong."""
    found = _Written.model_validate(answer)
    timings = found.timings
    drafted, accepted = timings.draft_n, timings.draft_n_accepted
    if (drafted is None) != (accepted is None):
        raise ValueError("draft_n and draft_n_accepted do not come together")
    if drafted is not None and accepted is not None and accepted > drafted:
        raise ValueError(f"{accepted} tokens accepted of {drafted} drafted")
    stop = found.stop_type or next((s for s in _STOPS if getattr(found, f"stopped_{s}")), "none")
    return Completion(
        text=found.content,
        # Mainline leaves them empty unless asked; ik has no such field.
        tokens=tuple(found.tokens) if found.tokens else None,
        **timings.model_dump(exclude={"draft_by_depth"}),
        stop=stop if stop in _STOPS else "none",
        probabilities=tuple(
            TokenProbability.model_validate(entry)
            for entry in found.completion_probabilities or ()
            if "id" in entry
        ),
        by_depth=tuple(
            DepthCount(row.depth, row.draft_n, row.draft_n_accepted)
            for row in timings.draft_by_depth or ()
        ),
        speculators=speculators_of((found.generation_settings or {}).get("speculative.types")),
    )


def stream_parts(chunks: Iterable[bytes]) -> list[StreamPart]:
    """The events of a stream, each with the time at which its last byte came."""
    parts: list[StreamPart] = []
    rest = b""
    for chunk in chunks:
        at_s = time.monotonic()
        # Only these bytes end a line: a reply may hold other characters that end one elsewhere.
        *lines, rest = (rest + chunk).split(b"\n")
        parts += ((at_s, line.removeprefix(_EVENT)) for line in lines if line.startswith(_EVENT))
    return parts


def parse_stream(parts: Sequence[StreamPart]) -> Completion:
    """A streamed /completion, its parts together; ValueError saying what is wrong with one."""
    answers = [parse_json(data) for _, data in parts]
    for answer in answers:
        if isinstance(answer, dict) and "error" in answer:
            raise ValueError(f"an error amid the stream: {error_text(answer, b'')}")
    found = [_Part.model_validate(answer) for answer in answers]
    if not found or not found[-1].stop:
        raise ValueError("the stream broke off")
    text = "".join(part.content for part in found)
    tokens = [token for part in found for token in part.tokens]
    whole = parse_completion({**answers[-1], "content": text, "tokens": tokens})
    return replace(whole, heard_s=tuple(at_s for at_s, _ in parts))


def parse_json(body: bytes) -> Any:
    """The JSON document that ``body`` is; None where it is none."""
    try:
        return strict_json.loads(body)
    except ValueError:
        return None


def error_text(answer: Any, body: bytes) -> str:
    """The message of a server's error, in one line; else the beginning of its ``body``."""
    from cook.engines.process.outcome import clean

    error = answer.get("error") if isinstance(answer, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    text = message if isinstance(message, str) else body[:300].decode("utf-8", "replace")
    return " ".join(clean(text).split())[:300] or "no message"


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
            # llama-server's router closes a connection after an answer and does not say so.
            limits=httpx.Limits(max_keepalive_connections=0),
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
        import asyncio

        import httpx

        # A router loads the model first.
        quick = method == "GET" and self.model is None
        limit_s = min(GET_TIMEOUT_S, self._limit_s) if quick else self._limit_s
        most = MAX_ANSWER_BYTES if path == "/completion" else MAX_FACT_BYTES

        async def exchange() -> tuple[int, bytes]:
            # The body may drip as slowly as it likes: the limit is for all of it.
            body = bytearray()
            async with (
                asyncio.timeout(limit_s),
                self._http.stream(method, path, json=payload) as response,
            ):
                async for chunk in response.aiter_raw():
                    body += chunk
                    if len(body) > most:
                        raise StepError(
                            f"{self.url} answered {path} with more than {most >> 20} MiB"
                        )
            return response.status_code, bytes(body)

        try:
            return self._loop.run(exchange())
        except (httpx.TransportError, TimeoutError) as error:
            late = f"the answer took more than {limit_s:g} s"
            why = late if isinstance(error, TimeoutError) else str(error)[:200] or "no answer"
            raise StepError(
                f"{self.url}: {type(error).__name__}: {why}",
                hint="is the server running? the same command again asks only what is missing",
            ) from None
