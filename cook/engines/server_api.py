"""A typed client of ``llama-server``: what it answers is checked before anyone uses it.

Both flavours' wire formats are in docs/internals/engines.md#answers. An answer that is too
long, no JSON, or not of the expected form is a StepError naming the field.
"""

from __future__ import annotations

import math
import socket
import threading
import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from cook.engines.speculation import speculators_of
from cook.errors import StepError
from cook.formats import strict_json

if TYPE_CHECKING:
    import httpx

MAX_ANSWER_BYTES = 256 << 20
"""Of a completion, whose probabilities may be many."""
MAX_FACT_BYTES = 16 << 20
"""Of every other answer, and of a stream, where a token takes some 80: small numbers and texts,
which JSON swells by a hundred in memory."""
MOST_PIECES = 1 << 20
"""In which an answer may come: of a single byte each takes a hundred in memory."""
GET_TIMEOUT_S = 30.0
_STOPS = ("eos", "limit", "word", "none")
_LONG = "/completion"
Heard = tuple[int, float]
"""Bytes of an answer that were there, and when, in seconds."""


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
    """

    def __init__(
        self,
        base_url: str,
        key: str | None,
        what: str,
        *,
        read_timeout_s: float | None = None,
        connections: int = 1,
    ) -> None:
        import httpx

        self._what = what
        self._limit_s = read_timeout_s
        self._socket: socket.socket | None = None
        self._client = httpx.Client(
            base_url=base_url,
            headers={
                # What is not packed cannot be a bomb; see _body.
                "Accept-Encoding": "identity",
                **({"Authorization": f"Bearer {key}"} if key else {}),
            },
            # A redirect would take the key elsewhere.
            follow_redirects=False,
            # Generation is one silent answer.
            timeout=httpx.Timeout(10.0, read=read_timeout_s),
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
        status, body = self._answer("GET", path, limit_s, MAX_FACT_BYTES)
        return status, _json(body)

    def post(self, path: str, payload: Mapping[str, object]) -> Mapping[str, Any]:
        """The JSON object that a POST answers; StepError for an error status."""
        answer = _json(self._posted(path, payload))
        if not isinstance(answer, dict):
            raise self._malformed(path, "the answer is no JSON object")
        return answer

    def complete(self, payload: Mapping[str, object]) -> Completion:
        """POST /completion, parsed; asked for with ``stream``, the events together."""
        try:
            if payload.get("stream"):
                heard: list[Heard] = []
                return parse_stream(self._posted("/completion", payload, heard), heard)
            return parse_completion(self.post("/completion", payload))
        except ValueError as error:
            raise self._malformed("/completion", str(error)) from None

    def tokenize(self, text: str, add_special: bool) -> tuple[int, ...]:
        """Token ids of ``text``, special tokens in it parsed as such."""
        payload = {"content": text, "add_special": add_special, "parse_special": True}
        answer = self.post("/tokenize", payload)
        try:
            return _ids(answer.get("tokens"), "tokens")
        except ValueError as error:
            raise self._malformed("/tokenize", str(error)) from None

    def detokenize(self, tokens: Sequence[int]) -> str:
        """Text of ``tokens``."""
        content = self.post("/detokenize", {"tokens": list(tokens)}).get("content")
        if not isinstance(content, str):
            raise self._malformed("/detokenize", "content is no text")
        return content

    def apply_template(self, message: str) -> str:
        """One user message rendered by the model's chat template, ready to be completed."""
        turns = [{"role": "user", "content": message}]
        prompt = self.post("/apply-template", {"messages": turns}).get("prompt")
        if not isinstance(prompt, str):
            raise self._malformed("/apply-template", "prompt is no text")
        return prompt

    def _posted(
        self, path: str, payload: Mapping[str, object], heard: list[Heard] | None = None
    ) -> bytes:
        """What a POST answers with status 200; ``heard`` is filled with when it came."""
        most = MAX_ANSWER_BYTES if path == _LONG and heard is None else MAX_FACT_BYTES
        status, body = self._answer("POST", path, self._limit_s, most, payload, heard)
        if status != 200:
            told = _error_text(_json(body), body)
            raise StepError(f"{self._what} answered {path} with status {status}: {told}")
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

        clock = threading.Timer(limit_s, end) if limit_s is not None else None
        if clock is not None:
            clock.daemon = True
            clock.start()
        try:
            with self._client.stream(
                method,
                path,
                json=payload,
                # ik ends the connection after a stream, which a next request on it would run into.
                headers={"Connection": "close"} if heard is not None else None,
                timeout=httpx.Timeout(min(10.0, limit_s or 10.0), read=limit_s),
                extensions={"trace": self._note_socket},
            ) as response:
                status, body = response.status_code, self._body(response, path, most, heard)
        except httpx.TransportError:
            if not late.is_set():
                raise
        finally:
            if clock is not None:
                clock.cancel()
        # To a body without a length the end that the clock made looks like its own.
        if late.is_set():
            raise httpx.ReadTimeout(f"the answer took more than {limit_s:g} s")
        return status, body

    def _note_socket(self, event: str, info: Mapping[str, Any]) -> None:
        """httpcore tells of each new connection; the last one is the one in use."""
        if event == "connection.connect_tcp.complete":
            self._socket = info["return_value"].get_extra_info("socket")

    def _body(
        self, response: httpx.Response, path: str, most: int, heard: list[Heard] | None
    ) -> bytes:
        packed = response.headers.get("Content-Encoding", "identity")
        if packed.lower() != "identity":
            raise self._malformed(path, f"it is packed as {packed[:40]}, which was not asked for")
        parts: list[bytes] = []
        size = 0
        for chunk in response.iter_raw():
            size += len(chunk)
            if size > most:
                raise StepError(f"{self._what} answered {path} with more than {most >> 20} MiB")
            if len(parts) == MOST_PIECES:
                raise StepError(f"{self._what} answered {path} in more than {MOST_PIECES} pieces")
            parts.append(chunk)
            if heard is not None:
                heard.append((size, time.perf_counter()))
        return b"".join(parts)

    def _malformed(self, path: str, told: str) -> StepError:
        return StepError(f"{self._what} answered {path} with something unusable: {told}")


