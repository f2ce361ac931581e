"""A typed client of ``llama-server``: what it answers is checked before anyone uses it.

Both flavours' wire formats are in docs/internals/engines.md#answers. An answer that is too
long, no JSON, or not of the expected form is a StepError naming the field.
"""

from __future__ import annotations

import math
import socket
import threading
import time
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlencode

from cook.engines.speculation import speculators_of
from cook.errors import StepError
from cook.formats import strict_json

if TYPE_CHECKING:
    pass

MAX_ANSWER_BYTES = 256 << 20
"""Of a completion, whose probabilities may be many."""
MAX_FACT_BYTES = 16 << 20
"""Of every other answer: small numbers and texts, which JSON swells by a hundred in memory."""
GET_TIMEOUT_S = 30.0
_STOPS = ("eos", "word", "limit")
_EVENT = b"data: "
Heard = tuple[int, float]
"""Bytes of an answer that were there, and when, in seconds."""
T = TypeVar("T")


@dataclass(frozen=True)
class TopToken:
    """One candidate at one position; ``id`` is None where the engine tells only the text."""

    id: int | None
    text: str
    logprob: float


@dataclass(frozen=True)
class TokenProbability:
    """The emitted token with its log-probability, and the likeliest ones, best first."""

    chosen: TopToken
    top: tuple[TopToken, ...]


@dataclass(frozen=True)
class DepthCount:
    """Tokens ``drafted`` at ``depth`` (1 is the first of a draft), ``accepted`` of these.

    ik tells it per request.
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
    ``stop`` is why it ended: ``eos``, ``limit``, ``word`` or ``none``. ``speculators`` are the
    kinds of speculation that the server has, where it tells (mainline). ``late_reading_ms``: of
    ``predicted_ms``, what came before the first drafted tokens beyond what as many cycles took
    later, which is the draft's reading of the prompt where it reads at its first draft (ik); None
    where the answer was not streamed, or tells nothing of that.
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
    truncated: bool
    probabilities: tuple[TokenProbability, ...] = ()
    by_depth: tuple[DepthCount, ...] = ()
    speculators: tuple[str, ...] = ()
    late_reading_ms: float | None = None

    @property
    def decode_tokens_per_s(self) -> float | None:
        """Tokens after the first / decode time; the engines' own rates count differently."""
        if self.predicted_n < 2 or self.predicted_ms <= 0:
            return None
        return (self.predicted_n - 1) * 1000.0 / self.predicted_ms


