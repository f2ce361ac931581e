"""One ``llama-server`` for the time of a ``with`` block: started, proven ready, stopped.

It listens on loopback, on a free port, with a key that is in a file of mode 0600 and nowhere
else. A server that was given a draft is shown to draft, or refused: both engines otherwise
serve on without a word (docs/internals/engines.md#serving-without-drafting). One that speculates
in any other way is refused, too (docs/internals/engines.md#hidden-speculation).
"""

from __future__ import annotations

import contextlib
import re
import secrets
import socket
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from cook.engines.arguments import LOOPBACK
from cook.engines.base import Engine, ServerJob, contradictions
from cook.engines.process import system
from cook.engines.process.outcome import OnOutput, Outcome, ProcessResult, ProcessSpec, failure
from cook.engines.process.supervisor import Running, Supervisor, Work
from cook.engines.server_api import (
    Completion,
    ServerClient,
    StreamPart,
    parse_completion,
    parse_json,
    parse_stream,
    stream_parts,
)
from cook.engines.speculation import read_speculators, unwanted
from cook.errors import InputError, InternalError, StepError
from cook.formats.quant_types import Flavour

if TYPE_CHECKING:
    from types import TracebackType

    import httpx

T = TypeVar("T")
_ATTEMPTS = 3
_PORT_TAKEN = re.compile(r"couldn't bind|address already in use", re.IGNORECASE)
_NO_DRAFT = re.compile(
    r"[^\n]*(?:vocabs? (?:are not compatible|type must match|must match)"
    r"|failed to (?:initialize speculative|load draft)|tokens will be translated"
    r"|MTP is not supported)[^\n]*"
)
_SIZE = re.compile(
    r"llama_(?:context|init_from_model|new_context_with_model): n_(ctx|batch|ubatch) *= (\d+)"
)
_SLOT = re.compile(r"n_ctx_slot(?: = |=)(\d+)")
_THREADS = re.compile(r"\bn_threads ?= ?\"?(\d+)\"?(?: \(?n_threads_batch ?= ?\"?(-?\d+))?")