def parse_completion(answer: Mapping[str, Any]) -> Completion:
    """A /completion answer of either flavour; ValueError naming the field that is wrong."""
    timings = answer.get("timings")
    if not isinstance(timings, dict):
        raise ValueError("timings are missing")
    drafted, accepted = timings.get("draft_n"), timings.get("draft_n_accepted")
    if (drafted is None) != (accepted is None):
        raise ValueError("draft_n and draft_n_accepted do not come together")
    draft_n = _count(drafted, "draft_n") if drafted is not None else None
    draft_n_accepted = _count(accepted, "draft_n_accepted") if accepted is not None else None
    if draft_n is not None and draft_n_accepted is not None and draft_n_accepted > draft_n:
        raise ValueError(f"{draft_n_accepted} tokens accepted of {draft_n} drafted")
    # Mainline leaves tokens empty unless asked; ik has no such field.
    tokens = _ids(answer["tokens"], "tokens") if answer.get("tokens") else None
    return Completion(
        text=_text(answer),
        tokens=tokens,
        prompt_n=_count(timings.get("prompt_n"), "prompt_n"),
        prompt_ms=_time(timings.get("prompt_ms"), "prompt_ms"),
        predicted_n=_count(timings.get("predicted_n"), "predicted_n"),
        predicted_ms=_time(timings.get("predicted_ms"), "predicted_ms"),
        draft_n=draft_n,
        draft_n_accepted=draft_n_accepted,
        stop=_stop(answer),
        truncated=answer.get("truncated") is True,
        probabilities=_probabilities(answer.get("completion_probabilities")),
        by_depth=_depths(timings.get("draft_by_depth")),
        speculators=_speculators(answer.get("generation_settings")),
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
            events.append(_event(line))
            ends.append(end)
    if not events or events[-1].get("stop") is not True:
        raise ValueError("the stream broke off")
    text = "".join(_text(event) for event in events)
    tokens = [token for event in events for token in _list(event.get("tokens", []), "tokens")]
    whole = parse_completion({**events[-1], "content": text, "tokens": tokens})
    sizes = [size for size, _ in heard]
    # A line's end may come with what follows it.
    times = [heard[min(bisect_left(sizes, e - 1), len(heard) - 1)][1] for e in ends]
    before_end_ms = [(times[-1] - at) * 1000 for at in times[:-1]]
    return replace(whole, late_reading_ms=_late_reading_ms(before_end_ms, whole))


_EVENT = b"data: "


def _event(line: bytes) -> dict[str, Any]:
    event = _json(line.removeprefix(_EVENT))
    if not isinstance(event, dict):
        raise ValueError("an event of the stream is no JSON object")
    if "error" in event:
        raise ValueError(f"an error amid the stream: {_error_text(event, line)}")
    return event


def _text(event: Mapping[str, Any]) -> str:
    text = event.get("content")
    if not isinstance(text, str):
        raise ValueError("content is no text")
    return text


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


def _speculators(settings: Any) -> tuple[str, ...]:
    return speculators_of(settings.get("speculative.types")) if isinstance(settings, dict) else ()


def _stop(answer: Mapping[str, Any]) -> str:
    told = answer.get("stop_type")
    if isinstance(told, str):
        return told if told in _STOPS else "none"
    for reason in ("eos", "word", "limit"):
        if answer.get(f"stopped_{reason}") is True:
            return reason
    return "none"


def _probabilities(value: Any) -> tuple[TokenProbability, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise ValueError("completion_probabilities are no list")
    found: list[TokenProbability] = []
    for entry in value:
        if not isinstance(entry, dict):
            raise ValueError("completion_probabilities hold something else than objects")
        if "probs" in entry:  # ik: [{content, probs: [{tok_str, prob}]}]
            top = tuple(_ik_top(item) for item in _list(entry["probs"], "probs"))
            content = str(entry.get("content", ""))
            chosen = next((t for t in top if t.text == content), None)
            found.append(TokenProbability(chosen or TopToken(None, content, math.nan), top))
        else:
            top = tuple(_ml_top(item) for item in _list(entry.get("top_logprobs"), "top_logprobs"))
            found.append(TokenProbability(_ml_top(entry), top))
    return tuple(found)


def _ml_top(item: Any) -> TopToken:
    if not isinstance(item, dict):
        raise ValueError("a token probability is no object")
    logprob = item.get("logprob")
    if not isinstance(logprob, int | float) or isinstance(logprob, bool) or not logprob <= 1e-6:
        raise ValueError("a logprob is no logarithm of a probability")
    return TopToken(_count(item.get("id"), "id"), str(item.get("token", "")), float(logprob))


def _ik_top(item: Any) -> TopToken:
    prob = item.get("prob") if isinstance(item, dict) else None
    if not isinstance(prob, int | float) or isinstance(prob, bool) or not 0 <= prob <= 1 + 1e-6:
        raise ValueError("a prob is not between 0 and 1")
    return TopToken(None, str(item.get("tok_str", "")), math.log(prob) if prob > 0 else -math.inf)


def _depths(value: Any) -> tuple[DepthCount, ...]:
    if value is None:
        return ()
    rows = _list(value, "draft_by_depth")
    if not all(isinstance(row, dict) for row in rows):
        raise ValueError("draft_by_depth holds something else than objects")
    return tuple(
        DepthCount(
            _count(row.get("depth"), "depth"),
            _count(row.get("draft_n"), "draft_by_depth.draft_n"),
            _count(row.get("draft_n_accepted"), "draft_by_depth.draft_n_accepted"),
        )
        for row in rows
    )


def _list(value: Any, field: str) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{field} is no list")
    return value


def _ids(value: Any, field: str) -> tuple[int, ...]:
    return tuple(_count(item, field) for item in _list(value, field))


def _count(value: Any, field: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 48:
        raise ValueError(f"{field} is no count: {str(value)[:40]}")
    return value


def _time(value: Any, field: str) -> float:
    ok = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not ok or value < 0:
        raise ValueError(f"{field} is no time: {str(value)[:40]}")
    return float(value)


def _json(body: bytes) -> Any:
    try:
        return strict_json.loads(body)
    except ValueError:
        return None


def _error_text(answer: Any, body: bytes) -> str:
    from cook.engines.process.outcome import clean

    error = answer.get("error") if isinstance(answer, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    text = message if isinstance(message, str) else body[:300].decode("utf-8", "replace")
    return " ".join(clean(text).split())[:300] or "no message"
