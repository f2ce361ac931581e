"""Step: run prompts through the engine's real llama-server, with one draft or none.

Or through ik's llama-spec-bench (:mod:`cook.steps.live_bench`), where the recipe says so.

A round holds a share of the prompts; every configuration runs a round before any runs the next,
so that drift of the machine falls on all alike. Each round starts a fresh server: mainline
cannot change draft settings on a running one, and ik replays old drafts on repeated prompts
(docs/internals/engines.md#a-prompt-that-was-asked-before).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from cook.engines.base import DraftSettings, Engine, Flavour, ModelArgs, ServerJob
from cook.engines.client import Completion
from cook.engines.server import Server
from cook.errors import StepError
from cook.graph.step import JsonValue, Source, Step, Workbench
from cook.prompts.load import Prompt
from cook.steps.contention import Watch, told
from cook.steps.quantize import MODEL_FILE

WARM_UP = "Once the server has answered this line, its caches and clocks are warm. Count: 1, 2, 3,"
WARM_UP_TOKENS = 16
PARTING_TOKENS = 2
"""Beyond those drafted: the first comes from the prompt, and the last is never drafted."""

LiveTool = Literal["server", "spec-bench"]
Model = Step[Any] | Source


@dataclass(frozen=True)
class Sampling:
    """The sampling chain of the target. ``temperature`` 0 is greedy; None: the engine's default."""

    temperature: float = 0.0
    seed: int = 1
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repeat_penalty: float | None = None

    def request(self) -> dict[str, float]:
        """The chain as fields of a server's request, beside temperature and seed."""
        if not self.temperature:
            # Greedy is top-k 1: the servers' default chain would sort candidates for nothing.
            return {"top_k": 1}
        named = {
            "top_k": self.top_k,
            "top_p": self.top_p,
            "min_p": self.min_p,
            "repeat_penalty": self.repeat_penalty,
        }
        return {name: value for name, value in named.items() if value is not None}


@dataclass(frozen=True)
class PromptRun:
    """What the server said of one request.

    ``tokens`` are the emitted ids (None where the engine returns none: ik). Times in ms:
    ``prompt_ms`` and ``predicted_ms`` are the server's, ``wall_ms`` the client's from request
    to answer, which holds the prefill of target and draft. ``draft_n`` is None when nothing was
    drafted, never 0.
    """

    id: str
    category: str
    prompt_n: int
    prompt_ms: float
    predicted_n: int
    predicted_ms: float
    wall_ms: float
    draft_n: int | None
    draft_n_accepted: int | None
    tokens: tuple[int, ...] | None
    text: str
    stop: str

    @property
    def cycles(self) -> int | None:
        """Verification cycles, by token identity: emitted = 1 + accepted + cycles."""
        if self.draft_n_accepted is None:
            return None
        return self.predicted_n - 1 - self.draft_n_accepted


def run_of(prompt: Prompt, answer: Completion, wall_ms: float) -> PromptRun:
    """What ``answer`` says of ``prompt``."""
    return PromptRun(
        id=prompt.id,
        category=prompt.category,
        prompt_n=answer.prompt_n,
        prompt_ms=answer.prompt_ms,
        predicted_n=answer.predicted_n,
        predicted_ms=answer.predicted_ms,
        wall_ms=wall_ms,
        draft_n=answer.draft_n,
        draft_n_accepted=answer.draft_n_accepted,
        tokens=answer.tokens,
        text=answer.text,
        stop=answer.stop,
    )


@dataclass(frozen=True)
class LiveOutcome:
    """All requests of one round, with the server's own cost.

    ``lost`` tells of every prompt without a usable reply: its id and the reason.
    """

    runs: tuple[PromptRun, ...]
    load_seconds: float
    peak_rss_bytes: int
    command: tuple[str, ...]
    others_cores: float | None
    """Cores that other programs kept busy meanwhile; None where the kernel does not tell."""
    lost: tuple[str, ...] = ()
    serve: tuple[str, ...] = ()
    """The server's command where ``command`` is another tool's."""

    @property
    def warnings(self) -> tuple[str, ...]:
        contention = told(self.others_cores)
        return (contention,) if contention else ()