class Api:
    """One server's endpoints, blocking; a failed connection raises httpx.TransportError.

    ``read_timeout_s`` bounds the wait for an answer, and how long one may take to arrive; None
    where the server's owner watches it. ``connections`` are kept open between requests.
    ``model``: which one is asked of a router, by its name or alias.
    """

    def __init__(
        self,
        base_url: str,
        key: str | None,
        what: str,
        *,
        read_timeout_s: float | None = None,
        connections: int = 1,
        model: str | None = None,
    ) -> None:
        import httpx

        self._what = what
        self._model = {"model": model} if model is not None else {}
        self._limit_s = read_timeout_s
        self._socket: socket.socket | None = None
        self._client = httpx.Client(
            base_url=base_url,
            headers={
                # Answers are read as they come: what is packed all the same is no JSON.
                "Accept-Encoding": "identity",
                **({"Authorization": f"Bearer {key}"} if key else {}),
            },
            # A redirect would take the key elsewhere.
            follow_redirects=False,
            # A proxy from the environment must not get between us and loopback.
            trust_env=False,
            limits=httpx.Limits(
                max_connections=connections + 3, max_keepalive_connections=connections
            ),
        )

    def close(self) -> None:
        self._client.close()

    def get(self, path: str, timeout_s: float = GET_TIMEOUT_S) -> tuple[int, Any]:
        """``(status, JSON)`` of a GET; the JSON is None when the body is none."""
        limit_s = timeout_s if self._limit_s is None else min(timeout_s, self._limit_s)
        query = f"?{urlencode(self._model)}" if self._model else ""
        status, body = self._answer("GET", path + query, limit_s, MAX_FACT_BYTES)
        return status, _json(body)

    def complete(self, payload: Mapping[str, object]) -> Completion:
        """POST /completion, parsed; asked for with ``stream``, the events together."""
        path = "/completion"
        heard: list[Heard] | None = [] if payload.get("stream") else None
        body = self._posted(path, payload, MAX_ANSWER_BYTES, heard)
        try:
            if heard is not None:
                return parse_stream(body, heard)
            return parse_completion(_object(body))
        except ValueError as error:
            raise self._malformed(path, error) from None

    def tokenize(self, text: str, add_special: bool) -> tuple[int, ...]:
        """Token ids of ``text``, special tokens in it parsed as such."""
        payload = {"content": text, "add_special": add_special, "parse_special": True}
        return self._fact("/tokenize", payload, lambda answer: _ids(answer, "tokens"))

    def detokenize(self, tokens: Sequence[int]) -> str:
        """Text of ``tokens``."""
        payload = {"tokens": list(tokens)}
        return self._fact("/detokenize", payload, lambda answer: _text(answer, "content"))

    def apply_template(self, messages: Sequence[Mapping[str, str]]) -> str:
        """``messages`` rendered by the model's chat template, ready to be completed."""
        payload = {"messages": list(messages)}
        return self._fact("/apply-template", payload, lambda answer: _text(answer, "prompt"))

    def _fact(
        self, path: str, payload: Mapping[str, object], read: Callable[[dict[str, Any]], T]
    ) -> T:
        body = self._posted(path, payload, MAX_FACT_BYTES)
        try:
            return read(_object(body))
        except ValueError as error:
            raise self._malformed(path, error) from None

    def _posted(
        self,
        path: str,
        payload: Mapping[str, object],
        most: int,
        heard: list[Heard] | None = None,
    ) -> bytes:
        """What a POST answers with status 200; ``heard`` is filled with when it came."""
        payload = {**payload, **self._model}
        status, body = self._answer("POST", path, self._limit_s, most, payload, heard)
        if status != 200:
            text = error_text(_json(body), body)
            raise StepError(f"{self._what} answered {path} with status {status}: {text}")
        return body

    def _answer(
        self,
        method: str,
        path: str,
        limit_s: float | None,
        most: int,
        payload: Mapping[str, object] | None = None,
        heard: list[Heard] | None = None,
    ) -> tuple[int, bytes]:
        """Status and body, of at most ``most`` bytes; ReadTimeout when it takes ``limit_s``.

        An answer that drips, head or body, stays below every time-out of a single read, so a
        clock shuts the connection down.
        """
        import httpx

        late = threading.Event()

        def end() -> None:
            late.set()
            if self._socket is not None:
                with suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)

        def note_socket(event: str, info: Mapping[str, Any]) -> None:
            if event == "connection.connect_tcp.complete":
                self._socket = info["return_value"].get_extra_info("socket")

        clock = threading.Timer(limit_s or threading.TIMEOUT_MAX, end)
        clock.daemon = True
        clock.start()
        body = bytearray()
        try:
            with self._client.stream(
                method,
                path,
                json=payload,
                # ik ends the connection after a stream, which a next request on it would run into.
                headers={"Connection": "close"} if heard is not None else None,
                # Generation is one silent answer.
                timeout=httpx.Timeout(min(10.0, limit_s or 10.0), read=limit_s),
                extensions={"trace": note_socket},
            ) as response:
                for chunk in response.iter_raw():
                    body += chunk
                    if len(body) > most:
                        answered = f"{path} with more than {most >> 20} MiB"
                        raise StepError(f"{self._what} answered {answered}")
                    if heard is not None:
                        heard.append((len(body), time.perf_counter()))
        except httpx.TransportError:
            if not late.is_set():
                raise
        finally:
            clock.cancel()
        # To a body without a length the end that the clock made looks like its own.
        if late.is_set():
            raise httpx.ReadTimeout(f"the answer took more than {limit_s:g} s")
        return response.status_code, bytes(body)

    def _malformed(self, path: str, why: ValueError) -> StepError:
        return StepError(f"{self._what} answered {path} with something unusable: {why}")


