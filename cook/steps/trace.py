"""Step: run the target once over the prompts and keep what it said, token by token."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import ClassVar

from cook.engines.base import Engine, ModelArgs, ServerJob
from cook.engines.worker import Worker
from cook.engines.worker_results import Generation, ModelInfo, SamplerChain
from cook.errors import StepError
from cook.formats.gguf import read_gguf
from cook.formats.trace import Reply, ReplyHead, Sampler, TraceHeader, TraceWriter
from cook.graph.step import JsonValue, Source, Step, Workbench
from cook.paths import cook_home
from cook.prompts.load import Prompt
from cook.steps.live import Sampling
from cook.steps.loading import model_load
from cook.vocabulary import read_vocabulary

TRACE_FILE = "target.trace"
TOP = 64
"""Candidates kept a token: K of scoring.md section 8, 408 bytes a token."""
EXTRA = 33
"""Tokens recorded beyond an end of reply: ik counts drafts of up to n_max = 32 past it."""


@dataclass(frozen=True)
class TraceOutcome:
    """``replies`` recorded with ``tokens`` emitted tokens in all, ``ended`` by themselves."""

    replies: int
    tokens: int
    ended: int
    prompt_tokens: int
    vocabulary_size: int
    seconds: float


@dataclass(frozen=True)
class TraceStep(Step[TraceOutcome]):
    """The trace of ``target`` over ``prompts``; artifact ``target.trace``.

    Threads stay out of the key with all that only places the model: they change no token that
    a near-tie does not change anyway, and the trace is a fixed text for every draft.
    """

    engine: Engine
    target: Source
    args: ModelArgs
    context: int
    prompts: tuple[Prompt, ...]
    max_tokens: int
    sampling: Sampling
    chat: bool

    kind: ClassVar[str] = "trace"
    result_type: ClassVar[type] = TraceOutcome

    @property
    def label(self) -> str:
        temperature = self.sampling.temperature
        at = f" at temperature {temperature:g}" if temperature else ""
        return f"trace{at} ({self.engine.name})"

    def uses(self) -> Engine:
        return self.engine

    def inputs(self) -> Mapping[str, Source]:
        return {"target": self.target}

    def params(self) -> Mapping[str, JsonValue]:
        return {
            "context": self.context,
            "prompts": [[p.id, p.text] for p in self.prompts],
            "max_tokens": self.max_tokens,
            "sampling": asdict(self.sampling),
            "chat": self.chat,
            "top": TOP,
            "extra": EXTRA,
            "cache_types": [self.args.cache_type_k, self.args.cache_type_v],
            "flash_attention": self.args.flash_attention,
        }

    def work(self) -> float:
        return float(len(self.prompts) * self.max_tokens)

    def predicted_bytes(self) -> int:
        return len(self.prompts) * (self.max_tokens + EXTRA) * (24 + 6 * TOP)

    def run(self, bench: Workbench) -> TraceOutcome:
        # Kept beside the store until whole, so that a crash costs one reply, not the trace.
        partial = cook_home() / "partial" / f"trace-{self.key}"
        rendered = self._rendered(bench)
        tokens = ended = prompt_tokens = 0
        with Worker.open(self.engine, bench.supervisor, name="trace") as worker:
            load = model_load(self.engine, self.target.path, self.args, self.context, bench.threads)
            info = worker.load(load)
            with TraceWriter(partial, self._header(info)) as writer:
                for index, prompt in enumerate(self.prompts):
                    if prompt.id not in writer.done:
                        writer.append(self._reply(worker, prompt, rendered[prompt.id]))
                    bench.advance((index + 1) / len(self.prompts))
        from cook.formats.trace import TraceFile

        for head in TraceFile(partial).heads:
            tokens += head.emitted
            ended += head.stop == "eog"
            prompt_tokens += head.prompt_tokens
        shutil.move(partial, bench.directory / TRACE_FILE)
        return TraceOutcome(
            replies=len(self.prompts),
            tokens=tokens,
            ended=ended,
            prompt_tokens=prompt_tokens,
            vocabulary_size=info.n_vocab,
            seconds=0.0,
        )

    def _rendered(self, bench: Workbench) -> dict[str, str]:
        """Prompt id -> text as the server gets it; the target's own server renders templates."""
        if not self.chat:
            return {p.id: p.text for p in self.prompts}
        from cook.engines.server import Server

        job = ServerJob(target=self.target.path, target_args=self.args, context=self.context)
        with Server(self.engine, job, bench.supervisor) as server:
            return {p.id: server.apply_template(p.text) for p in self.prompts}

    def _reply(self, worker: Worker, prompt: Prompt, text: str) -> Reply:
        ids = worker.tokenize(text)
        if not ids:
            raise StepError(f"{self.label}: prompt {prompt.id} has no tokens")
        chain = _chain(self.sampling)
        said = worker.generate(ids, n_predict=self.max_tokens, chain=chain, top=TOP, extra=EXTRA)
        return _as_reply(prompt, text, ids, said, self.sampling.seed)

    def _header(self, info: ModelInfo) -> TraceHeader:
        file = read_gguf(self.target.path)
        return TraceHeader(
            target_name=self.target.path.name,
            target_sha256=self.target.digest,
            tokenizer_sha256=read_vocabulary(file).digest,
            template_sha256=_sha256(file.string("tokenizer.chat_template") or ""),
            prompts_sha256=_sha256("\0".join(f"{p.id}\0{p.text}" for p in self.prompts)),
            vocabulary_size=info.n_vocab,
            eog=tuple(sorted(info.eog)),
            flavour=str(self.engine.flavour),
            engine_build=self.engine.identity.build,
            engine_digest=self.engine.identity.digest,
            device="gpu" if self.args.n_gpu_layers else "cpu",
            cache_type_k=self.args.cache_type_k or "f16",
            cache_type_v=self.args.cache_type_v or "f16",
            context=self.context,
            n_predict=self.max_tokens,
            extra_tokens=EXTRA,
            top=TOP,
            sampler=Sampler(temperature=self.sampling.temperature, seed=self.sampling.seed),
        )


def _chain(sampling: Sampling) -> SamplerChain | None:
    if not sampling.temperature:
        return None
    return SamplerChain(sampling.temperature, seed=sampling.seed)


def _as_reply(prompt: Prompt, text: str, ids: Sequence[int], said: Generation, seed: int) -> Reply:
    import numpy as np

    count = len(said.tokens)
    assert said.top_ids is not None, "asked for"
    assert said.top_logits is not None, "asked for"
    head = ReplyHead(
        id=prompt.id,
        category=prompt.category,
        rendered_sha256=_sha256(text),
        seed=seed,
        stop=said.stop,
        prompt_tokens=len(ids),
        tokens=count,
        emitted=said.emitted,
    )
    return Reply(
        head=head,
        prompt=np.array(ids, np.int32),
        tokens=said.tokens,
        known=np.ones(count, np.bool_),
        logp=said.logp,
        chain_logp=said.chain_logp,
        logsumexp=said.logsumexp,
        margin=said.margin,
        top_ids=said.top_ids,
        top_logp=said.top_logits - said.logsumexp[:, None],
    )


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