@dataclass(frozen=True)
class LiveStep(Step[LiveOutcome]):
    """One configuration over one round of prompts. ``draft`` None is the baseline."""

    engine: Engine
    name: str
    target: Model
    target_args: ModelArgs
    context: int
    draft: Model | None
    draft_args: ModelArgs
    settings: DraftSettings | None
    prompts: tuple[Prompt, ...]
    max_tokens: int
    sampling: Sampling
    chat: bool
    round: int
    repeat: int
    tool: LiveTool = "server"

    kind: ClassVar[str] = "live"
    version: ClassVar[int] = 4
    """2: greedy requests say top_k 1. 3: on ik unrelated text parts the requests. 4: and is
    long enough to be drafted."""
    timed: ClassVar[bool] = True
    result_type: ClassVar[type] = LiveOutcome

    @property
    def label(self) -> str:
        through = "" if self.tool == "server" else f", {self.tool}"
        return f"live {self.name} round {self.round + 1} ({self.engine.name}{through})"

    def uses(self) -> Engine:
        return self.engine

    def inputs(self) -> Mapping[str, Model]:
        inputs: dict[str, Model] = {"target": self.target}
        if self.draft is not None:
            inputs["draft"] = self.draft
        return inputs

    def params(self) -> Mapping[str, JsonValue]:
        from dataclasses import asdict

        return {
            "target_args": asdict(self.target_args),
            "draft_args": asdict(self.draft_args) if self.draft is not None else None,
            "settings": asdict(self.settings) if self.settings else None,
            "context": self.context,
            "prompts": [[p.id, p.text] for p in self.prompts],
            "max_tokens": self.max_tokens,
            "sampling": asdict(self.sampling),
            "chat": self.chat,
            # A repeat is a new measurement of the same thing, so it needs a key of its own.
            "repeat": self.repeat,
            "tool": self.tool,
        }

    def work(self) -> float:
        return float(len(self.prompts) * self.max_tokens)

    def server_job(self, bench: Workbench) -> ServerJob:
        """The engine's job for this configuration."""
        return ServerJob(
            target=bench.file(self.target, MODEL_FILE),
            target_args=self.target_args,
            context=self.context,
            draft=bench.file(self.draft, MODEL_FILE) if self.draft is not None else None,
            draft_args=self.draft_args,
            settings=self.settings,
        )

    def run(self, bench: Workbench) -> LiveOutcome:
        if self.tool == "spec-bench":
            from cook.steps.live_bench import bench_round

            outcome = bench_round(self, bench)
            self._require_drafting(outcome.runs)
            return outcome
        started = time.monotonic()
        with Server(self.engine, self.server_job(bench), bench.supervisor) as server:
            load_seconds = time.monotonic() - started
            server.complete(WARM_UP, n_predict=WARM_UP_TOKENS, temperature=0.0, seed=1)
            runs = []
            watch, cpu_before = Watch.start(), server.cpu_s
            for index, prompt in enumerate(self.prompts):
                if index and self.remembers:
                    server.complete(WARM_UP, self.parting_tokens, temperature=0.0, seed=1)
                runs.append(self._ask(server, prompt))
                bench.advance((index + 1) / len(self.prompts))
            taken = _difference(server.cpu_s, cpu_before)
            others = watch.others_cores(taken)
        self._require_drafting(runs)
        return LiveOutcome(
            runs=tuple(runs),
            load_seconds=load_seconds,
            peak_rss_bytes=server.peak_rss_bytes,
            command=server.command,
            others_cores=others,
        )

    @property
    def remembers(self) -> bool:
        """ik drafts from its last request where the next one begins alike.

        docs/internals/engines.md#a-prompt-that-was-asked-before
        """
        return self.draft is not None and self.engine.flavour is Flavour.IK_LLAMA_CPP

    @property
    def parting_tokens(self) -> int:
        """Length of a request that makes the draft forget the one before: it must be drafted."""
        return PARTING_TOKENS + max(1, self.settings.n_min if self.settings else 0)

    def _ask(self, server: Server, prompt: Prompt) -> PromptRun:
        text = server.apply_template(prompt.text) if self.chat else prompt.text
        started = time.perf_counter()
        answer: Completion = server.complete(
            text,
            n_predict=self.max_tokens,
            temperature=self.sampling.temperature,
            seed=self.sampling.seed,
            sampling=self.sampling.request(),
        )
        wall_ms = (time.perf_counter() - started) * 1000
        return run_of(prompt, answer, wall_ms)

    def _require_drafting(self, runs: Sequence[PromptRun]) -> None:
        """Both engines serve on without a word when drafting is off.

        docs/internals/engines.md#serving-without-drafting
        """
        if self.settings is None or self.settings.n_max == 0:
            return
        long_enough = [r for r in runs if r.predicted_n > 2]
        if long_enough and all(r.draft_n is None for r in long_enough) and not self.settings.p_min:
            raise StepError(
                f"{self.label}: the {self.tool} ran, but drafted nothing: speculation is off",
                hint="compare the vocabularies: cook inspect TARGET.gguf DRAFT.gguf",
            )


def _difference(after: float | None, before: float | None) -> float | None:
    return None if after is None or before is None else after - before