class ServerClient(ABC):
    """What is asked of any server, ours or somebody else's."""

    @abstractmethod
    def _ask(self, request: Callable[[Api], T]) -> T:
        """The answer to ``request``; StepError where there is none."""

    def tokenize(self, text: str, *, add_special: bool = False) -> tuple[int, ...]:
        """Token ids of ``text``; special tokens in it are parsed as such."""
        return self._ask(lambda api: api.tokenize(text, add_special))

    def detokenize(self, tokens: Sequence[int]) -> str:
        """Text of ``tokens``."""
        return self._ask(lambda api: api.detokenize(tokens))

    def apply_template(self, messages: Sequence[Mapping[str, str]]) -> str:
        """``messages``, each its role and content, rendered by the model's own chat template."""
        return self._ask(lambda api: api.apply_template(messages))


def parse_completion(answer: Mapping[str, Any]) -> Completion:
    """A /completion answer of either flavour; ValueError naming the field that is wrong."""
    timings, settings = answer.get("timings"), answer.get("generation_settings")
    if not isinstance(timings, dict):
        raise ValueError("timings are missing")
    drafted, accepted = (
        _count(timings[name], name) if timings.get(name) is not None else None
        for name in ("draft_n", "draft_n_accepted")
    )
    if (drafted is None) != (accepted is None):
        raise ValueError("draft_n and draft_n_accepted do not come together")
    if drafted is not None and accepted is not None and accepted > drafted:
        raise ValueError(f"{accepted} tokens accepted of {drafted} drafted")
    stop = answer.get("stop_type")
    if not isinstance(stop, str):
        stop = next((s for s in _STOPS if answer.get(f"stopped_{s}") is True), "none")
    depths = _objects(timings, "draft_by_depth") if timings.get("draft_by_depth") else ()
    return Completion(
        text=_text(answer, "content"),
        # Mainline leaves them empty unless asked; ik has no such field.
        tokens=_ids(answer, "tokens") if answer.get("tokens") else None,
        prompt_n=_count(timings.get("prompt_n"), "prompt_n"),
        prompt_ms=_number(timings, "prompt_ms", "time", 0, 1e15),
        predicted_n=_count(timings.get("predicted_n"), "predicted_n"),
        predicted_ms=_number(timings, "predicted_ms", "time", 0, 1e15),
        draft_n=drafted,
        draft_n_accepted=accepted,
        stop=stop if stop in _STOPS else "none",
        truncated=answer.get("truncated") is True,
        probabilities=_probabilities(answer),
        by_depth=tuple(
            DepthCount(
                *(_count(row.get(name), name) for name in ("depth", "draft_n", "draft_n_accepted"))
            )
            for row in depths
        ),
        speculators=speculators_of(
            settings.get("speculative.types") if isinstance(settings, dict) else None
        ),
    )


def parse_stream(body: bytes, heard: Sequence[Heard]) -> Completion:
    """A streamed /completion, its events together; ValueError telling what is wrong with one.

    ``heard``: when how much of it was there, which tells the draft's late reading.
    """
    events: list[dict[str, Any]] = []
    ends: list[int] = []
    end = 0
    for line in body.split(b"\n"):
        end += len(line) + 1
        if line.startswith(_EVENT):
            event = _object(line.removeprefix(_EVENT))
            if "error" in event:
                raise ValueError(f"an error amid the stream: {error_text(event, line)}")
            events.append(event)
            ends.append(end)
    if not events or events[-1].get("stop") is not True:
        raise ValueError("the stream broke off")
    text = "".join(_text(event, "content") for event in events)
    tokens = [token for event in events for token in _list(event, "tokens", [])]
    whole = parse_completion({**events[-1], "content": text, "tokens": tokens})
    sizes = [size for size, _ in heard]
    # A line's end may come with what follows it.
    times = [heard[min(bisect_left(sizes, e - 1), len(heard) - 1)][1] for e in ends]
    before_end_ms = [(times[-1] - at) * 1000 for at in times[:-1]]
    return replace(whole, late_reading_ms=_late_reading_ms(before_end_ms, whole))