class Server(ServerClient):
    """A running server and its client; use as a context manager.

    ``load_timeout_s`` bounds loading, ``stall_timeout_s`` how long the server may use no
    processor time while a request waits. ``argv`` makes the command line from a port and a key
    file; absent, it is the engine's own for ``job``. ``port`` and ``key`` are free ones unless
    given; ``on_output`` sees the server's output as it comes. Raises PrerequisiteError for a
    setting that the engine does not have (before anything starts), StepError when it does not get
    ready, does not draft although it was given a draft, dies, hangs, or answers nonsense.
    """

    def __init__(
        self,
        engine: Engine,
        job: ServerJob,
        supervisor: Supervisor,
        *,
        load_timeout_s: float = 3600.0,
        stall_timeout_s: float = 300.0,
        argv: Callable[[int, Path], tuple[str, ...]] | None = None,
        host: str = LOOPBACK,
        port: int | None = None,
        key: str | None = None,
        on_output: OnOutput | None = None,
    ) -> None:
        if job.draft is not None and job.settings is None:
            raise InternalError("a draft needs its settings: the engines' defaults differ")
        for path in (job.target, job.draft):
            if path is not None and not path.is_file():
                raise InputError(f"{path} does not exist")
        super().__init__(f"llama-server ({engine.name})")
        self.engine, self.job = engine, job
        self._supervisor = supervisor
        self._load_timeout_s, self._stall_timeout_s = load_timeout_s, stall_timeout_s
        self._argv, self._port, self._key, self._on_output = argv, port, key, on_output
        # What listens on all addresses is asked on loopback.
        self._host = {"0.0.0.0": LOOPBACK, "::": "::1"}.get(host, host)
        self._running: Running | None = None
        self._http: httpx.Client | None = None
        self._last_prompt: tuple[int, ...] | str | None = None
        # A request a slot at once, from as many threads of the caller's.
        self._requests = ThreadPoolExecutor(job.slots, thread_name_prefix="server-request")
        self.command: tuple[str, ...] = ()
        self.result: ProcessResult | None = None

    def __enter__(self) -> Server:
        try:
            self._start()
            self._prove_settings()
            self._prove_drafting()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._close()
        if error is None and not self._argv and self._running is not None:
            # The counters of all that was asked; one that serves others has a log without end.
            with self._running.stderr_log.open(encoding="utf-8", errors="replace") as log:
                self._refuse_hidden(read_speculators(log))

    @property
    def peak_rss_bytes(self) -> int:
        """The server's high-water mark so far (mapped weights included), 0 if unknown."""
        if self.result is not None:
            return self.result.peak_rss_bytes
        return system.peak_rss_bytes(self._running.pid) if self._running else 0

    @property
    def pid(self) -> int | None:
        """Of the running process."""
        return self._running.pid if self._running else None

    @property
    def cpu_s(self) -> float | None:
        """Processor time the server has taken so far; None once it has stopped."""
        activity = system.group_activity(self._running.pid) if self._running else None
        return activity.cpu_s if activity else None

    def wait(self) -> ProcessResult:
        """Wait until the server ends on its own."""
        return self._alive().wait()

    def stop(self) -> ProcessResult:
        """End the server now (SIGTERM, then SIGKILL); how it went."""
        return self._alive().stop()

    @property
    def log(self) -> Path:
        """The server's standard error: all that it has written by now."""
        running = self._alive()
        running.catch_up()
        return running.stderr_log

    def complete(
        self,
        prompt: str | Sequence[int],
        n_predict: int,
        *,
        temperature: float = 0.0,
        seed: int = 0,
        n_probs: int = 0,
        ignore_eos: bool = False,
        sampling: Mapping[str, float] | None = None,
        streamed: bool = False,
    ) -> Completion:
        """Generate up to ``n_predict`` tokens after ``prompt`` (text, or token ids).

        ``n_probs`` asks for so many candidates per token; refused under drafting, where
        mainline reports made-up ones. ``sampling`` says more, or another, of the chain, in the
        engine's own keys. ``streamed``: token by token, which shows when the first drafted ones
        came.
        """
        drafts = self.job.drafts
        if n_probs and drafts:
            raise InternalError("token probabilities under drafting are not the model's")
        given = prompt if isinstance(prompt, str) else tuple(prompt)
        self._guard_repetition(given)
        payload: dict[str, object] = {
            "prompt": given if isinstance(given, str) else list(given),
            "n_predict": n_predict,
            "temperature": temperature,
            "seed": seed,
            **(sampling or {}),
            "ignore_eos": ignore_eos,
            "cache_prompt": False,
            "return_tokens": True,
            **({"n_probs": n_probs} if n_probs else {}),
        }
        completion = (
            self._stream({**payload, "stream": True})
            if streamed
            else self._post("/completion", payload, parse_completion)
        )
        if completion.predicted_n > max(n_predict, 1):
            tokens = f"{completion.predicted_n} tokens for the {n_predict} asked for"
            raise StepError(f"{self._name} wrote {tokens}", log=self.log)
        named, asked = completion.speculators, self.job.speculators(self.engine.flavour)
        self._refuse_hidden({name: name for name in named})
        if named and (absent := [name for name in asked if name not in named]):
            raise self._not_drafting(f"an answer names {', '.join(named)}, and not {absent[0]}")
        if completion.draft_n is not None and not drafts:
            self._refuse_hidden({"": f"{completion.draft_n} tokens in one reply"})
        return completion

    def _start(self) -> None:
        for attempt in range(1, _ATTEMPTS + 1):
            port = self._port or free_port()
            key = self._key or secrets.token_hex(24)
            # Of mode 0600, and read at start: not needed any more then.
            with tempfile.NamedTemporaryFile("w", prefix="cook-server-") as key_file:
                key_file.write(key + "\n")
                key_file.flush()
                command = self._argv or partial(self.engine.server_command, self.job)
                self.command = command(port, Path(key_file.name))
                models = [path.stem for path in (self.job.target, self.job.draft) if path]
                spec = ProcessSpec(
                    self.command,
                    f"server-{'+'.join(models)}",
                    self.engine.environment(),
                    # A server that waits for requests is idle, not stalled.
                    stall_timeout_s=None,
                    on_output=self._on_output,
                )
                self._running = self._supervisor.start(spec)
                self._http = _client(self._host, port, key, self.job.slots)
                ended = self._wait_ready(self._running, self._http)
            if ended is None:
                return
            self._stop()
            taken = _PORT_TAKEN.search(ended.stderr_tail + ended.stdout_tail)
            if not taken or self._port or attempt == _ATTEMPTS:
                outcome = Outcome.TOOL_ERROR if ended.outcome is Outcome.OK else ended.outcome
                hint = "can the engine read these files? `cook inspect` shows their types and sizes"
                why = "it ended before it was ready"
                raise failure(ended, outcome, why, hint if outcome is Outcome.TOOL_ERROR else None)

    def _wait_ready(self, running: Running, http: httpx.Client) -> ProcessResult | None:
        """None once the server is ready; its result if it ended first."""
        import httpx

        deadline = time.monotonic() + self._load_timeout_s
        pause = 0.01
        while time.monotonic() < deadline:
            if (ended := running.poll()) is not None:
                return ended
            if self._supervisor.cancelled:
                return running.wait()
            # ik accepts connections while it loads and answers none: hence the short time-out.
            with contextlib.suppress(httpx.TransportError):
                answer = http.get("/health", timeout=2.0)
                if answer.status_code == 200 and isinstance(parse_json(answer.content), dict):
                    return None
            time.sleep(pause)
            pause = min(pause * 1.5, 0.5)
        result = running.stop()
        raise failure(result, Outcome.TIMED_OUT, "it was still loading")

    def _prove_settings(self) -> None:
        """Raise where the server's target runs with other sizes or threads, by its log."""
        logs = (self._alive().folder / "stdout.log", self.log)
        text = "\n".join(path.read_text(errors="replace") for path in logs)
        args = self.job.target_args.filled()
        asked = {"ctx": self.job.context}
        for name in ("batch", "ubatch", "threads", "threads_batch"):
            asked[name] = getattr(args, name) or 0
        if found := tuple(contradictions(logged_settings(text), asked)):
            raise StepError(
                f"{self._name} runs with {', '.join(found)}",
                hint="say it in the target's args: `threads:`, `batch:`, `ubatch:`; a context that "
                "is cut is the model's: a smaller `score.context`",
                log=self.log,
            )

    def _prove_drafting(self) -> None:
        """Raise unless a server that is to draft says that it will, and another that it does
        not."""
        drafting = says = self.job.drafts
        if self.engine.flavour is Flavour.LLAMA_CPP:
            status, slots = self._get("/slots")
            listed = slots if status == 200 and isinstance(slots, list) else []
            says = any(isinstance(s, dict) and s.get("speculative") is True for s in listed)
        # After that answer: what the server wrote before it has been read by then.
        log = self.log.read_text(encoding="utf-8", errors="replace")
        if drafting and (found := _NO_DRAFT.search(log)):
            raise self._not_drafting(found.group().strip())
        if drafting and not says:
            raise self._not_drafting("/slots does not say speculative")
        named = read_speculators(log.splitlines())
        self._refuse_hidden(named)
        is_ik = self.engine.flavour is Flavour.IK_LLAMA_CPP  # which says it of each slot
        if self.job.head is not None and is_ik and not named:
            raise self._not_drafting("its log names no speculation that it started")
        if says and not drafting:
            self._refuse_hidden({"": "/slots says speculative"})

    def _refuse_hidden(self, kinds: Mapping[str, str]) -> None:
        """Raise where one of ``kinds`` of speculation, by name and in words, was not asked for."""
        asked = self.job.speculators(self.engine.flavour)
        if found := unwanted(kinds, asked):
            given = f"in addition to {' and '.join(asked)}" if asked else "although given no draft"
            raise StepError(
                f"{self._name} speculates {given}: {', '.join(kinds[name] for name in found)}",
                hint="a wrapper, a configuration file or the build itself adds it, and it has no "
                "--no-spec-type that would end it: use another build (--engine)",
                log=self._running.stderr_log if self._running else None,
            )

    def _not_drafting(self, reason: str) -> StepError:
        return StepError(
            f"{self._name} serves without drafting: {reason}",
            hint="draft and target need the same vocabulary; `cook inspect` compares them",
            log=self.log,
        )

    def _guard_repetition(self, prompt: str | tuple[int, ...]) -> None:
        """ik replays its last answer as a draft when a prompt is repeated or continued."""
        if self.engine.flavour is not Flavour.IK_LLAMA_CPP or self.job.draft is None:
            return
        last, self._last_prompt = self._last_prompt, prompt
        if last is not None and type(last) is type(prompt):
            shorter, longer = sorted((last, prompt), key=len)
            if longer[: len(shorter)] == shorter:
                raise InternalError(
                    "the same prompt twice in a row on one ik server: its acceptance would be"
                    " inflated; put another prompt in between"
                )

    def _answer(
        self, method: str, path: str, payload: Mapping[str, object] | None = None
    ) -> tuple[int, bytes]:
        import httpx

        def request(http: httpx.Client) -> tuple[int, bytes]:
            # An answer without a model's work in it is there at once, or never.
            limit_s = httpx.Timeout(30.0 if method == "GET" else None, connect=10.0)
            answer = http.request(method, path, json=payload, timeout=limit_s)
            return answer.status_code, answer.content

        return self._watched(request)

    def _stream(self, payload: Mapping[str, object]) -> Completion:
        """POST /completion, answered token by token; the parts together."""

        def request(http: httpx.Client) -> list[StreamPart]:
            # ik ends the connection after a stream, which a next request on it would run into.
            headers = {"Connection": "close"}
            with http.stream("POST", "/completion", json=payload, headers=headers) as response:
                if response.status_code != 200:
                    self.require_ok("/completion", response.status_code, response.read())
                return stream_parts(response.iter_raw())

        return self.parsed("/completion", parse_stream, self._watched(request))

    def _watched(self, request: Callable[[httpx.Client], T]) -> T:
        """Make a request while watching that the server lives, works, and cook goes on."""
        import httpx

        running, http = self._alive(), self._http
        if http is None:
            raise InternalError("the server has no client")
        future = self._requests.submit(request, http)
        work, began = Work(running.pid, self._stall_timeout_s), time.monotonic()
        pause = 0.25
        while True:
            try:
                return future.result(pause)
            except FutureTimeout:
                pass
            except httpx.TransportError as error:
                raise self._lost(running, error) from None
            if running.poll() is not None:
                # Give the request a moment to notice; then the process's end is the story.
                with contextlib.suppress(FutureTimeout, httpx.TransportError):
                    return future.result(2.0)
                raise self._lost(running, None)
            if work.has_stalled(began):
                self._stop()
                raise failure(running.stop(), Outcome.STALLED, "a request was not answered")
            pause = min(pause * 2, 2.0)

    def _lost(self, running: Running, error: Exception | None) -> Exception:
        """The error for a request that got no answer: usually the server died."""
        try:
            ended = running.wait(5.0)
        except (TimeoutError, FutureTimeout):
            reason = f"{type(error).__name__}: {error}" if error else "no answer"
            return StepError(f"{self._name} dropped a request: {reason}", log=running.stderr_log)
        outcome = Outcome.SILENT_FAILURE if ended.outcome is Outcome.OK else ended.outcome
        return failure(ended, outcome, "it died during a request")

    def _alive(self) -> Running:
        if self._running is None:
            raise InternalError("the server is not running: use it in a with block")
        return self._running

    def _close(self) -> None:
        self._stop()
        self._requests.shutdown(wait=False, cancel_futures=True)

    def _stop(self) -> None:
        if self._running is not None:
            self.result = self._running.stop()
        if self._http is not None:
            self._http.close()
            self._http = None


def logged_settings(log: str) -> dict[str, int]:
    """What a server's log says of its target, as :func:`cook.engines.base.contradictions` has it.

    Mainline prints sizes of batches at ``-lv 4`` alone, and a draft's behind its target's.
    """
    found = {name: int(size) for name, size in reversed(_SIZE.findall(log))}
    if slot := _SLOT.search(log):
        found["seq"] = int(slot[1])
    if threads := _THREADS.search(log):
        one, batch = int(threads[1]), int(threads[2] or 0)
        found["threads"] = one
        if threads[2] is not None:
            found["threads_batch"] = batch if batch > 0 else one
    return found


def _client(host: str, port: int, key: str, connections: int) -> httpx.Client:
    """A client without time-outs of its own: who asks watches the server."""
    import httpx

    return httpx.Client(
        base_url=f"http://{f'[{host}]' if ':' in host else host}:{port}",
        headers={"Authorization": f"Bearer {key}"},
        # A proxy from the environment must not get between us and loopback.
        trust_env=False,
        timeout=httpx.Timeout(None, connect=10.0),
        limits=httpx.Limits(max_connections=connections + 3, max_keepalive_connections=connections),
    )


def free_port() -> int:
    """A free port of loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port
