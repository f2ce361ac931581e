"""A typed client of ``llama-server``: what it answers is checked before anyone uses it.

Both flavours' wire formats are in docs/internals/engines.md#answers. An answer that is too
long, no JSON, or not of the expected form is a StepError naming the field.
"""

from __future__ import annotations

import math
import socket
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cook.engines.speculation import speculators_of
from cook.errors import StepError
from cook.formats import strict_json

if TYPE_CHECKING:
    import httpx

MAX_ANSWER_BYTES = 256 << 20
"""Of a completion, whose probabilities may be many."""
MAX_FACT_BYTES = 16 << 20
"""Of every other answer: small numbers and texts, which JSON swells by a hundred in memory."""
GET_TIMEOUT_S = 30.0
_STOPS = ("eos", "limit", "word", "none")
_LONG = ("/completion", "/v1/completions")


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
    kinds of speculation that the server has, where it tells (mainline).
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
        most = MAX_ANSWER_BYTES if path in _LONG else MAX_FACT_BYTES
        status, body = self._answer("POST", path, self._limit_s, most, payload)
        answer = _json(body)
        if status != 200:
            raise StepError(
                f"{self._what} answered {path} with status {status}: {_error_text(answer, body)}"
            )
        if not isinstance(answer, dict):
            raise self._malformed(path, "the answer is no JSON object")
        return answer

    def complete(self, payload: Mapping[str, object]) -> Completion:
        """POST /completion, parsed."""
        answer = self.post("/completion", payload)
        try:
            return parse_completion(answer)
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

    def _answer(
        self,
        method: str,
        path: str,
        limit_s: float | None,
        most: int,
        payload: Mapping[str, object] | None = None,
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
                timeout=httpx.Timeout(min(10.0, limit_s or 10.0), read=limit_s),
                extensions={"trace": self._note_socket},
            ) as response:
                status, body = response.status_code, self._body(response, path, most)
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

    def _body(self, response: httpx.Response, path: str, most: int) -> bytes:
        packed = response.headers.get("Content-Encoding", "identity")
        if packed.lower() != "identity":
            raise self._malformed(path, f"it is packed as {packed[:40]}, which was not asked for")
        parts: list[bytes] = []
        size = 0
        for chunk in response.iter_raw():
            size += len(chunk)
            if size > most:
                raise StepError(f"{self._what} answered {path} with more than {most >> 20} MiB")
            parts.append(chunk)
        return b"".join(parts)

    def _malformed(self, path: str, told: str) -> StepError:
        return StepError(f"{self._what} answered {path} with something unusable: {told}")


def parse_completion(answer: Mapping[str, Any]) -> Completion:
    """A /completion answer of either flavour; ValueError naming the field that is wrong."""
    timings = answer.get("timings")
    if not isinstance(timings, dict):
        raise ValueError("timings are missing")
    text = answer.get("content")
    if not isinstance(text, str):
        raise ValueError("content is no text")
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
        text=text,
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
