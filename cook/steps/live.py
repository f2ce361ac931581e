"""Step: one candidate's llama-server, and requests to it.

:class:`cook.steps.deal.DealStep` deals prompts to several of these servers, of which one runs at a
time.
Run alone, the step has as many clients as the server has slots.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import ClassVar

from cook.engines.base import DraftSettings, Engine, ModelArgs, ServerJob
from cook.engines.server import Server
from cook.engines.server_api import Completion, Stop, ran_ms
from cook.engines.speculation import NgramSettings
from cook.errors import StepError
from cook.formats.heads import HeadKind
from cook.formats.quant_types import Flavour
from cook.formats.sampling import Sampling
from cook.graph.step import Cost, Input, JsonValue, Step, Workbench
from cook.prompts.prompt_set import Prompt
from cook.record.record import TOLERATED_CORES, PromptRun
from cook.steps.copies import SpliceHeadStep
from cook.steps.work import (
    TOKENS_A_CYCLE,
    Phase,
    computed_bytes,
    context_bytes,
    head_bytes,
    model_bytes,
    model_path,
    prompt_tokens,
    read_bytes,
    trunk_bytes,
    wide,
)


class Watch:
    """What others take of the processors from now on, while the processes whose processor seconds
    ``timed_cpu_s`` gives are timed."""

    def __init__(self, timed_cpu_s: Callable[[], float | None]) -> None:
        self._timed_cpu_s = timed_cpu_s
        self._started_s, self._before_s = time.monotonic(), self._others_s()

    def _others_s(self) -> float | None:
        """Processor time that others used since boot, without idle and waiting for disks."""
        timed_s = self._timed_cpu_s()
        try:
            fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
            user, nice, system, _idle, _iowait, irq, softirq = (int(f) for f in fields[1:8])
        except (OSError, ValueError):
            return None
        machine_s = (user + nice + system + irq + softirq) / float(os.sysconf("SC_CLK_TCK"))
        return None if timed_s is None else machine_s - timed_s - time.process_time()

    def others_cores(self) -> float | None:
        """Cores kept busy by others since the start, on average; None where the kernel does not
        say (not Linux), or the time of the timed processes is unknown."""
        now_s, wall_s = self._others_s(), time.monotonic() - self._started_s
        if now_s is None or self._before_s is None or wall_s <= 0:
            return None
        return max(0.0, (now_s - self._before_s) / wall_s)


class Timed:
    """The result of a timing. ``others_cores``: cores that other programs kept busy meanwhile; None
    where the kernel does not say."""

    others_cores: float | None

    @property
    def warnings(self) -> tuple[str, ...]:
        if self.others_cores is None or self.others_cores <= TOLERATED_CORES:
            return ()
        return (
            f"other programs kept {self.others_cores:.1f} of {len(os.sched_getaffinity(0))} cores "
            "busy while this was timed; its speeds are not to be trusted",
        )


WARM_UP = "Once the server has answered this line, its caches and clocks are warm. Count: 1, 2, 3,"
WARM_UP_TOKENS = 16
HEARING_MS = 0.1
"""Of a processor that is meant for the engine, to hear of a token that comes streamed."""
STREAMED_MS = 10.0
"""A token of which that is a hundredth."""
LATE_SHARE = 0.01
"""Of the target's reading of a prompt, what a draft takes to read it beyond what it took apart, at
the least: a tenth of its own, where it reads in a tenth of the target's time
(docs/internals/scoring.md#prices)."""
PARTING_TOKENS = 2
"""Beyond those drafted: the first comes from the prompt, and the last is never drafted."""


def run_of(prompt: Prompt, answer: Completion, wall_ms: float, past_end: int = 0) -> PromptRun:
    """What ``answer`` says of ``prompt``; ``past_end`` of its tokens are of no reply."""
    accepted = answer.draft_n_accepted
    return PromptRun(
        id=prompt.id,
        category=prompt.category,
        prompt_n=answer.prompt_n,
        prompt_ms=answer.prompt_ms,
        predicted_n=answer.predicted_n - past_end,
        predicted_ms=answer.predicted_ms,
        wall_ms=wall_ms,
        draft_n=answer.draft_n,
        draft_n_accepted=accepted - past_end if accepted is not None else None,
        past_end=past_end,
        tokens=answer.tokens,
        text=answer.text,
        stop=answer.stop,
        late_reading_ms=answer.late_reading_ms,
    )


@dataclass(frozen=True)
class LiveOutcome(Timed):
    """All requests of one server, with its own cost."""

    runs: tuple[PromptRun, ...]
    load_seconds: float
    peak_rss_bytes: int
    command: tuple[str, ...]
    others_cores: float | None
    log: str | None = None
    """The folder of its log, among the logs of ``COOK_HOME``."""
    warm_up: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    """Prompt and reply that the server was warmed up with, where it drafts from what it has
    seen; None where that does not matter, or the engine does not report it."""
    asked: tuple[tuple[int, str], ...] = ()
    """``order`` and prompt of everything that it was asked then, where it was warmed up so: of a
    request that was tried again one is in ``runs``."""
    busy_s: float | None = None
    """From the first request to the last answer, where the clients of all slots ask at once."""


@dataclass(frozen=True)
class LiveStep(Step[LiveOutcome]):
    """One candidate's server on ``prompts``. ``draft`` None is no draft."""

    engine: Engine
    name: str
    target: Input
    target_args: ModelArgs
    context: int
    draft: Input | None
    draft_args: ModelArgs
    settings: DraftSettings | None
    prompts: tuple[Prompt, ...]
    max_tokens: int
    sampling: Sampling
    chat: bool
    repeat: int = 0
    ngram: NgramSettings | None = None
    slots: int = 1
    """Requests that the server answers at once, with as many clients that ask in parallel."""
    draft_context: int | None = None
    """Tokens of the draft's own context; None: the target's."""
    head: HeadKind | None = None
    """What kind of head ``draft`` is; None for a model. ``draft`` is the target for its own."""

    kind: ClassVar[str] = "live"
    phase: ClassVar[str] = Phase.LIVE
    version: ClassVar[int] = 5
    """2: greedy requests say top_k 1. 3: on ik unrelated text parts the requests. 4: and is
    long enough to be drafted. 5: buffers lie alike; ik's tokens past an end do not count."""
    timed: ClassVar[bool] = True

    @property
    def label(self) -> str:
        at_once = "" if self.slots == 1 else f", {self.slots} slots"
        return f"live {self.name} ({self.engine.name}{at_once})"

    def params(self) -> Mapping[str, JsonValue]:
        return {
            "target_args": asdict(self.target_args),
            "draft_args": asdict(self.draft_args) if self.draft is not None else None,
            "settings": asdict(self.settings) if self.settings else None,
            "context": self.context,
            "prompts": [[p.id, p.whole, p.category] for p in self.prompts],
            "max_tokens": self.max_tokens,
            "sampling": {k: v for k, v in asdict(self.sampling).items() if k != "draws"},
            # Every prompt is sampled with random numbers of its own, as traces are; greedy runs
            # keep their keys.
            **({"seeds": "by prompt"} if self.sampling.temperature else {}),
            "chat": self.chat,
            # A repeat is a new measurement of the same thing, so it needs a key of its own.
            "repeat": self.repeat,
            # From when another tool could run them: without it every live key changes.
            "tool": "server",
            # Only where there is one, so that other keys stay.
            **({"ngram": asdict(self.ngram)} if self.ngram is not None else {}),
            **({"slots": self.slots} if self.slots > 1 else {}),
            **({"draft_context": self.draft_context} if self.draft_context else {}),
            **({"streamed": True} if self.reads_late else {}),
            **({"head": str(self.head)} if self.head is not None else {}),
        }

    def cost(self) -> Cost | None:
        target = (trunk_bytes if self.head is None else model_bytes)(self.target)
        draft = model_bytes(self.draft) if self.draft is not None else 0.0
        if self.head is not None and (self.draft == self.target or self.is_spliced):
            draft = 0.0
        if target is None or draft is None:
            return None
        tokens = float(len(self.prompts) * self.max_tokens)
        prompts = sum(prompt_tokens(self.prompts, self.target))
        read, computed = read_bytes(self.target), prompts * computed_bytes(self.target)
        held = target + draft + self.context_bytes()
        if self.draft is None or self.settings is None:
            return Cost((target,), tokens * read, tokens, computed, memory_bytes=held)
        n_max, cycles = self.settings.n_max, tokens / TOKENS_A_CYCLE
        head = self.head is not None
        drafted = head_bytes(self.draft) if head else read_bytes(self.draft)
        return Cost(
            loads=(target, draft),
            read_bytes=cycles * (read * wide(n_max + 1) + n_max * drafted),
            decodes=cycles * (1 + n_max),
            computed_bytes=computed + prompts * (drafted if head else computed_bytes(self.draft)),
            memory_bytes=held,
        )

    def context_bytes(self) -> float:
        """What its server's contexts take next to the weights, about."""
        held = context_bytes(self.target, self.target_args, self.context, self.slots)
        if self.draft is not None and self.head is None:
            own = self.draft_context or self.context
            held += context_bytes(self.draft, self.draft_args, own, self.slots)
        return held

    @property
    def is_spliced(self) -> bool:
        """Whether ``draft`` is the target with another head in it, and is served in its place."""
        return isinstance(self.draft, SpliceHeadStep)

    def server_job(self, bench: Workbench) -> ServerJob:
        """The engine's job for this configuration."""
        draft = model_path(bench, self.draft) if self.draft is not None else None
        spliced = draft if self.is_spliced else None
        return ServerJob(
            target=spliced or model_path(bench, self.target),
            target_args=self.target_args,
            context=self.context,
            draft=draft,
            draft_args=self.draft_args,
            settings=self.settings,
            ngram=self.ngram,
            slots=self.slots,
            draft_context=self.draft_context,
            head=self.head,
        )

    def run(self, bench: Workbench) -> LiveOutcome:
        """All prompts, in their order: every client asks for the next one once it has an answer."""
        started = time.monotonic()
        with (
            Server(self.engine, self.server_job(bench), bench.supervisor) as server,
            ThreadPoolExecutor(self.slots, thread_name_prefix="client") as clients,
        ):
            load_seconds = time.monotonic() - started
            try:
                texts = [self.rendered(server, prompt) for prompt in self.prompts]
                # A connection each, and every slot's caches are warm.
                warming = [
                    clients.submit(server.complete, WARM_UP, WARM_UP_TOKENS)
                    for _ in range(self.slots)
                ]
                for warmed in as_completed(warming):
                    warmed.result()
                watch, started = Watch(lambda: server.cpu_s), time.monotonic()
                requests = zip(self.prompts, texts, strict=True)
                asked = [clients.submit(self.ask, server, *one) for one in requests]
                for done, answer in enumerate(as_completed(asked), 1):
                    answer.result()  # the first that fails ends the others
                    bench.advance(done / len(asked))
                busy_s, others_cores = time.monotonic() - started, watch.others_cores()
            except BaseException:
                clients.shutdown(wait=False, cancel_futures=True)
                server.stop()  # and no request goes on behind a Ctrl-C
                raise
        runs = [answer.result() for answer in asked]
        return self.outcome(server, runs, load_seconds, others_cores, busy_s=busy_s)

    def rendered(self, server: Server, prompt: Prompt) -> str:
        return server.apply_template(prompt.messages) if self.chat else prompt.untemplated

    @property
    def remembers(self) -> bool:
        """ik drafts from its last request where the next one begins alike.

        docs/internals/engines.md#a-prompt-that-was-asked-before
        """
        return self.draft is not None and self.engine.flavour is Flavour.IK_LLAMA_CPP

    @property
    def reads_late(self) -> bool:
        """ik's draft model reads the prompt at its first draft, which its server counts as
        decoding: answers come streamed (:meth:`is_streamed`), which shows how long. Where other
        kinds of speculation draft, too, the first drafted tokens need not be its."""
        return self.remembers and self.ngram is None and self.head is None

    def is_streamed(self, server: Server, warmed: Completion, text: str) -> bool:
        """Whether the answer to ``text`` comes streamed, which shows late readings: where tokens
        are slow, by those that the server was ``warmed`` up with, or else where the prompt is so
        long that the error in its reading is more than it takes to hear of all tokens."""
        if not self.reads_late:
            return False
        pace = warmed.decode_tokens_per_s
        if pace is not None and 1000 / pace >= STREAMED_MS:
            return True
        reading_ms = len(server.tokenize(text)) * warmed.prompt_ms / max(warmed.prompt_n, 1)
        return LATE_SHARE * reading_ms >= HEARING_MS * self.max_tokens

    @property
    def parting_tokens(self) -> int:
        """Length of a request that makes the draft forget the one before: it must be drafted."""
        return PARTING_TOKENS + max(1, self.settings.n_min if self.settings else 0)

    def ask(
        self,
        server: Server,
        prompt: Prompt,
        text: str,
        streamed: bool = False,
        stops: Sequence[Stop] = (),
    ) -> PromptRun:
        """``stops`` of the server until it has answered count for none of the times."""
        asked_s = time.monotonic()
        answer: Completion = server.complete(
            text,
            n_predict=self.max_tokens,
            sampling=self.sampling.for_prompt(prompt.id).asked(),
            streamed=streamed,
        )
        answered_s = time.monotonic()
        wall_ms = ran_ms(asked_s, answered_s, stops)
        answer = answer.without(stops, answered_s)
        if answer.draft_n is None and (self.draft is not None or self.ngram is not None):
            answer = replace(answer, draft_n=0, draft_n_accepted=0)  # as forecasts say it
        return run_of(prompt, answer, wall_ms, self._past_end(server, answer))

    def _past_end(self, server: Server, answer: Completion) -> int:
        """ik counts what it accepted past an end of generation, at most a draft's tokens."""
        ik = self.engine.flavour is Flavour.IK_LLAMA_CPP
        if not ik or answer.stop != "eos" or not answer.draft_n_accepted:
            return 0
        shown = len(server.tokenize(answer.text)) + 1
        deepest = max((d.depth for d in answer.by_depth if d.accepted), default=0)
        return max(0, min(answer.predicted_n - shown, deepest))

    def require_drafting(self, answers: Sequence[PromptRun | Completion]) -> None:
        """StepError where a server that is to draft drafted nothing in any of ``answers``."""
        long_enough = [answer for answer in answers if answer.predicted_n > 2]
        silent = long_enough and not any(answer.draft_n for answer in long_enough)
        if silent and self.settings and self.settings.n_max and not self.settings.p_min:
            raise StepError(
                f"{self.label}: the server ran, but drafted nothing: speculation is off",
                hint="compare the vocabularies: cook inspect TARGET.gguf DRAFT.gguf"
                if self.head is None
                else "does this build run heads of this architecture? Its log says more",
            )

    def outcome(
        self,
        server: Server,
        runs: Sequence[PromptRun],
        load_seconds: float,
        others_cores: float | None,
        *,
        warm_up: tuple[tuple[int, ...], tuple[int, ...]] | None = None,
        asked: Sequence[tuple[int, str]] = (),
        busy_s: float | None = None,
    ) -> LiveOutcome:
        """``runs`` of ``server``, which has ended. StepError where it drafted nothing: both engines
        serve on without a word when drafting is off.

        docs/internals/engines.md#serving-without-drafting
        """
        self.require_drafting(runs)
        return LiveOutcome(
            runs=tuple(runs),
            load_seconds=load_seconds,
            peak_rss_bytes=server.peak_rss_bytes,
            command=server.command,
            others_cores=others_cores,
            log=server.log.parent.name,
            warm_up=warm_up,
            asked=tuple(asked) if warm_up is not None else (),
            busy_s=busy_s,
        )