def _late_reading_ms(before_end_ms: Sequence[float], whole: Completion) -> float | None:
    """What came before the first drafted tokens, less one cycle as long as the mean of the others.

    ``before_end_ms`` of every event but the last, by our clock; the server's began ``predicted_ms``
    before the end, and with the first token, which nothing was drafted for.
    """
    if whole.draft_n_accepted is None:
        return None
    others = whole.predicted_n - 2 - whole.draft_n_accepted  # by token identity, less the first
    for rest_ms in before_end_ms:
        first_ms, cycle_ms = whole.predicted_ms - rest_ms, rest_ms / max(others, 1)
        if others > 0 and rest_ms > 0 and first_ms > cycle_ms / 2:
            return max(0.0, first_ms - cycle_ms)
    return None


def _probabilities(answer: Mapping[str, Any]) -> tuple[TokenProbability, ...]:
    found: list[TokenProbability] = []
    field = "completion_probabilities"
    for entry in _objects(answer, field) if answer.get(field) is not None else ():
        if "probs" in entry:  # ik: [{content, probs: [{tok_str, prob}]}]
            shares = [
                (t, _number(t, "prob", "probability", 0, 1 + 1e-6))
                for t in _objects(entry, "probs")
            ]
            top = [
                TopToken(None, str(t.get("tok_str", "")), math.log(p) if p > 0 else -math.inf)
                for t, p in shares
            ]
            content = str(entry.get("content", ""))
            unlisted = TopToken(None, content, math.nan)
            chosen = next((t for t in top if t.text == content), unlisted)
        else:
            chosen, *top = (
                TopToken(
                    _count(t.get("id"), "id"),
                    str(t.get("token", "")),
                    _number(t, "logprob", "logarithm of a probability", -math.inf, 1e-6),
                )
                for t in (entry, *_objects(entry, "top_logprobs"))
            )
        found.append(TokenProbability(chosen, tuple(top)))
    return tuple(found)


def _text(of: Mapping[str, Any], field: str) -> str:
    value = of.get(field)
    if not isinstance(value, str):
        raise ValueError(f"{field} is no text")
    return value


def _list(of: Mapping[str, Any], field: str, missing: object = None) -> list[Any]:
    value = of.get(field, missing)
    if not isinstance(value, list):
        raise ValueError(f"{field} is no list")
    return value


def _objects(of: Mapping[str, Any], field: str) -> list[dict[str, Any]]:
    rows = _list(of, field)
    if not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"{field} holds something else than objects")
    return rows


def _ids(of: Mapping[str, Any], field: str) -> tuple[int, ...]:
    return tuple(_count(token, field) for token in _list(of, field))


def _count(value: Any, field: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 48:
        raise ValueError(f"{field} is no count: {str(value)[:40]}")
    return value


def _number(of: Mapping[str, Any], field: str, kind: str, low: float, high: float) -> float:
    value = of.get(field)
    if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
        raise ValueError(f"{field} is no {kind}: {str(value)[:40]}")
    return float(value)


def _object(body: bytes) -> dict[str, Any]:
    answer = _json(body)
    if not isinstance(answer, dict):
        raise ValueError("the answer is no JSON object")
    return answer


def _json(body: bytes) -> Any:
    try:
        return strict_json.loads(body)
    except ValueError:
        return None


def error_text(answer: Any, body: bytes) -> str:
    from cook.engines.process.outcome import clean

    error = answer.get("error") if isinstance(answer, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    text = message if isinstance(message, str) else body[:300].decode("utf-8", "replace")
    return " ".join(clean(text).split())[:300] or "no message"
